"""Operators on Spark, against code written by hand and against Spark's own operators.

Rows of 1 KB with 10 % duplicates, from Parquet into nowhere. A batch that deduplicates and stamps
is compared with a function of the same rule for applyInArrow, by hand and without checks; a stream
that deduplicates with dropDuplicatesWithinWatermark on the same store, with bodies and without.
Spark's window is not exact, and Spark neither chooses the first row nor lists what it dropped.
Rounds take turns, so that a busy machine is fair to both.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from bench.measure import BODY_BYTES, ROUNDS, Figure, folder
from onibus.core.settings import QueueSettings, make
from onibus.spark import operators
from onibus.spark.session import spark_session

ROWS = 400_000
FILES = 8
DUPLICATES = 0.1
WINDOW_MS = 600_000
PARTITIONS = 16
START = 1_700_000_000_000

SETTINGS = {"requires_duplicate_detection": True, "enable_partitioning": True}


def write_rows(path: Path, rows: int = ROWS) -> None:
    """Write rows that come a millisecond apart, in files that follow each other."""
    random = np.random.default_rng(1)
    chosen = np.arange(rows)
    repeated = random.random(rows) < DUPLICATES
    # A duplicate repeats a recent row.
    chosen[repeated] = np.maximum(chosen[repeated] - random.integers(1, 5_000, rows)[repeated], 0)
    size = rows // FILES
    for at in range(FILES):
        bodies = [os.urandom(BODY_BYTES) for _ in range(size)]
        order = np.arange(at * size, (at + 1) * size)
        table = pa.table(
            {
                "message_id": pa.array([f"message-{one:012}" for one in chosen[order].tolist()]),
                "body": pa.array(bodies, pa.binary()),
                "arrival_time": pa.array(START + order, pa.timestamp("ms", tz="UTC")).cast(
                    pa.timestamp("us", tz="UTC")
                ),
                "arrival_order": order,
            }
        )
        file = path / f"{at:04}.parquet"
        pq.write_table(table, file, compression="none", use_dictionary=False)
        os.utime(file, (1_000_000_000 + 10 * at,) * 2)


# A batch


def _by_hand(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
    """Deduplicate and stamp the rows of a partition, as one would write it."""
    table = table.sort_by([("arrival_time", "ascending"), ("arrival_order", "ascending")])
    times = pc.cast(table.column("arrival_time"), pa.int64()).to_numpy() // 1000
    seen: dict[str, int] = {}
    kept = []
    pairs = zip(table.column("message_id").to_pylist(), times.tolist(), strict=True)
    for at, (name, time_ms) in enumerate(pairs):
        recorded = seen.get(name)
        if recorded is None or time_ms - recorded >= WINDOW_MS:
            seen[name] = time_ms
            kept.append(at)
    table = table.take(pa.array(kept))
    base = key[0].as_py() << 48
    numbers = pa.array(np.arange(1, len(kept) + 1) + base)
    stamps = np.maximum.accumulate(times[kept]) * 1000
    table = table.append_column("sequence_number", numbers)
    return table.append_column("enqueued_time", pa.array(stamps).cast(pa.timestamp("us", tz="UTC")))


def by_hand(rows: DataFrame) -> DataFrame:
    partition = sf.pmod(sf.crc32(sf.col("message_id").cast("binary")), sf.lit(PARTITIONS))
    schema = (
        "message_id string, body binary, arrival_time timestamp, arrival_order long, "
        "partition int, sequence_number long, enqueued_time timestamp"
    )
    placed = rows.withColumn("partition", partition.cast("int"))
    return placed.groupBy("partition").applyInArrow(_by_hand, schema)


def ours(rows: DataFrame) -> DataFrame:
    return operators.enqueue(rows, make(dict(SETTINGS), QueueSettings)).accepted


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def to_nowhere(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def batch_figure(spark: SparkSession, source: Path, rounds: int) -> Figure:
    rows = spark.read.parquet(str(source))
    accepted = ours(rows).count()
    assert accepted == by_hand(rows).count()
    ratios, rates = [], []
    for _ in range(rounds):
        hand = seconds(lambda: to_nowhere(by_hand(rows)))
        own = seconds(lambda: to_nowhere(ours(rows)))
        ratios.append(100 * hand / own)
        rates.append(ROWS / own)
    note = f"{statistics.median(rates):,.0f} rows/s; {accepted:,} of {ROWS:,} accepted"
    return Figure("Spark: deduplicate and stamp, of the same by hand",
                  statistics.median(ratios), 80, "%", note=note)  # fmt: skip


# A stream


def stream(spark: SparkSession, source: Path) -> DataFrame:
    schema = spark.read.parquet(str(source)).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2)
    return reader.parquet(str(source))


def built_in(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("arrival_time", "10 minutes").dropDuplicatesWithinWatermark(
        ["message_id"]
    )


def deduplicated(rows: DataFrame) -> DataFrame:
    return operators.deduplicate(rows, WINDOW_MS).kept


def trigger_seconds(rows: DataFrame, checkpoint: Path) -> float:
    """Run a stream to its end; return the time its batches took, its start left out."""
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    # The first batch pays for the plan and for the workers.
    batches = [one for one in query.recentProgress if one.numInputRows][1:]
    return sum(one.durationMs["triggerExecution"] for one in batches) / 1000


def stream_figure(
    spark: SparkSession, source: Path, scratch: Path, rounds: int, without: tuple[str, ...] = ()
) -> Figure:
    ratios, rates = [], []
    kind = "-".join(("stream", *without))
    for at in range(rounds + 1):
        rows = stream(spark, source).drop(*without)
        spark_s = trigger_seconds(built_in(rows), scratch / f"{kind}-spark-{at}")
        own_s = trigger_seconds(deduplicated(rows), scratch / f"{kind}-own-{at}")
        if at:  # the first round warms both up
            ratios.append(100 * spark_s / own_s)
            rates.append(ROWS * 3 / 4 / own_s)
    note = f"{statistics.median(rates):,.0f} rows/s in its batches"
    bodies = " without bodies" if without else ""
    return Figure(f"Spark: deduplicate a stream{bodies}, of dropDuplicatesWithinWatermark",
                  statistics.median(ratios), 100, "%", note=note)  # fmt: skip


def measure(rounds: int = ROUNDS) -> list[Figure]:
    with folder() as path:
        source = path / "rows"
        source.mkdir()
        write_rows(source)
        spark = spark_session(**{"spark.local.dir": str(path / "spark")})
        try:
            return [
                batch_figure(spark, source, rounds),
                stream_figure(spark, source, path, rounds),
                stream_figure(spark, source, path, rounds, ("body",)),
            ]
        finally:
            spark.stop()
