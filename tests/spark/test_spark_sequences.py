"""Random sequences through Spark: the result is right, or there is an error before (R9)."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.spark.served_bus import ServedBus
from tests.spark.spark_sequences import tell

SEQUENCES = 10


@pytest.mark.promise("R3", "R5", "R6", "R7", "R9")
def test_every_sequence_ends_right_or_with_an_error(spark: SparkSession) -> None:
    with ServedBus() as served:
        for seed in range(SEQUENCES):
            tell(spark, served, seed)
