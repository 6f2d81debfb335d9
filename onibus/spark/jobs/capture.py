"""Capture: an entity's log and the outcomes of its messages, in a lake, complete and once.

The driver plans batches and commits them (onibus/spark/lake_capture.py). Spark reads each one and
its tasks write the files of their ranges. One commit of the table's Delta log has the files that
tasks returned, and no others: that makes rows appear once. No row comes to the driver, and a batch
has no function of the driver in it, so it runs over Spark Connect as well.

Bodies are captured as they are. They can be decoded as well (onibus/spark/decoding), as the lake
records. A field that cannot be decoded is null, with a row in the table `errors` (rescue), or it
suspends the capture.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec.structs import astuple

from onibus.core.errors import InvalidArgument
from onibus.spark.bodies import BadBody
from onibus.spark.body_sampling import sampled
from onibus.spark.decoding.formats import BodyFormat, body_format, decoder_of, json_format
from onibus.spark.decoding.json_bodies import inferred
from onibus.spark.decoding.values import Problem
from onibus.spark.delta_schema import evolved, schema_string
from onibus.spark.iceberg_catalog import check_tables
from onibus.spark.jobs.queries import patiently
from onibus.spark.lake import ERRORS, MESSAGES, OUTCOMES, Lake, by_date, tables_of
from onibus.spark.lake_capture import Capturing, LakeCapture, Ranges
from onibus.spark.lake_columns import DECODED, ERROR_COLUMNS, is_current
from onibus.spark.lake_iceberg import tables_of_lake
from onibus.spark.lake_keeping import check_keep
from onibus.spark.lake_manifest import FileRow
from onibus.spark.lake_reserving import release
from onibus.spark.lake_writer import WAIT_S, LakeWriter
from onibus.spark.options import ReadOptions, read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
_ERROR_MODES = ("rescue", "suspend")
#: Options that say how much a batch has; a batch read does not take them.
_LIMITS = ("maxmessagespertrigger", "maxbytespertrigger")


@dataclass(frozen=True, slots=True)
class Captured:
    """What a capture did."""

    messages: int = 0
    outcomes: int = 0
    #: fields and bodies that could not be decoded
    errors: int = 0
    files: int = 0
    size_bytes: int = 0
    #: how many files were merged into larger ones
    merged: int = 0
    #: how many rows were older than the lake keeps them, and were removed
    removed: int = 0
    seconds: float = 0.0
    #: how many rows the log had beyond the lake when the last batch was planned
    behind: int = 0


def capture(
    spark: SparkSession | Callable[[], SparkSession],
    source: Mapping[str, str],
    lake: str,
    *,
    continuous: bool = False,
    interval_s: float = 10.0,
    outcomes: bool = True,
    body: str | None = None,
    schema: str | None = None,
    message_type: str | None = None,
    on_error: str = "rescue",
    keep_ms: int | None = None,
    table_format: str | None = None,
    catalog: str | None = None,
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
    options of the format onibus: connection, entity, maxMessagesPerTrigger and so on. Start it
    again at any time: it continues.

    `body` is how bodies are decoded from now on: none, text, json, avro, protobuf or cloudevents;
    None for what the lake records. `schema` has the fields of JSON ("total DOUBLE"), or names the
    file of a schema; without it the fields of JSON are inferred. `message_type` is the Protobuf
    message. What cannot be decoded is rescued, or `on_error` is suspend.

    `keep_ms` is how long rows stay in the lake from now on: at least a day, 0 for all rows; None
    for what the lake records.

    `table_format` is delta, or iceberg for Iceberg tables of the same files as well, in the
    `catalog` of that address or name: by default a SQLite file in the lake. None for what the lake
    records.

    A lake has one writer: another waits `wait_s` and is then refused. Rows that the lake lacks and
    the log no longer has are a LogGap, which `accept_gap` records instead. `new_identity` makes a
    copied lake separate from its original.
    """
    if on_error not in _ERROR_MODES:
        raise InvalidArgument(f"on_error is {on_error!r}: use one of {', '.join(_ERROR_MODES)}")
    options = read_options(source)
    where = Lake(lake, options.entity)
    return capture_by(
        partial(_run, spark, dict(source)),
        options,
        where,
        body=body_format(body, schema, message_type),
        on_error=on_error,
        keep_ms=keep_ms,
        table_format=table_format,
        catalog=catalog,
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


#: Has the files of a batch written: of an incarnation and ranges. Returns them by table.
Run = Callable[[Capturing, int, Ranges], dict[str, list[FileRow]]]


def capture_by(
    run: Run,
    options: ReadOptions,
    where: Lake,
    *,
    body: BodyFormat | None = None,
    on_error: str = "rescue",
    keep_ms: int | None = None,
    table_format: str | None = None,
    catalog: str | None = None,
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
    if not tables:
        raise InvalidArgument(
            f"{options.entity!r} has outcomes, and its messages are those of its topic: capture "
            "its outcomes, or the topic"
        )
    if keep_ms is not None:
        check_keep(keep_ms)
    check_tables(table_format, catalog)
    with ExitStack() as opened:
        client = opened.enter_context(options.client())
        # An entity that does not exist leaves no folder behind.
        ends = client.log_positions(options.entity, log=tables[0])
        if ends.entity != where.entity:
            # A name in another case is the same entity, with one folder.
            where = Lake(where.place, ends.entity)
        where.check_entity(ends)
        where.check_not_inside()
        if body is not None:
            _check_body(where, body)
        where.use_new_folder()
        iceberg = tables_of_lake(where, table_format, catalog)
        if iceberg is not None:
            opened.enter_context(iceberg).check(new_identity)
        with LakeWriter(where, wait_s=wait_s, on_wait=on_wait) as writer:
            given = LakeCapture(
                client, writer, tables, accept_gap=accept_gap, new_identity=new_identity
            )
            given.prepare(iceberg)
            release(client, where.place, where.entity)
            if body is not None:
                given.decode(body)
            if keep_ms is not None:
                given.keep(keep_ms)
            job = _Capture(given, options, run, on_progress, stopped)
            job.file_size, job.on_error = file_size, on_error
            for _ in _rounds(interval_s, stopped):
                # The outcome of a message is captured after the message.
                for table in tables:
                    job.catch_up(table)
                job.tidy()
            for table in () if stopped() else tables:
                job.compact(table)
            given.finish()
    return replace(job.done, seconds=time.monotonic() - job.started)


def _check_body(lake: Lake, body: BodyFormat) -> None:
    """Reject a format whose columns contradict those of the lake, before anything is written."""
    decoder, schema = decoder_of(body), lake.log(MESSAGES).schema
    kind = pa.struct([]) if decoder is None else decoder.kind
    if body.format != "none" and schema and is_current(schema):
        evolved(schema, schema_string(pa.schema({DECODED: kind})), lake.address(MESSAGES))


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
    on_error = "rescue"

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
        waiting = self._lake.plan(table, target)
        self.done = replace(self.done, behind=sum(end - at for at, end in waiting.values()))
        self._on_progress(self.done)
        if table == MESSAGES and self._lake.body.inferred and waiting:
            self._infer(waiting)
        while not self._stopped():
            ranges = self._lake.plan(table, target, most, size)
            if not ranges:
                return
            behind = sum(max(target[at] - end, 0) for at, (_, end) in ranges.items())
            what = self._lake.capturing(table, self.on_error)
            files = self._run(what, self._lake.incarnation, ranges)
            self._lake.commit(table, ranges, files)
            self._add(files, behind)
            self._batches += 1
            if self._batches % _BATCHES_A_COMPACTION == 0:
                self.compact(table)

    def _infer(self, ranges: Ranges) -> None:
        """Add the fields of a sample of new bodies to those that are decoded."""
        sample = sampled(self._options, self._lake.incarnation, ranges)
        fields = inferred(sample, self._lake.decoded_fields())
        self._lake.decode(json_format("json", fields, inferred=True))

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

    def tidy(self) -> None:
        """Remove rows that are too old, and old files."""
        removed = self._lake.tidy()
        self.done = replace(self.done, removed=self.done.removed + removed)

    def compact(self, table: str) -> None:
        """Merge small files."""
        merged = self._lake.compact(table, self.file_size)
        self.done = replace(self.done, merged=self.done.merged + merged)


_COUNTED = (MESSAGES, OUTCOMES, ERRORS)


def _run(
    spark: SparkSession | Callable[[], SparkSession],
    source: dict[str, str],
    what: Capturing,
    incarnation: int,
    ranges: Ranges,
) -> dict[str, list[FileRow]]:
    """Have Spark read a batch and write its files; return what it wrote, by table."""
    given = {name: value for name, value in source.items() if name.lower() not in _LIMITS}
    given |= {
        "table": what.table,
        "incarnation": str(incarnation),
        "startingPosition": json.dumps({at: start for at, (start, _) in ranges.items()}),
        "endingPosition": json.dumps({at: end for at, (_, end) in ranges.items()}),
        "failOnGap": "true",
        "pushdown": "false",
        "propertiesFormat": "map",
    }

    def run() -> list[Any]:
        session = spark() if callable(spark) else spark
        rows = session.read.format("onibus").options(**given).load()
        return rows.mapInArrow(partial(write_ranges, what), _WRITTEN_DDL).collect()

    files: dict[str, list[FileRow]] = {}
    for name, *row in patiently(run):
        files.setdefault(name, []).append(FileRow(*row))
    return files


def write_ranges(what: Capturing, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the files of one task's ranges; on a worker."""
    given = list(batches)
    table = pa.Table.from_batches(given) if given else None
    yield from written(what, table).to_batches()


def written(what: Capturing, rows: pa.Table | None) -> pa.Table:
    """Write the files of ranges; return what they have."""
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
    """Yield the rows that a table gets, and what of them could not be decoded."""
    decoder = decoder_of(what.body) if what.table == MESSAGES else None
    if decoder is None:
        yield what.table, rows
        return
    values, problems = decoder(rows)
    yield what.table, rows.append_column(DECODED, values)
    if not problems:
        return
    if what.on_error == "suspend":
        number = rows.column("sequence_number")[problems[0].row]
        raise BadBody(
            f"cannot decode the body of message {number} of {what.entity!r}: "
            f"{problems[0].field or 'it'} {problems[0].problem}. Capture it with another --body, "
            "or with --on-error rescue"
        )
    yield ERRORS, _errors(rows, problems)


def _errors(rows: pa.Table, problems: list[Problem]) -> pa.Table:
    """Return the rows of the table of errors."""
    columns = list(zip(*problems, strict=True))
    found = rows.select(ERROR_COLUMNS.names[:4]).take(pa.array(columns[0]))
    for name, values in zip(ERROR_COLUMNS.names[4:], columns[1:], strict=True):
        found = found.append_column(name, pa.array(values, pa.string()))
    return found.cast(ERROR_COLUMNS)
