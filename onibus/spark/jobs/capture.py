"""Capture: an entity's log and the outcomes of its messages, in a lake, complete and once.

The driver plans batches and commits them (onibus/spark/lake_capture.py). Spark reads each one and
its tasks write the files of their ranges. One commit of the table's Delta log has the files that
tasks returned, and no others: that makes rows appear once. No row comes to the driver, and a batch
has no function of the driver in it, so it runs over Spark Connect as well.

Bodies are captured as they are, or decoded (`body`). One that cannot be decoded suspends the
capture, or is set aside in the table `errors`: without its content (skip), or with it
(dead-letter).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from onibus.core.errors import InvalidArgument
from onibus.spark.bodies import BadBody
from onibus.spark.delta_schema import evolved, schema_string
from onibus.spark.jobs.queries import patiently
from onibus.spark.lake import ERRORS, MESSAGES, OUTCOMES, Lake, by_date
from onibus.spark.lake_capture import LakeCapture, Ranges, tables_of
from onibus.spark.lake_manifest import FileRow
from onibus.spark.lake_reserving import release
from onibus.spark.lake_writer import WAIT_S, LakeWriter
from onibus.spark.options import ReadOptions, read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Files are merged into ones of about this size.
FILE_SIZE = 128 << 20
#: How many bytes a batch has at most, unless the source says otherwise.
BATCH_BYTES = 512 << 20
#: How many outcomes a batch has at most, unless the source says otherwise: they are small.
BATCH_OUTCOMES = 2_000_000
#: A capture merges small files each time after this number of batches.
_BATCHES_A_COMPACTION = 50
#: A capture that continues looks this often whether it was stopped.
_LOOK_S = 0.5
#: What a task returns of each file it wrote.
_WRITTEN = pa.schema(
    {
        "table": pa.string(), "date": pa.string(), "partition": pa.int32(), "first": pa.int64(),
        "last": pa.int64(), "rows": pa.int64(), "size": pa.int64(), "digest": pa.string(),
        "attempt": pa.string(), "stats": pa.string(), "schema": pa.string(),
    }
)  # fmt: skip
_WRITTEN_DDL = (
    "table string, date string, partition int, first long, last long, rows long, size long, "
    "digest string, attempt string, stats string, schema string"
)
#: Columns that only tasks see: what a decoded body was, and what was wrong with it.
_RAW, _WRONG = "_raw_body", "_wrong"
_ERROR_MODES = ("suspend", "skip", "dead-letter")
#: Options that say how much a batch has; a batch read does not take them.
_LIMITS = ("maxmessagespertrigger", "maxbytespertrigger")


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
    #: how many rows the log had beyond the lake when the last batch was planned
    behind: int = 0


@dataclass(frozen=True, slots=True)
class Capturing:
    """What a task must know."""

    place: str
    entity: str
    table: str
    on_error: str
    #: by table: the columns that it has, as Delta writes them
    schemas: Mapping[str, str] = field(default_factory=dict)


def capture(
    spark: SparkSession | Callable[[], SparkSession],
    source: Mapping[str, str],
    lake: str,
    *,
    continuous: bool = False,
    interval_s: float = 10.0,
    outcomes: bool = True,
    body: str | None = None,
    on_error: str = "suspend",
    file_size: int = FILE_SIZE,
    accept_gap: bool = False,
    new_identity: bool = False,
    wait_s: float = WAIT_S,
    on_wait: Callable[[str], None] = lambda holder: None,
    on_progress: Callable[[Captured], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Captured:
    """Capture an entity into a lake, up to its end now or until `stopped`.

    `spark` may be a function, which is called once there are rows to capture. `source` are the
    options of the format onibus: connection, entity, maxMessagesPerTrigger and so on. `body` is
    None for bodies as they are, "text", or the fields of JSON bodies as Spark writes a schema
    ("total DOUBLE, items ARRAY<STRING>"). Start it again at any time: it continues.

    A lake has one writer: another waits `wait_s` and is then refused. Rows that the lake lacks and
    the log no longer has are a LogGap, which `accept_gap` records instead. `new_identity` makes a
    copied lake separate from its original.
    """
    if on_error not in _ERROR_MODES:
        raise InvalidArgument(f"on_error is {on_error!r}: use one of {', '.join(_ERROR_MODES)}")
    options = read_options(source)
    where = Lake(lake, options.entity)
    return capture_by(
        partial(_run, spark, dict(source), where, body, on_error),
        options,
        where,
        interval_s=interval_s if continuous else None,
        outcomes=outcomes,
        file_size=file_size,
        accept_gap=accept_gap,
        new_identity=new_identity,
        wait_s=wait_s,
        on_wait=on_wait,
        on_progress=on_progress,
        stopped=stopped,
    )


#: Has the files of a batch written: of a table, an incarnation and ranges. Returns them by table.
Run = Callable[[str, int, Ranges], dict[str, list[FileRow]]]


def capture_by(
    run: Run,
    options: ReadOptions,
    where: Lake,
    *,
    interval_s: float | None = None,
    outcomes: bool = True,
    file_size: int = FILE_SIZE,
    accept_gap: bool = False,
    new_identity: bool = False,
    wait_s: float = WAIT_S,
    on_wait: Callable[[str], None] = lambda holder: None,
    on_progress: Callable[[Captured], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Captured:
    """Capture with whatever reads a batch and writes its files."""
    tables = [table for table in tables_of(options.entity) if outcomes or table != OUTCOMES]
    with options.client() as client:
        # An entity that does not exist leaves no folder behind.
        where.check_entity(client.log_positions(options.entity, log=tables[0]))
        where.use_new_folder()
        with LakeWriter(where, wait_s=wait_s, on_wait=on_wait) as writer:
            given = LakeCapture(
                client, writer, tables, accept_gap=accept_gap, new_identity=new_identity
            )
            given.prepare()
            release(client, where.place, options.entity)
            job = _Capture(given, options, run, on_progress, stopped)
            job.file_size = file_size
            for _ in _rounds(interval_s, stopped):
                # The outcome of a message is captured after the message.
                for table in tables:
                    job.catch_up(table)
            for table in () if stopped() else tables:
                job.compact(table)
            given.finish()
    return replace(job.done, seconds=time.monotonic() - job.started)


def _rounds(interval_s: float | None, stopped: Callable[[], bool]) -> Iterator[None]:
    """Yield once, or at an interval until stopped."""
    while True:
        begun = time.monotonic()
        yield
        if interval_s is None:
            return
        while time.monotonic() < begun + interval_s and not stopped():
            time.sleep(_LOOK_S)
        if stopped():
            return


class _Capture:
    """A capture under way, on the driver."""

    file_size = FILE_SIZE

    def __init__(
        self,
        lake: LakeCapture,
        options: ReadOptions,
        run: Run,
        on_progress: Callable[[Captured], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._lake = lake
        self._options = options
        self._run = run
        self._on_progress = on_progress
        self._stopped = stopped
        self._batches = 0
        self.done = Captured()
        self.started = time.monotonic()

    def catch_up(self, table: str) -> None:
        """Capture a table up to where it ends now."""
        target = self._lake.target(table)
        most = self._options.max_messages_per_trigger
        if most is None and table == OUTCOMES:
            most = BATCH_OUTCOMES
        size = self._options.max_bytes_per_trigger or BATCH_BYTES
        waiting = self._lake.plan(table, target).values()
        self.done = replace(self.done, behind=sum(end - start for start, end in waiting))
        self._on_progress(self.done)
        while not self._stopped():
            ranges = self._lake.plan(table, target, most, size)
            if not ranges:
                return
            behind = sum(max(target[at] - end, 0) for at, (_, end) in ranges.items())
            files = self._run(table, self._lake.incarnation, ranges)
            self._lake.commit(table, ranges, files)
            self._add(files, behind)
            self._batches += 1
            if self._batches % _BATCHES_A_COMPACTION == 0:
                self.compact(table)

    def _add(self, files: Mapping[str, list[FileRow]], behind: int) -> None:
        """Add what a batch wrote."""
        rows = {name: sum(row.rows for row in files.get(name, [])) for name in _COUNTED}
        sums: dict[str, Any] = {name: getattr(self.done, name) + rows[name] for name in _COUNTED}
        every = [row for some in files.values() for row in some]
        self.done = replace(
            self.done,
            files=self.done.files + len(every),
            size_bytes=self.done.size_bytes + sum(row.size for row in every),
            seconds=time.monotonic() - self.started,
            behind=behind,
            **sums,
        )
        self._on_progress(self.done)

    def compact(self, table: str) -> None:
        """Merge small files."""
        merged = self._lake.compact(table, self.file_size)
        self.done = replace(self.done, merged=self.done.merged + merged)


_COUNTED = (MESSAGES, OUTCOMES, ERRORS)


def _run(
    spark: SparkSession | Callable[[], SparkSession],
    source: dict[str, str],
    lake: Lake,
    body: str | None,
    on_error: str,
    table: str,
    incarnation: int,
    ranges: Ranges,
) -> dict[str, list[FileRow]]:
    """Have Spark read a batch and write its files; return what it wrote, by table."""
    given = {name: value for name, value in source.items() if name.lower() not in _LIMITS}
    given |= {
        "table": table,
        "incarnation": str(incarnation),
        "startingPosition": json.dumps({at: start for at, (start, _) in ranges.items()}),
        "endingPosition": json.dumps({at: end for at, (_, end) in ranges.items()}),
        "failOnGap": "true",
        "pushdown": "false",
    }
    what = capturing(lake, table, on_error)

    def run() -> list[Any]:
        session = spark() if callable(spark) else spark
        rows = session.read.format("onibus").options(**given).load()
        if table == MESSAGES:
            rows = decoded(rows, body)
        return rows.mapInArrow(partial(write_ranges, what), _WRITTEN_DDL).collect()

    files: dict[str, list[FileRow]] = {}
    for name, *row in patiently(run):
        files.setdefault(name, []).append(FileRow(*row))
    return files


def capturing(lake: Lake, table: str, on_error: str) -> Capturing:
    """Return what a task must know to write a table's files."""
    schemas = {one: lake.log(one).schema for one in dict.fromkeys((table, ERRORS))}
    return Capturing(lake.place, lake.entity, table, on_error, schemas)


