"""Capture: an entity's log and what became of its messages, into a lake, completely and once.

A query reads each of the two logs with a named reader (R2), so that the broker keeps what was not
captured yet, and its tasks write the files of their ranges. A range that is written again is the
same file (onibus/spark/lake.py); that, and not Spark's word for it, is what makes rows appear once.
Tasks tell only what they wrote, which Spark adds up: no row comes to the driver, and the query has
no function of the driver in it, so it runs on a server of Spark Connect as well.

Bodies are captured as they are, or decoded (`body`). One that cannot be decoded suspends the
capture, or is set aside in the table `errors`: without its content (skip), or with it
(dead-letter).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from onibus.core.errors import InvalidArgument
from onibus.spark.bodies import BadBody
from onibus.spark.jobs.queries import observed, run_queries
from onibus.spark.lake import ERRORS, MESSAGES, OUTCOMES, Lake, by_date
from onibus.spark.options import ReadOptions, read_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

#: Files are merged into ones of about this size.
FILE_SIZE = 128 << 20
#: How many bytes a batch has at most, unless the source says otherwise.
BATCH_BYTES = 512 << 20
#: A capture that goes on merges small files after so many batches.
_BATCHES_A_COMPACTION = 50
#: What a task tells of each file it wrote, and under which name it is added up.
_WRITTEN, _METRICS = "name string, rows long, bytes long", "onibus"
#: Columns that only tasks see: what a decoded body was, and what was wrong with it.
_RAW, _WRONG = "_raw_body", "_wrong"
_ERROR_MODES = ("suspend", "skip", "dead-letter")
#: What of a capture is added up from batch to batch.
_COUNTED = (MESSAGES, OUTCOMES, ERRORS, "files", "size_bytes")


@dataclass(frozen=True, slots=True)
class Captured:
    """What a capture did."""

    messages: int = 0
    outcomes: int = 0
    #: rows whose body could not be decoded
    errors: int = 0
    files: int = 0
    size_bytes: int = 0
    #: how many files were merged into larger ones
    merged: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Capturing:
    """What a task must know."""

    place: str
    entity: str
    table: str
    on_error: str


def capture(
    spark: SparkSession,
    source: Mapping[str, str],
    lake: str,
    *,
    continuous: bool = False,
    interval: str = "10 seconds",
    reader: str = "capture",
    outcomes: bool = True,
    body: str | None = None,
    on_error: str = "suspend",
    file_size: int = FILE_SIZE,
    on_progress: Callable[[Captured], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Captured:
    """Capture an entity into a lake: all that is there now, or on and on until `stopped`.

    `source` are the options of the format onibus: connection, entity, maxMessagesPerTrigger and so
    on. `body` is None for bodies as they are, "text", or the fields of JSON bodies as Spark writes
    a schema ("total DOUBLE, items ARRAY<STRING>"). Start it again at any time: it goes on.
    """
    if on_error not in _ERROR_MODES:
        raise InvalidArgument(f"on_error is one of {', '.join(_ERROR_MODES)}, not {on_error!r}")
    options = read_options(source)
    job = _Capture(spark, dict(source), options, Lake(lake, options.entity), reader, on_error)
    job.tables = [table for table in tables_of(options.entity) if outcomes or table != OUTCOMES]
    job.body, job.file_size, job.on_progress = body, file_size, on_progress
    job.prepare()
    trigger = {"processingTime": interval} if continuous else {"availableNow": True}
    tables = job.tables
    # What ends by itself goes one after the other: what became of a message is then captured after
    # the message.
    for together in (
        [tables] if continuous else [[table] for table in tables if job.has_news(table)]
    ):
        starts = {table: partial(job.start, table, trigger) for table in together}
        run_queries(starts, job.add, stopped)
    # A batch that was cut off leaves holes until it is done again.
    for table in () if stopped() else tables:
        job.compact(table)
    return replace(job.done, seconds=time.monotonic() - job.started)


def tables_of(entity: str) -> tuple[str, ...]:
    """Return what there is to capture: subscriptions share the log of their topic."""
    return (OUTCOMES,) if "/subscriptions/" in entity.lower() else (MESSAGES, OUTCOMES)


def reader_name(reader: str, table: str) -> str:
    """Return what the named reader of a table is called."""
    return reader if table == MESSAGES else f"{reader}-{table}"


class _Capture:
    """A capture under way, on the driver."""

    tables: list[str]
    body: str | None
    file_size: int
    on_progress: Callable[[Captured], None]

    def __init__(
        self,
        spark: SparkSession,
        source: dict[str, str],
        options: ReadOptions,
        lake: Lake,
        reader: str,
        on_error: str,
    ) -> None:
        self._spark = spark
        self._source = source
        self._options = options
        self._lake = lake
        self._reader = reader
        self._on_error = on_error
        self.done = Captured()
        self.started = time.monotonic()
        #: how far the named readers were behind at the start
        self._lag: dict[str, tuple[int | None, ...]] = {}
        #: batches of each table that were written
        self._batches: dict[str, int] = {}

    def prepare(self) -> None:
        """See that the lake is this entity's, and have the readers made."""
        with self._options.client() as client:
            log = tables_of(self._options.entity)[0]
            incarnation = client.log_positions(self._options.entity, log=log).incarnation
            self._lake.belong(incarnation)
            # From here on nothing goes before it was captured, and outcomes are kept.
            there = {reader.name for reader in client.readers(self._options.entity)}
            for table in self.tables:
                name = reader_name(self._reader, table)
                if name not in there:
                    client.create_reader(self._options.entity, name, log=table)
            self._lag = {one.name: one.lag for one in client.readers(self._options.entity)}

    def has_news(self, table: str) -> bool:
        """Tell whether there is anything to capture: a reader passes only what was captured."""
        # A partition that is offline may have something: None.
        return any(behind != 0 for behind in self._lag[reader_name(self._reader, table)])

    def start(self, table: str, trigger: dict[str, Any]) -> StreamingQuery:
        """Start the query of a table."""
        checkpoint = self._lake.address(f"_checkpoint/{table}")
        given = {"reader": reader_name(self._reader, table), **self._source, "table": table}
        if "maxbytespertrigger" not in map(str.lower, given):
            # A task has its rows in memory, however large they are.
            given["maxBytesPerTrigger"] = str(BATCH_BYTES)
        if not self._lake.has(f"_checkpoint/{table}/offsets"):
            # A lake whose checkpoint is lost goes on where its files end.
            following = self._lake.resume_at(table)
            if following:
                given["startingPosition"] = json.dumps(following)
        rows = self._spark.readStream.format("onibus").options(**given).load()
        if table == MESSAGES:
            rows = decoded(rows, self.body)
        what = Capturing(self._lake.place, self._options.entity, table, self._on_error)
        written = rows.mapInArrow(partial(write_ranges, what), _WRITTEN)
        return (
            written.observe(_METRICS, *_metrics())
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .queryName(f"capture {table} of {self._options.entity}")
            .trigger(**trigger)
            .start()
        )

    def add(self, table: str, report: StreamingQueryProgress) -> None:
        """Add what a batch of a table wrote; a sum of nothing is not told."""
        told = observed(report, _METRICS)
        sums = {name: getattr(self.done, name) + (told.get(name) or 0) for name in _COUNTED}
        self.done = replace(self.done, seconds=time.monotonic() - self.started, **sums)
        self.on_progress(self.done)
        self._batches[table] = self._batches.get(table, 0) + 1
        if self._batches[table] % _BATCHES_A_COMPACTION == 0:
            self.compact(table)

    def compact(self, table: str) -> None:
        """Merge small files."""
        for name in (table, ERRORS) if table == MESSAGES else (table,):
            merged, _ = self._lake.compact(name, self.file_size)
            self.done = replace(self.done, merged=self.done.merged + merged)


