"""One input through a bus and through Spark: the same rows, numbers, times and duplicates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from onibus.spark import operators
from tests.spark.operator_helpers import events, in_stream, table_of
from tests.timeline.workloads import compare, make_workload, tell

#: Seeds whose queues are: partitioned with detection, of sessions, FIFO with both identities, and
#: one that dead-letters what expires.
SEEDS = (5, 11, 23, 31)


@pytest.mark.promise("D3", "D5", "D8", "P3", "P4", "S2", "S4", "S6")
@pytest.mark.parametrize("seed", SEEDS)
def test_enqueue_equals_the_broker(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    workload = make_workload(seed, count=60, keyless=False)
    told = asyncio.run(tell(workload))
    table = table_of(workload)

    def enqueued(rows: DataFrame) -> DataFrame:
        return operators.enqueue(rows, workload.settings, as_of=workload.until).events

    frame = spark.createDataFrame(table)
    compare(workload, told, events([row.asDict() for row in enqueued(frame).collect()]))
    # A stream's time goes with its rows: look when the last one came.
    workload.until = workload.times[-1]
    told = asyncio.run(tell(workload))
    rows = in_stream(spark, table, [7, 1, 20, 3, 9], enqueued, tmp_path, stops=(2, 4))
    compare(workload, told, events(rows))
