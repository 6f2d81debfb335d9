"""Tables of the outcomes of rows: their folders, and how each batch is written exactly once.

    <out>/table=accepted/batch=0/part-….parquet

One folder is one table, for Spark and other readers of Parquet; all of them together are a table
too. A micro-batch writes folders with its number, and replaces them when it is repeated, so that
its rows appear once. A file `_onibus.json` names the job of these tables: another job, or the same
with other settings, would give numbers that contradict the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow.fs as pafs
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from onibus.core.errors import InvalidArgument, InvalidOperation
from onibus.spark.jobs.queries import observed, run_queries

_MARKER = "_onibus.json"
#: The batch that has no rows, only columns: a table is there from the beginning.
_NO_BATCH = -1
_METRICS = "onibus"


@dataclass(frozen=True, slots=True)
class EventTables:
    """The tables of one job."""

    place: str
    job: str
    #: the outcome of rows → the table they go to
    tables: Mapping[str, str]

    def address(self, table: str) -> str:
        """Return where Spark finds a table."""
        return f"{self.place.rstrip('/')}/table={table}"

    def claim(self, plan: Mapping[str, Any]) -> None:
        """Take the place for this job, or refuse where it is another's."""
        files, root = self._files()
        path = f"{root}/{_MARKER}"
        mine = msgspec.json.encode({"job": self.job, **plan}, order="sorted")
        if files.get_file_info(path).type != pafs.FileType.NotFound:
            with files.open_input_stream(path) as stream:
                theirs = stream.read()
            if theirs != mine:
                raise InvalidOperation(
                    f"{self.place} has tables of {_differences(theirs, mine)}: use another folder"
                )
            return
        if files.get_file_info(root).type != pafs.FileType.NotFound and files.get_file_info(
            pafs.FileSelector(root)
        ):
            raise InvalidOperation(
                f"{self.place} is not empty and has no tables of this job: use another folder"
            )
        files.create_dir(root)
        with files.open_output_stream(path) as stream:
            stream.write(mine)

    def _files(self) -> tuple[pafs.FileSystem, str]:
        if "://" in self.place:
            files, root = pafs.FileSystem.from_uri(self.place)
            return files, root.rstrip("/")
        return pafs.LocalFileSystem(), self.place

    def prepared(self) -> bool:
        """Return whether all tables exist."""
        files, root = self._files()
        wanted = [f"{root}/table={table}" for table in self.tables.values()]
        return all(one.type == pafs.FileType.Directory for one in files.get_file_info(wanted))

    def prepare(self, events: DataFrame, batch: int) -> None:
        """Have all tables there, without rows in that batch."""
        spark = events.sparkSession
        empty = spark.createDataFrame([], events.drop("outcome").schema).coalesce(1)
        for table in self.tables.values():
            self.replace(empty, table, batch)

    def write(self, events: DataFrame, batch: int) -> None:
        """Write what happened in a batch."""
        table = sf.create_map(*[sf.lit(one) for pair in self.tables.items() for one in pair])
        rows = events.withColumns({"table": table[sf.col("outcome")], "batch": sf.lit(batch)})
        (
            rows.drop("outcome")
            .write.partitionBy("table", "batch")
            .mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .parquet(self.place)
        )

    def replace(self, rows: DataFrame, table: str, batch: int) -> None:
        """Write all rows of a batch of one table."""
        rows.write.mode("overwrite").parquet(f"{self.address(table)}/batch={batch}")

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        return spark.read.parquet(self.address(table))

    def metrics(self) -> list[Any]:
        """Return what is counted while rows are written."""
        return [
            sf.count_if(sf.col("outcome") == outcome).alias(table)
            for outcome, table in self.tables.items()
        ]


def _differences(theirs: bytes, mine: bytes) -> str:
    try:
        told = msgspec.json.decode(theirs, type=dict[str, Any])
    except msgspec.DecodeError:
        return "an unknown job"
    own = msgspec.json.decode(mine, type=dict[str, Any])
    if told.get("job") != own["job"]:
        return f"the job {told.get('job')}"
    names = sorted(name for name in told.keys() | own.keys() if told.get(name) != own.get(name))
    return f"a job with another {', '.join(names)}"


@dataclass(slots=True)
class Progress:
    """What a job has done in this run."""

    #: rows by their table
    counts: dict[str, int]
    batches: int
    #: when the run began, by the monotonic clock
    started: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def add(self, counted: Mapping[str, int]) -> None:
        self.batches += 1
        for table in self.counts:
            self.counts[table] += counted[table]


Tell = Callable[[Progress], None]


def write_tables(
    events: DataFrame,
    tables: EventTables,
    *,
    checkpoint: str | None = None,
    interval: str | None = None,
    on_progress: Tell = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Progress:
    """Write events of a batch or a stream: the available rows, or repeatedly at an interval."""
    done = Progress(dict.fromkeys(tables.tables.values(), 0), 0, time.monotonic())
    if not events.isStreaming:
        if interval is not None:
            raise InvalidArgument("an interval needs a stream: read the source with readStream")
        observation = Observation(_METRICS)
        tables.prepare(events, 0)
        tables.write(events.observe(observation, *tables.metrics()), 0)
        done.add(observation.get)
        on_progress(done)
        return done
    if not tables.prepared():
        tables.prepare(events, _NO_BATCH)
    trigger: dict[str, Any] = {"processingTime": interval} if interval else {"availableNow": True}

    def start() -> StreamingQuery:
        return (
            events.observe(_METRICS, *tables.metrics())
            .writeStream.foreachBatch(tables.write)
            .option("checkpointLocation", checkpoint or f"{tables.place.rstrip('/')}/_checkpoint")
            .trigger(**trigger)
            .start()
        )

    def add(_: str, report: StreamingQueryProgress) -> None:
        done.add(observed(report, _METRICS))
        on_progress(done)

    run_queries({tables.job: start}, add, stopped)
    return done
