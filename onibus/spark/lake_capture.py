"""A capture as the driver sees it: where it continues, what it plans, and what it commits.

The lake says where it continues, and nothing else does: there is no checkpoint that could be lost
or restored. Each lake has its own named readers (R2), called after its identity. They keep rows
that the lake does not have yet, carry its address, and are moved only with the token of its writer,
so that a copy of the lake cannot move them unseen.

A batch is a range of numbers for each partition. Its files count once the Delta log of their table
lists them, and the readers are moved after that. Whatever is cut off leaves files that do not
count. What could not be decoded counts first, in the table `errors`: a capture that was cut off
between the two tables takes it back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from msgspec.structs import replace

from onibus.api.log import LogPositions, ReaderInfo
from onibus.client import Client
from onibus.core.errors import (
    EntityExists,
    EntityNotFound,
    EntityReplaced,
    Failed,
    LogGap,
    PartitionOffline,
    ReaderTaken,
    Unknown,
)
from onibus.spark.decoding.formats import BodyFormat, json_format
from onibus.spark.delta_log import retained
from onibus.spark.delta_schema import arrow_schema, evolved, latest_ms, schema_string
from onibus.spark.iceberg_catalog import DELTA
from onibus.spark.lake import (
    ERRORS,
    KEEP_MS,
    MESSAGES,
    OUTCOMES,
    TABLES,
    TIMES,
    Lake,
    name_of,
    tables_of,
)
from onibus.spark.lake_columns import DECODED, columns_of
from onibus.spark.lake_files import LakeBusy, LakeDamaged, LakeFailed
from onibus.spark.lake_holes import hole, uncovered
from onibus.spark.lake_iceberg import IcebergTables, forget_own
from onibus.spark.lake_keeping import check_keep, expired, files_of, is_due
from onibus.spark.lake_manifest import (
    FOLDERS,
    TYPED,
    WITH_ICEBERG,
    FileRow,
    Gap,
    Iceberg,
    Manifest,
    Progress,
)
from onibus.spark.lake_migration import adopt, adopt_errors, convert, retire_shared_readers
from onibus.spark.lake_queries import put_queries
from onibus.spark.lake_reporting import reader_name, report_table
from onibus.spark.lake_writer import LakeWriter
from onibus.spark.log_reading import given_twice

#: A reader that no capture has used for so long is removed: its lake was deleted.
IDLE_MS = 30 * 86_400_000

#: The numbers of each partition that a batch has: from the first up to, without, the last.
Ranges = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Capturing:
    """What a task must know."""

    place: str
    entity: str
    table: str
    on_error: str = "rescue"
    body: BodyFormat = field(default=BodyFormat())
    #: by table: the columns that it has, as Delta writes them
    schemas: Mapping[str, str] = field(default_factory=dict)


def has_news(
    client: Client,
    lake: Lake,
    tables: Sequence[str],
    keep_ms: int | None = None,
    table_format: str | None = None,
    catalog: str | None = None,
) -> bool:
    """Return whether a capture would change anything; None stands for what the lake records."""
    identity, manifest = lake.identity(), lake.manifest_or_none()
    if identity is None or manifest is None:
        return True
    if keep_ms not in (None, manifest.keep_ms):
        return True
    if _is_other(manifest.iceberg, table_format, catalog) or _is_cut_off(lake, manifest):
        return True
    if manifest.keep_ms and is_due(manifest, {one: lake.log(one) for one in TABLES}, _now_ms()):
        return True
    readers = {one.name: one for one in client.readers(lake.entity)}
    for table in tables:
        reader, progress = readers.get(reader_name(identity, table)), manifest.tables.get(table)
        if reader is None or progress is None:
            return True
        if time.time() * 1_000 - reader.moved_ms > IDLE_MS / 4:
            # A capture uses the reader, so that it stays although the entity is quiet.
            return True
        latest = client.log_positions(lake.entity, log=table).latest
        if any(end not in (None, at) for end, at in zip(latest, progress.next, strict=True)):
            return True
    return False


def _is_other(recorded: Iceberg | None, table_format: str | None, catalog: str | None) -> bool:
    """Return whether a capture asks for tables that the lake does not have."""
    if table_format == DELTA:
        return recorded is not None
    return table_format is not None and (
        recorded is None or catalog not in (None, recorded.catalog)
    )


def _is_cut_off(lake: Lake, manifest: Manifest) -> bool:
    """Return whether Iceberg tables may lag: a capture that ends records the versions it made."""
    return manifest.iceberg is not None and any(
        lake.log(table).version != manifest.versions.get(table, -1) for table in TABLES
    )


def _now_ms() -> float:
    return time.time() * 1_000


class LakeCapture:
    """A capture of one entity into a lake that a writer holds."""

    incarnation: int
    _created_ms: int
    _identity: str
    _vacuumed_ms: float

    def __init__(
        self,
        client: Client,
        writer: LakeWriter,
        tables: Sequence[str],
        *,
        accept_gap: bool = False,
        new_identity: bool = False,
    ) -> None:
        self._client = client
        self._writer = writer
        self._lake = writer.lake
        self._entity = writer.lake.entity
        self._tables = tables
        self._accept_gap = accept_gap
        self._new_identity = new_identity
        self._readers: dict[str, ReaderInfo] = {}
        #: the reader whose position the server does not have, if that gap was accepted
        self._gave_up = ""
        #: by table: no row of the lake has a later time
        self._latest_ms: dict[str, int | None] = {}
        #: the time that the server was sure of when it was last asked
        self._server_ms = 0

    # --- before the first batch -------------------------------------------------------------------

    def prepare(self, iceberg: IcebergTables | None = None) -> None:
        """See that the lake is this entity's, has its readers, and misses nothing.

        `iceberg` are the tables that follow those of Delta from now on.
        """
        ends = self._ends(self._tables[0])
        self._server_ms = ends.now_ms
        self.incarnation, self._created_ms = ends.incarnation, ends.created_ms
        self._lake.check_entity(ends)
        about, writer = self._lake.about(), self._writer
        identity = (about or {}).get("identity")
        self._lake.check_not_bare()
        if about is not None and identity is None and writer.manifest.layout == FOLDERS:
            self._adopt()
        self._check_files()
        if writer.manifest.layout < TYPED:
            convert(writer)
        if identity is None or self._new_identity:
            identity = self._lake.set_identity(ends)
        elif about is not None and "created_ms" not in about:
            self._lake.set_identity(ends, identity)
        self._identity = identity
        self._take_back_errors()
        # A new lake keeps outcomes first: a message that is kept may end at any moment.
        is_new = not writer.manifest.tables
        for table in reversed(self._tables) if is_new else self._tables:
            self._take_table(identity, table)
        self._create_tables()
        writer.commit(tokens=[writer.token])
        retire_shared_readers(self._client, self._lake, IDLE_MS)
        self._lake.store.delete_folder("_checkpoint")
        self._derive(iceberg)
        # After a commit: a former writer removes nothing.
        self._vacuum()

    def _create_tables(self) -> None:
        """Make tables that have no rows yet, so that every program finds each of them."""
        errors = (ERRORS,) if MESSAGES in self._tables else ()
        for table in (*self._tables, *errors):
            log = self._writer.logs[table]
            if log.version < 0:
                columns = schema_string(columns_of(table))
                self._writer.register(table, "CREATE TABLE", [], columns=columns)
            elif not log.configured:
                self._writer.register(table, "SET TBLPROPERTIES", [])
        put_queries(self._lake.store, self._entity)

    def _derive(self, iceberg: IcebergTables | None) -> None:
        """Record which Iceberg tables the lake has, and bring them up to date."""
        writer, wanted = self._writer, None if iceberg is None else Iceberg(iceberg.catalog)
        recorded = writer.manifest.iceberg
        if recorded != wanted:
            if recorded is not None:
                forget_own(self._lake, recorded)
            writer.commit(iceberg=wanted, layout=TYPED if wanted is None else WITH_ICEBERG)
        if iceberg is not None:
            iceberg.catch_up(writer.logs)
        writer.iceberg = iceberg

    def _vacuum(self) -> None:
        now, iceberg = _now_ms(), self._writer.iceberg
        if iceberg is None:
            self._lake.vacuum(self._writer.logs, now)
        else:
            iceberg.tidy(now)
            self._lake.vacuum(self._writer.logs, now, partial(iceberg.needed, now_ms=now))
        self._vacuumed_ms = now

    def keep(self, keep_ms: int) -> None:
        """Record how long rows stay from now on; 0 for as long as the lake exists."""
        if check_keep(keep_ms) != self._writer.manifest.keep_ms:
            self._writer.commit(keep_ms=keep_ms)

    def tidy(self) -> int:
        """Remove rows that are too old, and files that no reader needs; return rows."""
        # The earlier of two clocks: one that is wrong by years must not empty the lake.
        now = min(_now_ms(), self._server_ms or _now_ms())
        removed, rows = 0, files_of(self._writer.logs)
        for table, files, starts in expired(self._writer.manifest, rows, now):
            times = [latest_ms(row.stats, TIMES[table]) for row in files]
            reached = retained(self._identity, starts, _latest(*times))
            self._writer.register(table, "DELETE", [], files, reached)
            removed += sum(max(row.rows, 0) for row in files)
        if _now_ms() - self._vacuumed_ms > KEEP_MS:
            self._vacuum()
        return removed

    def finish(self) -> None:
        """Record how far the lake is, so that a Delta log that is lost later is noticed."""
        # Another writer that took over has recorded it.
        with suppress(LakeBusy):
            self._writer.commit()
            for table in self._tables:
                # Files were merged after the last batch.
                self._report(table)

    def _adopt(self) -> None:
        """List the files of a lake of version 0.1.0 in the manifest."""
        files: dict[str, list[FileRow]] = {}
        tables: dict[str, Progress] = {}
        for table in tables_of(self._entity):
            if not self._lake.files(table):
                continue
            found = adopt(self._lake, table, self._ends(table))
            for partition, first, last in found.holes:
                if not self._accept_gap:
                    raise self._hole(table, first, last, partition)
            now = int(time.time() * 1_000)
            gaps = [Gap(*hole, now) for hole in found.holes]
            tables[table] = Progress(found.start, found.next, gaps)
            files[table] = found.files
        if MESSAGES in tables:
            files[ERRORS] = adopt_errors(self._lake, tables[MESSAGES].next)
        self._writer.commit(tables=tables, files=files)

    def _check_files(self) -> None:
        """Find files that count and that are gone: they are a hole."""
        writer = self._writer
        for table in TABLES:
            if writer.manifest.layout == FOLDERS:
                rows = writer.manifest.files.get(table, [])
            else:
                rows = writer.logs[table].files()
            there = self._lake.store.sizes(table) if rows else {}
            for row in rows:
                if there.get(name_of(table, row)) != row.size:
                    raise LakeDamaged(
                        f"{self._lake.address(name_of(table, row))} is missing or was changed: it "
                        f"has {table} {row.first} to {row.last} of partition {row.partition}. "
                        "Restore it"
                    )
            if table in writer.manifest.tables:
                self._check_whole(table, rows)
            elif rows and table != ERRORS:
                raise LakeDamaged(
                    f"the manifest of {self._lake.store.address} lacks the table {table}, which "
                    "has rows: restore its folder _manifest from a backup of the lake"
                )

    def _check_whole(self, table: str, rows: Sequence[FileRow]) -> None:
        """Find ranges that no file has any more: another program has removed them."""
        for partition, first, last in uncovered(self._writer.manifest.tables[table], rows):
            raise LakeDamaged(
                f"{self._lake.address(table)} lacks {table} {first} to {last} of partition "
                f"{partition}, which it had: restore it, or capture into another lake"
            )

    def _take_back_errors(self) -> None:
        """Remove errors of a batch whose messages do not count: it is captured again."""
        progress = self._writer.manifest.tables.get(MESSAGES)
        if progress is None:
            return
        rows = self._writer.logs[ERRORS].files()
        early = [row for row in rows if row.first >= progress.next[row.partition]]
        if early:
            self._writer.register(ERRORS, "DELETE", [], early)

    def _take_table(self, identity: str, table: str) -> None:
        """Take the table's reader, and see that every row from the lake's end on can be read."""
        progress = self._writer.manifest.tables.get(table)
        self._latest_ms[table] = self._last_time(table)
        if progress is not None:
            self._check_continues(table, progress.next)
        name = reader_name(identity, table)
        start = None if progress is None else progress.next
        self._readers[table] = reader = self._take_reader(name, table, start)
        if progress is None:
            progress = Progress(list(reader.positions), list(reader.positions))
        gaps = len(progress.gaps)
        progress = self._whole(table, progress, self._ends(table))
        messages = self._writer.manifest.tables.get(MESSAGES)
        # A gap without numbers: outcomes get one only while a reader has them kept.
        is_hole = self._gave_up == name and len(progress.gaps) == gaps
        if table == OUTCOMES and messages is not None and (start is None or is_hole):
            progress = replace(progress, since=list(messages.next))
        self._writer.commit(tables={**self._writer.manifest.tables, table: progress})
        self._move(table)

    def _take_reader(self, name: str, table: str, start: list[int] | None) -> ReaderInfo:
        writer, address = self._writer, self._lake.store.address
        take = partial(
            self._client.take_reader,
            self._entity,
            name,
            token=writer.token,
            address=address,
            idle_ms=IDLE_MS,
        )
        create = partial(
            self._client.create_reader,
            self._entity,
            name,
            log=table,
            token=writer.token,
            address=address,
            idle_ms=IDLE_MS,
        )
        try:
            return take(held=writer.manifest.tokens)
        except EntityNotFound:
            pass
        except ReaderTaken as error:
            raise ReaderTaken(
                f"{address} is a copy of another lake, or an earlier state of it: {error}. Capture "
                "that lake, or give this one its own identity with --new-identity"
            ) from None
        try:
            return create(start="earliest" if start is None else start)
        except EntityExists:
            # The response to an earlier attempt was lost.
            return take()
        except LogGap as gap:
            if not self._accept_gap:
                lost = (
                    f"{table} {gap.first} to {gap.last} of {self._entity!r} are no longer retained"
                )
                lost = f"{gap}" if table == OUTCOMES else lost
                raise hole(address, lost, gap.first, gap.last) from None
        self._gave_up = name
        return create(start="earliest")

    def _last_time(self, table: str) -> int | None:
        """Return the time of the lake's youngest row of a table."""
        tables = (MESSAGES, ERRORS) if table == MESSAGES else (table,)
        return _latest(*(self._writer.logs[one].latest_ms(TIMES[one]) for one in tables))

    def _check_continues(self, table: str, following: Sequence[int]) -> LogPositions:
        """Return the ends of the log; refuse one that is not the one that the lake has."""
        known = self._latest_ms[table]
        since_ms = None if known is None else known + 1
        ends = self._client.log_positions(self._entity, log=table, since_ms=since_ms)
        self._server_ms = ends.now_ms
        if (ends.incarnation, ends.created_ms) != (self.incarnation, self._created_ms):
            raise EntityReplaced(
                f"{self._entity} was deleted and recreated while it was captured: capture into "
                "another lake"
            )
        twice = given_twice(ends, following)
        if twice is not None:
            partition, number = twice
            raise Failed(
                f"{self._lake.store.address} has {table} up to {following[partition] - 1} of "
                f"partition {partition}, but the server assigned numbers from {number} on again, "
                "or lost them: it was restored from a backup. Capture into another lake"
            )
        return ends

    def _whole(self, table: str, progress: Progress, ends: LogPositions) -> Progress:
        """Refuse a lake whose next rows are gone; or record the gap, if that was accepted."""
        following, gaps = list(progress.next), list(progress.gaps)
        for partition, (earliest, latest) in enumerate(
            zip(ends.earliest, ends.latest, strict=True)
        ):
            if earliest is None or latest is None:
                continue
            at = following[partition]
            if earliest > at:
                if not self._accept_gap:
                    raise self._hole(table, at, earliest - 1, partition)
                gaps.append(Gap(partition, at, earliest - 1, int(time.time() * 1_000)))
                following[partition] = earliest
        return replace(progress, next=following, gaps=gaps)

    def _hole(self, table: str, first: int, last: int, partition: int) -> LogGap:
        lost = (
            f"{table} {first} to {last} of partition {partition} of {self._entity!r} are no longer "
            "retained"
        )
        return hole(self._lake.store.address, lost, first, last)

    # --- bodies -----------------------------------------------------------------------------------

    @property
    def body(self) -> BodyFormat:
        """How bodies are decoded."""
        return self._writer.manifest.body

    def decode(self, body: BodyFormat) -> None:
        """Record how bodies are decoded from now on."""
        if body.inferred and not body.schema:
            # Fields that the table has stay.
            body = json_format(body.format, self.decoded_fields(), inferred=True)
        if body != self.body:
            self._writer.commit(body=body)

    def decoded_fields(self) -> pa.StructType:
        """Return the fields that the table has, and others that are decoded."""
        log = self._writer.logs[MESSAGES]
        schema = arrow_schema(log.schema)
        there = schema.field(DECODED).type if DECODED in schema.names else pa.struct([])
        fields = self.body.fields if self.body.format == "json" else None
        if fields is None:
            return there
        both = evolved(schema_string(there), schema_string(fields), log.address)
        return pa.struct(list(arrow_schema(both)))

    # --- batches ----------------------------------------------------------------------------------

    def _ends(self, table: str) -> LogPositions:
        return self._client.log_positions(self._entity, log=table)

    def target(self, table: str) -> list[int]:
        """Return the end of the log now; a partition that is offline ends where the lake does."""
        at = self._writer.manifest.tables[table].next
        ends = self._check_continues(table, at)
        return [have if end is None else end for end, have in zip(ends.latest, at, strict=True)]

    def plan(
        self,
        table: str,
        target: Sequence[int],
        messages: int | None = None,
        size: int | None = None,
    ) -> dict[int, tuple[int, int]]:
        """Return the next batch: at most about the given messages and bytes, up to the target.

        It names every partition, also those that have nothing to read; empty: there is nothing.
        """
        start = self._writer.manifest.tables[table].next
        waiting = sum(end > at for at, end in zip(start, target, strict=True))
        found = {}
        for partition, (at, end) in enumerate(zip(start, target, strict=True)):
            until = max(at, end)
            if messages is not None:
                until = min(until, at + max(messages // max(waiting, 1), 1))
            if size is not None and table == MESSAGES and until > at:
                share = max(size // waiting, 1)
                until = min(until, self._client.log_reach(self._entity, partition, at, share))
            found[partition] = (at, until)
        return found if waiting else {}

    def capturing(self, table: str, on_error: str) -> Capturing:
        """Return what tasks must know to write a table's files."""
        logs = self._writer.logs
        schemas = {one: logs[one].schema for one in dict.fromkeys((table, ERRORS))}
        return Capturing(self._lake.place, self._entity, table, on_error, self.body, schemas)

    def commit(self, table: str, ranges: Ranges, files: Mapping[str, Sequence[FileRow]]) -> None:
        """Have the files of a batch count, if they have all of its rows; then move the reader."""
        check_batch(table, ranges, files)
        self._check_seen(files)
        self._check_continues(table, self._writer.manifest.tables[table].next)
        if files.get(ERRORS):
            self._writer.register(ERRORS, "WRITE", files[ERRORS])
        reached = {
            f"{self._identity}-{partition}": end - 1
            for partition, (start, end) in ranges.items()
            if end > start
        }
        self._writer.register(table, "WRITE", files.get(table, []), reached=reached)
        self._latest_ms[table] = _latest(
            self._latest_ms[table],
            *(latest_ms(row.stats, TIMES[name]) for name, rows in files.items() for row in rows),
        )
        self._move(table)
        self._report(table, sum(end - start for start, end in ranges.values()))

    def _report(self, table: str, batch_rows: int = 0) -> None:
        """Show the console what the lake has; a capture does not depend on it."""
        files, reader = self._writer.logs[table].files(), self._readers[table].name
        report_table(self._client, self._entity, reader, self._writer.token, files, batch_rows)

    def _check_seen(self, files: Mapping[str, Sequence[FileRow]]) -> None:
        """Refuse files that workers wrote elsewhere: the broker would delete their rows."""
        wanted = {name_of(name, row): row.size for name, rows in files.items() for row in rows}
        missing = self._lake.store.missing(wanted) if wanted else None
        if missing is not None:
            raise LakeFailed(
                f"{self._lake.address(missing)}: a worker of Spark wrote this file, and this "
                "process does not see it. Nothing was committed: use a lake in a file system that "
                "the workers and this process share"
            )

    def _move(self, table: str) -> None:
        """Tell the reader how far the lake is."""
        reader = self._readers[table]
        at = self._writer.manifest.tables[table].next
        positions = tuple(map(max, reader.positions, at))
        # The next batch says it again if a partition is offline or the response is lost.
        with suppress(PartitionOffline, Unknown):
            self._client.move_reader(
                self._entity, reader.name, positions, self.incarnation, self._writer.token
            )
            self._readers[table] = replace(reader, positions=positions)

    def compact(self, table: str, size: int) -> int:
        """Merge small files; return how many were merged."""
        before = 0
        for name in (table, ERRORS) if table == MESSAGES else (table,):
            rows = self._writer.logs[name].files()
            added, removed = self._lake.merged(name, rows, size)
            if added:
                self._writer.register(name, "OPTIMIZE", added, removed, same_rows=True)
                before += len(removed)
        return before


def check_batch(table: str, ranges: Ranges, files: Mapping[str, Sequence[FileRow]]) -> None:
    """Refuse files that do not have each row of their ranges once."""
    found = sorted(files.get(table, []), key=lambda row: (row.partition, row.first))
    at = {partition: start for partition, (start, _) in ranges.items()}
    for row in found:
        if at.get(row.partition) != row.first or row.rows != row.last - row.first + 1:
            break
        at[row.partition] = row.last + 1
    else:
        if at == {partition: end for partition, (_, end) in ranges.items()}:
            return
    raise Failed(
        f"Spark wrote {[(row.partition, row.first, row.last) for row in found]} of {table}, but "
        f"{dict(ranges)} was planned: nothing was committed. Capture again"
    )


def _latest(*times: int | None) -> int | None:
    return max((ms for ms in times if ms is not None), default=None)
