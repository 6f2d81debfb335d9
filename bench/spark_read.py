"""Reading into Spark: rows of the log against a source that has its batches ready.

Both give the same columns, 1 KB bodies that nothing can compress, and as many tasks. The yardstick
is what a Python source can do at best: it makes one batch and gives it again and again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bench.measure import BODY_BYTES, ROUNDS, Figure, folder, interleaved, median
from onibus.client import Client
from onibus.spark.schema import LOG, spark_schema
from onibus.spark.session import spark_session
from tests.client.server_helpers import ServerProcess

ROWS = 400_000
TASKS = 4
BATCH = 10_000


class _Reader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(spark_schema(LOG), timezone="UTC")
        batch = pa.RecordBatch.from_pylist([_row(at) for at in range(BATCH)], schema)
        for _ in range(ROWS // TASKS // BATCH):
            yield batch


def _row(at: int) -> dict[str, object]:
    """Return what the log has of a message with an id and a body."""
    return {
        "sequence_number": at,
        "partition": 0,
        "enqueued_time": 0,
        "kind": "message",
        "message_id": f"message {at}",
        "format": "",
        "hop_count": 0,
        "body": os.urandom(BODY_BYTES),
    }


class ReadyMade(DataSource):
    """A source that has its batches ready."""

    @classmethod
    def name(cls) -> str:
        return "ready_made"

    def schema(self) -> StructType:
        return spark_schema(LOG)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader()


def _fill(client: Client) -> None:
    client.create_queue("queue", max_size_bytes=ROWS * BODY_BYTES * 4)
    for start in range(0, ROWS, BATCH):
        ids = [f"message {at}" for at in range(start, start + BATCH)]
        bodies = [os.urandom(BODY_BYTES) for _ in range(BATCH)]
        client.send_arrow("queue", pa.table({"message_id": ids, "body": bodies}))


def _worker_seconds() -> float:
    """Return the processor time of all Python workers so far."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "pyspark.daemon" in process.cmdline():
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


class _Timed:
    """Writes rows; notes the processor time of the Python workers."""

    def __init__(self) -> None:
        self.worker_seconds: list[float] = []

    def __call__(self, writer: DataFrameWriter) -> float:
        """Write, and return how many rows a second that were."""
        before, start = _worker_seconds(), time.perf_counter()
        writer.save()
        took = time.perf_counter() - start
        self.worker_seconds.append(_worker_seconds() - before)
        return ROWS / took


def _parquet(rows: DataFrame, path: Path) -> float:
    shutil.rmtree(path, ignore_errors=True)
    return _Timed()(rows.write.format("parquet").option("path", str(path)))


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Return how near the log comes to batches that are ready."""
    with folder() as path, ServerProcess(path / "data") as server:
        with Client.connect(server.connection_string) as client:
            _fill(client)
        spark = spark_session(**{"spark.local.dir": str(path), "spark.driver.memory": "2g"})
        spark.dataSource.register(ReadyMade)
        ready = spark.read.format("ready_made").load()
        log = (
            spark.read.format("onibus")
            .option("connection", server.connection_string)
            .option("entity", "queue")
            .option("messagesPerTask", ROWS // TASKS)
            .load()
        )
        theirs, ours = _Timed(), _Timed()
        works = {
            "ready": lambda: theirs(ready.write.format("noop").mode("overwrite")),
            "log": lambda: ours(log.write.format("noop").mode("overwrite")),
            "ready-parquet": lambda: _parquet(ready, path / "ready"),
            "log-parquet": lambda: _parquet(log, path / "log"),
        }
        try:
            interleaved(1, works)
            found = {name: median(all_) for name, all_ in interleaved(rounds, works).items()}
        finally:
            spark.stop()
    return [
        _figure("log → nothing", found["log"], found["ready"], 85),
        _figure("log → Parquet", found["log-parquet"], found["ready-parquet"], 70),
        Figure(
            "Spark reads: processor time of a Python worker, of ready-made batches",
            100 * median(ours.worker_seconds) / median(theirs.worker_seconds),
            110,
            "%",
            at_most=True,
            note=f"{1e6 * median(ours.worker_seconds) / ROWS:.2f} µs per row of 1 KB",
        ),
    ]


def _figure(name: str, rows: float, ready: float, target: float) -> Figure:
    note = f"{rows:,.0f} rows/s of 1 KB; ready-made batches {ready:,.0f}"
    return Figure(f"Spark reads: {name}", 100 * rows / ready, target, "%", note=note)
