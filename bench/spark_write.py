"""Writing from Spark: rows to the bus, durably, against Parquet files and a writer that keeps none.

All write the same rows after the same shuffle. Spark does not sync Parquet files to the disk.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bench.measure import BODY_BYTES, ROUNDS, Figure, folder, interleaved, median
from onibus.client import Client
from onibus.spark.session import spark_session
from onibus.spark.shaping import by_partition
from tests.client.server_helpers import ServerProcess

ROWS = 200_000
#: Files of the input, and tasks that read it.
FILES = 4


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            continue
        return WriterCommitMessage()


class ThrowAway(DataSource):
    """A sink that takes everything and keeps nothing."""

    @classmethod
    def name(cls) -> str:
        return "throw_away"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer()


def _put_rows(path: Path) -> None:
    """Write files of rows of 1 KB that nothing can compress."""
    path.mkdir()
    count = ROWS // FILES
    for number in range(FILES):
        ids = [f"{number}-{at}" for at in range(count)]
        bodies = [os.urandom(BODY_BYTES) for _ in range(count)]
        table = pa.table({"message_id": ids, "body": bodies})
        pq.write_table(table, path / f"{number}.parquet", compression="none", use_dictionary=False)


class _Writing:
    """Writes the same rows, with other ids each time, to one place or the other."""

    def __init__(self, spark: SparkSession, rows: DataFrame, target: dict[str, str]) -> None:
        self._spark = spark
        self._rows = rows
        self._target = target
        self._round = 0

    def _shuffled(self) -> DataFrame:
        self._round += 1
        ids = sql.concat(sql.lit(f"{self._round}-"), sql.col("message_id"))
        rows = self._rows.withColumn("message_id", ids)
        return by_partition(rows, self._target)

    def throw_away(self) -> float:
        return self._timed(self._shuffled().write.format("throw_away"))

    def write(self) -> float:
        return self._timed(self._shuffled().write.format("onibus").options(**self._target))

    def parquet(self, path: Path) -> float:
        shutil.rmtree(path, ignore_errors=True)
        return self._timed(self._shuffled().write.format("parquet").option("path", str(path)))

    @staticmethod
    def _timed(writer: DataFrameWriter) -> float:
        start = time.perf_counter()
        writer.mode("append").save()
        return ROWS / (time.perf_counter() - start)


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Return the figures of writing from Spark."""
    with folder() as path, ServerProcess(path / "bus") as server:
        _put_rows(path / "rows")
        target = {"connection": server.connection_string, "entity": "queue"}
        with Client.connect(server.connection_string) as client:
            client.create_queue(
                "queue",
                enable_partitioning=True,
                requires_duplicate_detection=True,
                max_size_bytes=1 << 40,
            )
            spark = spark_session(**{"spark.local.dir": str(path)})
            spark.dataSource.register(ThrowAway)
            writing = _Writing(spark, spark.read.parquet(str(path / "rows")), target)
            works = {
                "away": writing.throw_away,
                "parquet": lambda: writing.parquet(path / "parquet"),
                "bus": writing.write,
            }
            # The first round starts workers and fills caches.
            found = {name: rates[1:] for name, rates in interleaved(rounds + 1, works).items()}
            written = client.queue("queue").active_count
            assert written == (rounds + 1) * ROWS, "not everything was written"
            spark.stop()
    away, bus, parquet = (median(found[name]) for name in ("away", "bus", "parquet"))
    ratios = zip(found["bus"], found["parquet"], strict=True)
    return [
        Figure(
            "Spark writes to the bus, of Parquet",
            median([100 * ours / theirs for ours, theirs in ratios]),
            60,
            "%",
            note=f"{bus:,.0f} rows/s of 1 KB against {parquet:,.0f}; 100,000 is enough",
        ),
        Figure(
            "Spark writes to the bus, of throwing the rows away",
            100 * bus / away,
            35,
            "%",
            note=f"{bus:,.0f} rows/s against {away:,.0f}",
        ),
    ]
