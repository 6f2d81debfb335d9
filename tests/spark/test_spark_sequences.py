"""Ten stories of a pipeline through Spark itself; `make sequences` tells as many as you like."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.served_bus import ServedBus
from tests.spark.spark_sequences import tell


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBus]:
    with ServedBus() as started:
        yield started


@pytest.mark.promise("R3", "R5", "R6", "R7", "R8", "R9")
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_sequence_ends_right_or_with_an_error(
    spark: SparkSession, served: ServedBus, seed: int
) -> None:
    tell(spark, served, seed)
