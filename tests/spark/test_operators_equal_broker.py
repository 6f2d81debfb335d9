"""One input through a bus and through Spark: the same rows, numbers, times and duplicates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from onibus.spark import operators
from tests.spark.operator_helpers import events, in_stream, table_of
from tests.timeline.workloads import compare, make_workload, tell


@pytest.mark.promise("D3", "D5", "D8", "F7", "P3", "P4", "S2", "S4", "S6", "B2")
@pytest.mark.parametrize("kind", [1, 4, 6, 8])
def test_a_batch_equals_the_broker(spark: SparkSession, kind: int) -> None:
    workload = make_workload(kind, count=60, kind=kind)
    told = asyncio.run(tell(workload))
    frame = spark.createDataFrame(table_of(workload)).repartition(3)
    done = operators.enqueue(frame, workload.settings, as_of=workload.until)
    compare(workload, told, events([row.asDict() for row in done.events.collect()]))


@pytest.mark.promise("D3", "D5", "D8", "P3", "P4", "S2", "S3", "S4", "S6")
def test_a_stream_that_was_killed_equals_the_broker(spark: SparkSession, tmp_path: Path) -> None:
    workload = make_workload(1, count=150, keyless=False, kind=2)
    # A stream's time goes with its rows: the bus is asked when the last one came.
    workload.until = workload.times[-1]
    told = asyncio.run(tell(workload))

    def enqueued(rows: DataFrame) -> DataFrame:
        return operators.enqueue(rows, workload.settings).events

    rows = in_stream(spark, table_of(workload), [40, 1, 30, 50], enqueued, tmp_path, stops=(2,))
    compare(workload, told, events(rows))