def decoded(rows: DataFrame, body: str | None) -> DataFrame:
    """Return rows with decoded bodies, the original bodies, and their errors."""
    from pyspark.sql import functions as F  # noqa: N812 (its usual name)

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
    given = list(batches)
    table = pa.Table.from_batches(given) if given else None
    yield from written(what, table).to_batches()


def written(what: Capturing, rows: pa.Table | None) -> pa.Table:
    """Write the files of one range; return what they have."""
    lake = Lake(what.place, what.entity)
    # Check everything before writing anything.
    parts = [
        (covered, table, part)
        for covered, day in (by_date(what.table, rows) if rows is not None else ())
        for table, part in _parted(what, day)
    ]
    for _, table, part in parts:
        evolved(what.schemas.get(table, ""), schema_string(part.schema), lake.address(table))
    files = [
        (table, *astuple(lake.write(table, part, covered).row)) for covered, table, part in parts
    ]
    columns = list(zip(*files, strict=True)) or [()] * len(_WRITTEN)
    return pa.table([pa.array(*one) for one in zip(columns, _WRITTEN.types, strict=True)], _WRITTEN)


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
            f"cannot decode the body of message {bad.column('sequence_number')[0]} of "
            f"{what.entity!r}: capture it with another body, or with on_error skip or dead-letter"
        )
    raw = (
        bad.column(_RAW) if what.on_error == "dead-letter" else pa.nulls(bad.num_rows, pa.binary())
    )
    kept = bad.drop_columns([_RAW, _WRONG, "body"])
    yield ERRORS, kept.append_column("body", raw)
