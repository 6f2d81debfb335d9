"""Streaming reads: the time of micro-batches, many partitions, and requests of an idle query.

The yardstick of a micro-batch is Spark's own source `rate`. Both read a few rows per trigger and
throw them away; rounds take turns. The rest of a micro-batch (its logs on disk, its plan) is
Spark's and the same for both.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.measure import BODY_BYTES, ROUNDS, Figure, folder, interleaved, median
from onibus.client import Client
from onibus.client.asking import get
from onibus.spark.session import spark_session
from tests.client.server_helpers import ServerProcess

#: Micro-batches of each source; the first ones are left out.
BATCHES, WARM = 60, 10
#: Rows of each micro-batch.
BATCH_ROWS = 50
ROWS = 400_000
BATCH = 10_000
IDLE_S = 10


def _milliseconds(rows: DataFrame, checkpoint: Path, after: float) -> list[float]:
    """Run micro-batches; return the time of each one with rows."""
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )
    found: dict[int, float] = {}
    try:
        deadline = time.monotonic() + after
        while len(found) < BATCHES:
            for one in query.recentProgress:
                if one.numInputRows:
                    found[one.batchId] = one.durationMs["triggerExecution"]
            assert query.isActive, "the query ended"
            assert time.monotonic() < deadline, "too few micro-batches"
            time.sleep(0.2)
    finally:
        query.stop()
    return [took for _, took in sorted(found.items())][WARM:BATCHES]


def _overhead(spark: SparkSession, server: ServerProcess, path: Path, rounds: int) -> Figure:
    more: list[float] = []
    notes: list[str] = []
    with Client.connect(server.connection_string) as client:
        client.create_queue("live", enable_partitioning=True)
        # All rows are there before: a sender would share disk and cores with one of the two.
        count = 2 * BATCHES * BATCH_ROWS
        keys = [str(at) for at in range(count)]
        client.send_arrow("live", pa.table({"partition_key": keys, "body": [b"x"] * count}))
    log = (
        spark.readStream.format("onibus")
        .option("connection", server.connection_string)
        .option("entity", "live")
        .option("maxMessagesPerTrigger", BATCH_ROWS)
        .load()
    )
    rate = spark.readStream.format("rate").option("rowsPerSecond", 1_000).load()
    for at in range(rounds):
        theirs = statistics.median(_milliseconds(rate, path / f"rate-{at}", 300))
        ours = statistics.median(_milliseconds(log, path / f"log-{at}", 300))
        more.append(ours - theirs)
        notes.append(f"{ours:.0f} − {theirs:.0f}")
    return Figure(
        "Spark streams: a micro-batch, over the source rate",
        median(more),
        25,
        "ms",
        at_most=True,
        note=f"p50 of {BATCHES - WARM}: {', '.join(notes)}",
    )


def _requests(server: ServerProcess) -> int:
    """Return how many requests the server has responded to, including this one."""
    with Client.connect(server.connection_string) as client:
        found = client.answer(get("/metrics")).body.decode()
    lines = [line for line in found.splitlines() if line.startswith("onibus_http_requests_total{")]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


def _idle(spark: SparkSession, server: ServerProcess, path: Path) -> Figure:
    log = (
        spark.readStream.format("onibus")
        .option("connection", server.connection_string)
        .option("entity", "live")
        .option("startingPosition", "latest")
        .load()
    )
    query: StreamingQuery = (
        log.writeStream.format("noop").option("checkpointLocation", str(path / "idle")).start()
    )
    try:
        time.sleep(5)
        before, start = _requests(server), time.monotonic()
        time.sleep(IDLE_S)
        count, took = _requests(server) - before - 1, time.monotonic() - start
        stopping = time.monotonic()
    finally:
        query.stop()
    stopped = time.monotonic() - stopping
    return Figure(
        "Spark streams: requests of an idle query",
        count / took,
        1.05,
        "/s",
        at_most=True,
        note=f"it stops in {stopped:.1f} s",
    )


def _partitions(spark: SparkSession, server: ServerProcess, rounds: int) -> Figure:
    with Client.connect(server.connection_string) as client:
        for name, many in (("one", False), ("sixteen", True)):
            client.create_queue(name, enable_partitioning=many, max_size_bytes=ROWS * 4096)
            for start in range(0, ROWS, BATCH):
                keys = [str(at) for at in range(start, start + BATCH)]
                bodies = [os.urandom(BODY_BYTES) for _ in range(BATCH)]
                client.send_arrow(name, pa.table({"partition_key": keys, "body": bodies}))

    def timed(name: str) -> float:
        rows = (
            spark.read.format("onibus")
            .option("connection", server.connection_string)
            .option("entity", name)
            .load()
        )
        start = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        return ROWS / (time.perf_counter() - start)

    works: dict[str, Callable[[], float]] = {
        name: partial(timed, name) for name in ("one", "sixteen")
    }
    interleaved(1, works)
    found = interleaved(rounds, works)
    pairs = zip(found["sixteen"], found["one"], strict=True)
    return Figure(
        "Spark reads: 16 partitions, of one",
        median([100 * many / one for many, one in pairs]),
        90,
        "%",
        note=f"{median(found['sixteen']):,.0f} and {median(found['one']):,.0f} rows/s of 1 KB",
    )


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Return the figures of streams and of many partitions."""
    with folder() as path, ServerProcess(path / "data") as server:
        spark = spark_session(**{"spark.local.dir": str(path), "spark.driver.memory": "2g"})
        try:
            return [
                _overhead(spark, server, path, min(rounds, 3)),
                _idle(spark, server, path),
                _partitions(spark, server, rounds),
            ]
        finally:
            spark.stop()