def _metrics() -> list[Column]:
    """Return what is added up while files are written; the names are those of `_COUNTED`."""
    from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

    def rows_of(table: str) -> Column:
        return F.sum(F.when(F.col("name") == table, F.col("rows"))).alias(table)

    return [
        *(rows_of(table) for table in (MESSAGES, OUTCOMES, ERRORS)),
        F.count("name").alias("files"),
        F.sum("bytes").alias("size_bytes"),
    ]


def decoded(rows: DataFrame, body: str | None) -> DataFrame:
    """Return rows with bodies decoded, and beside them what they were and what is wrong."""
    from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

    if body is None:
        return rows
    text = F.col("body").cast("string")
    if body == "text":
        value, wrong = text, F.col("body").isNotNull() & ~F.expr("is_valid_utf8(body)")
    else:
        corrupt = "_corrupt"
        told = F.from_json(
            text, f"{body}, {corrupt} STRING", {"columnNameOfCorruptRecord": corrupt}
        )
        value = told.dropFields(corrupt)
        wrong = F.col("body").isNotNull() & (told.isNull() | told[corrupt].isNotNull())
    return rows.withColumns({_RAW: F.col("body"), _WRONG: wrong, "body": value})


def write_ranges(what: Capturing, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the files of one task's range; on a worker."""
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = str(context.taskAttemptId()) if context is not None else "0"
    given = list(batches)
    lake = Lake(what.place, what.entity)
    written: list[tuple[str, int, int]] = []
    # All is looked at before anything is written.
    parts = [
        (covered, table, part)
        for covered, rows in (by_date(what.table, pa.Table.from_batches(given)) if given else ())
        for table, part in _parted(what, rows)
    ]
    for covered, table, part in parts:
        file = lake.write(table, part, covered, attempt)
        written.append((table, part.num_rows, file.size))
    names, counts, sizes = zip(*written, strict=True) if written else ((), (), ())
    yield pa.record_batch(
        [pa.array(names, pa.string()), pa.array(counts, pa.int64()), pa.array(sizes, pa.int64())],
        names=["name", "rows", "bytes"],
    )


def _parted(what: Capturing, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows that a table gets, and those that are set aside."""
    if _WRONG not in rows.column_names:
        yield what.table, rows
        return
    wrong = pc.fill_null(rows.column(_WRONG), False)
    yield what.table, rows.filter(pc.invert(wrong)).drop_columns([_RAW, _WRONG])
    bad = rows.filter(wrong)
    if not bad.num_rows:
        return
    if what.on_error == "suspend":
        raise BadBody(
            f"the body of message {bad.column('sequence_number')[0]} of {what.entity!r} is not as "
            "the capture expects; capture it with another body, or with on_error skip or "
            "dead-letter"
        )
    raw = (
        bad.column(_RAW) if what.on_error == "dead-letter" else pa.nulls(bad.num_rows, pa.binary())
    )
    kept = bad.drop_columns([_RAW, _WRONG, "body"])
    yield ERRORS, kept.append_column("body", raw)
