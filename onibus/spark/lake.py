"""The lake: captured rows of an entity, as Delta tables for any program.

    <lake>/<entity>/entity.json               which entity this is, and which lake
    <lake>/<entity>/_manifest/<version>.json  where tables begin, and who writes (lake_manifest.py)
    <lake>/<entity>/messages/_delta_log/      which files count (delta_log.py)
    <lake>/<entity>/messages/<date>-p<partition>-<first>-<last>-<attempt>.parquet
    <lake>/<entity>/outcomes/…
    <lake>/<entity>/errors/…
    <lake>/<entity>/_iceberg/…                what else Iceberg tables have (lake_iceberg.py)

A slash in an entity's name is an @ in that of its folder, and the end of a very long name is its
digest. Dates are those of the rows' times, UTC;
<first> and <last> are the first and last number of the range of the log that the file covers, 19
digits each. Such a range never changes (R3). <attempt> begins with the digest of the file's bytes
and ends with random digits: no file is ever written twice.

A file counts once the Delta log of its table lists it. An interrupted batch leaves files that no
reader sees; a later capture removes them when they are old (`vacuum`). Lakes of earlier versions
have another layout (lake_earlier.py), until a capture converts them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from onibus.api.log import LogPositions
from onibus.core.errors import EntityReplaced, InvalidArgument, NewerFormat
from onibus.spark.delta_log import LOG, STATISTICS, DeltaLog, attempt_of, path_of, row_of
from onibus.spark.delta_schema import schema_string, statistics
from onibus.spark.iceberg_catalog import OWN_FILE
from onibus.spark.lake_columns import is_current
from onibus.spark.lake_earlier import earlier_folder, earlier_name, files_found, is_earlier
from onibus.spark.lake_files import LakeDamaged, LakeFailed, LakeFiles, absolute
from onibus.spark.lake_manifest import (
    DELTA,
    TYPED,
    WITH_ICEBERG,
    FileRow,
    Manifest,
    Progress,
    decode,
    encode,
    is_consistent,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = "messages"
OUTCOMES = "outcomes"
ERRORS = "errors"
TABLES = (MESSAGES, OUTCOMES, ERRORS)

#: The column that orders the rows of each table, and the one that has their times.
NUMBERS = {MESSAGES: "sequence_number", OUTCOMES: "number", ERRORS: "sequence_number"}
TIMES = {MESSAGES: "enqueued_time", OUTCOMES: "time", ERRORS: "enqueued_time"}

#: How long files stay that no longer count, or do not count yet.
KEEP_MS = 3_600_000

#: Number of files of the newest day that triggers a merge.
_GROWING_MIN = 8
_MANIFEST = "_manifest"
_VERSION = re.compile(rf"{_MANIFEST}/\d{{19}}\.json")
#: File systems have names of up to 255 bytes.
_FOLDER_LENGTH_MAX = 240
_DIGEST_DIGITS = 32
ENTITY = "entity.json"


def tables_of(entity: str) -> tuple[str, ...]:
    """Return what there is to capture: subscriptions share the log of their topic."""
    return (OUTCOMES,) if "/subscriptions/" in entity.lower() else (MESSAGES, OUTCOMES)


class Covered(NamedTuple):
    """A range of the log, of one partition and one day."""

    date: str
    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of a table: which rows it has, and its name below the entity's folder."""

    name: str
    row: FileRow


def name_of(table: str, row: FileRow) -> str:
    """Return the name of a file below the entity's folder."""
    return f"{table}/{path_of(row)}" if row.attempt else earlier_name(table, row)


def folder_of(entity: str) -> str:
    """Return the folder of an entity; no two entities share one."""
    folder = quote(entity, safe="/").replace("/", "@")
    if folder.lower().startswith(OWN_FILE):
        # The catalog of Iceberg tables has that name in the lake, and SQLite files next to it.
        folder += "@"
    if len(folder) <= _FOLDER_LENGTH_MAX:
        return folder
    # No other name has two of them: an entity's name has no two slashes in a row.
    digest = hashlib.sha256(entity.lower().encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{folder[: _FOLDER_LENGTH_MAX - _DIGEST_DIGITS - 2]}@@{digest}"


def _existing(place: str, entity: str) -> str:
    """Return the folder that a lake has of an entity, or will have.

    An earlier version gave it another name, or a user wrote the entity's name in another case.
    """
    folder = folder_of(entity)
    if "://" in place and earlier_folder(entity) == folder:
        # The address of a lake that cannot be reached is known, too.
        return folder
    there = LakeFiles(place, "").folders()
    wanted = [folder, earlier_folder(entity)]
    if folder not in there:
        wanted += sorted(one for one in there if one.lower() == folder.lower())
    return next((one for one in wanted if one in there), folder)


class Lake:
    """One entity's part of a lake."""

    def __init__(self, place: str, entity: str) -> None:
        self.place = absolute(place)
        self.entity = entity
        #: the name of its folder
        self.folder = _existing(self.place, entity)
        self.store = LakeFiles(place, self.folder)

    def address(self, table: str) -> str:
        """Return where Spark finds a table."""
        return f"{self.store.address}/{table}"

    def use_new_folder(self) -> None:
        """Rename the folder that an earlier version gave the entity, if its lake is local."""
        if self.folder.lower() != folder_of(self.entity).lower() and self.store.local:
            self.folder = folder_of(self.entity)
            new = LakeFiles(self.place, self.folder)
            self.store.rename(new)
            self.store = new

    # --- which entity, and which lake -------------------------------------------------------------

    def about(self) -> dict[str, Any] | None:
        """Return which entity and lake this is; None where nothing was captured yet."""
        content = self.store.read(ENTITY)
        if content is None:
            return None
        try:
            told: dict[str, Any] = json.loads(content)
            entity, _ = str(told["entity"]), int(told["incarnation"])
        except (ValueError, KeyError, TypeError):
            raise LakeDamaged(f"{self.address(ENTITY)} is damaged: restore it") from None
        if entity.lower() != self.entity.lower():
            raise LakeFailed(
                f"{self.store.address} is a lake of {entity!r}, not of {self.entity!r}: "
                "use another lake"
            )
        return told

    def check_not_bare(self) -> None:
        """Refuse files without what says whose they are."""
        if self.about() is None and any(self.store.sizes(table) for table in TABLES):
            raise LakeDamaged(
                f"{self.store.address} has files and no {ENTITY}: restore it, or move that folder "
                "away"
            )

    def check_not_inside(self) -> None:
        """Refuse a new lake in the folder of an entity of another: captures would delete it."""
        if not self.store.local or self.about() is not None:
            return
        place = Path(self.store.root).parent
        for folder in (place, *place.parents[:2]):
            content = LakeFiles(str(folder), "").read(ENTITY)
            if content is not None and b'"incarnation"' in content:
                raise InvalidArgument(
                    f"{place} is in the lake {folder.parent}, whose captures would delete its "
                    f"files: use {folder.parent}, or another folder"
                )

    def identity(self) -> str | None:
        """Return the lake's identity; None where nothing was captured, or by version 0.1.0."""
        return (self.about() or {}).get("identity")

    def check_entity(self, ends: LogPositions) -> None:
        """Refuse rows of a later entity of this name, or of one on another server."""
        told = self.about()
        if told is None:
            return
        # Each server counts incarnations; earlier lakes do not say when theirs was created.
        created = told.get("created_ms") or ends.created_ms
        if told["incarnation"] != ends.incarnation or ends.created_ms not in (0, created):
            raise EntityReplaced(
                f"{self.store.address} has rows of another {self.entity!r}, which was deleted and "
                "recreated, or is on another server: capture into another lake, or move that "
                "folder away"
            )

    def set_identity(self, ends: LogPositions, identity: str | None = None) -> str:
        """Give this part of the lake an identity, for one entity and no namesake."""
        identity = identity or uuid4().hex
        about = {"entity": self.entity, "incarnation": ends.incarnation, "identity": identity}
        content = json.dumps(about | {"created_ms": ends.created_ms}).encode()
        self.store.put(ENTITY, content, str(os.getpid()))
        return identity

    # --- the manifest -----------------------------------------------------------------------------

    def manifest_or_none(self) -> Manifest | None:
        """Return the version that counts; None if the lake has no manifest."""
        stored = self.stored_manifest()
        if stored is None or stored.layout < DELTA:
            return stored
        logs = {table: self.log(table) for table in TABLES}
        tables = {table: self.progress(one, logs[table]) for table, one in stored.tables.items()}
        for table, log in logs.items():
            _check_version(stored, table, log)
        return replace(stored, tables=tables)

    def stored_manifest(self) -> Manifest | None:
        """Return the version that counts as it was written: its tables may reach further."""
        while True:
            newest = max(self._versions(), default=None)
            if newest is None:
                return None
            content = self.store.read(newest)
            # None: the next version has replaced it since.
            if content is not None:
                return self._decoded(newest, content)

    def _decoded(self, name: str, content: bytes) -> Manifest:
        try:
            found = decode(content)
        except msgspec.MsgspecError:
            raise LakeDamaged(
                f"{self.address(name)} is damaged: restore it from a backup of the lake"
            ) from None
        if found.layout > WITH_ICEBERG:
            raise NewerFormat(
                f"{self.store.address} was written by a later version of Onibus: use that version"
            )
        if name != _manifest_name(found.version) or not is_consistent(found, TABLES):
            raise LakeDamaged(
                f"{self.address(name)} was changed: restore it from a backup of the lake"
            )
        return found

    def manifest(self) -> Manifest:
        """Return the version that counts; an error if the lake has no manifest."""
        found = self.manifest_or_none()
        if found is None:
            raise LakeDamaged(f"{self.store.address} has no manifest: restore it from a backup")
        return found

    def _versions(self) -> list[str]:
        found = self.store.sizes(_MANIFEST)
        return [name for name in found if _VERSION.fullmatch(name)]

    def put_manifest(self, manifest: Manifest) -> bool:
        """Make a version, unless there is one of that number or a higher one; return whether."""
        name = _manifest_name(manifest.version)
        if not self.store.put_new(name, encode(manifest), manifest.token or "new"):
            return False
        # A writer keeps its newest version only: a former writer may find its number free.
        if max(self._versions()) != name:
            self.store.delete(name)
            return False
        for version in self._versions():
            if version < name:
                self.store.delete(version)
        return True

    # --- the Delta logs ---------------------------------------------------------------------------

    def log(self, table: str) -> DeltaLog:
        """Return the Delta log of a table as it is now; raise if another program changed it."""
        log = DeltaLog(self.store, table)
        log.check()
        return log

    def progress(self, stored: Progress, log: DeltaLog) -> Progress:
        """Return where a table starts, and how far it reaches: its log says so, and its gaps do."""
        starts, reached = log.starts(), log.reached()
        start = [max(first, starts.get(at, 0)) for at, first in enumerate(stored.start)]
        # Gaps before the start went with the rows around them.
        gaps = [gap for gap in stored.gaps if gap.last >= start[gap.partition]]
        following = list(start)
        for gap in gaps:
            following[gap.partition] = max(following[gap.partition], gap.last + 1)
        for partition, last in reached.items():
            following[partition] = max(following[partition], last + 1)
        for partition, (at, known) in enumerate(zip(following, stored.next, strict=True)):
            if at < known:
                raise LakeDamaged(
                    f"{log.address}/{LOG} is missing or incomplete: it reaches {at - 1} of "
                    f"partition {partition}, and the lake had {known - 1}. Restore that folder"
                )
        return replace(stored, start=start, next=following, gaps=gaps)

    # --- writing ----------------------------------------------------------------------------------

    def write(self, table: str, rows: pa.Table, covered: Covered) -> LakeFile:
        """Write the rows that a table has of a range of the log; they may be fewer than that.

        The file appears whole, and counts once the table's log lists it.
        """
        schema = schema_string(rows.schema)
        sink = pa.BufferOutputStream()
        pq.write_table(rows.combine_chunks(), sink, compression="zstd")
        content = sink.getvalue()
        told = pq.read_metadata(pa.BufferReader(content))
        new = FileRow(*covered, rows.num_rows, content.size, "", schema=schema)
        row = _new_row(table, new, content, told)
        self.store.put_new(name_of(table, row), content, "new")
        return LakeFile(name_of(table, row), row)

    def copied(self, table: str, row: FileRow) -> FileRow:
        """Give a file of an earlier layout a name of this one; return it with that name."""
        one = LakeFile(name_of(table, row), row)
        content, _ = self.read(one)
        read = pq.ParquetFile(pa.BufferReader(content))
        schema = schema_string(read.schema_arrow)
        told = replace(row, rows=read.metadata.num_rows, size=len(content), schema=schema)
        new = _new_row(table, told, content, read.metadata)
        self.store.give_name(one.name, name_of(table, new))
        return new

    def written(self, table: str, path: str) -> FileRow | None:
        """Return what a file has that this version wrote and no log lists; None if it is none."""
        content = self.store.read(f"{table}/{path}") or b""
        row = row_of(path, len(content), "")
        if row is None or not digest_of(content).startswith(row.digest):
            return None
        read = pq.ParquetFile(pa.BufferReader(content))
        schema = schema_string(read.schema_arrow)
        told = read.metadata
        stats = statistics(told, STATISTICS[table])
        return replace(row, rows=told.num_rows, stats=stats, schema=schema)

    # --- reading ----------------------------------------------------------------------------------

    def files(self, table: str) -> list[LakeFile]:
        """Return the files that together have every captured row once, in order of numbers."""
        return self.state(table)[0]

    def state(self, table: str) -> tuple[list[LakeFile], Progress | None]:
        """Return a table's files, and how far they reach: of one version, while captures run.

        There is no progress if the manifest does not have the table.
        """
        stored = self.stored_manifest()
        progress = None if stored is None else stored.tables.get(table)
        if stored is not None and stored.layout >= DELTA:
            log = self.log(table)
            if progress is not None:
                progress = self.progress(progress, log)
            _check_version(stored, table, log)
            rows = log.files()
        elif self.identity() is None:
            rows = list(files_found(self.store, table))
        else:
            rows = self.manifest().files.get(table, [])
        return [LakeFile(name_of(table, row), row) for row in rows], progress

    def sets_aside(self) -> bool:
        """Return whether messages that could not be decoded are only in the table of errors."""
        stored = self.stored_manifest()
        if stored is None or stored.layout < DELTA:
            return True
        schema = "" if stored.layout >= TYPED else self.log(MESSAGES).schema
        return bool(schema) and not is_current(schema)

    def frame(self, spark: SparkSession, table: str) -> DataFrame:
        """Return a table as it is now, for a Spark without the package of Delta."""
        from pyspark.sql.types import StructType

        columns = StructType.fromJson(json.loads(self.log(table).schema or '{"fields": []}'))
        paths = self.paths(table)
        if not paths:
            return spark.createDataFrame([], columns)
        return spark.read.schema(columns).parquet(*paths)

    def paths(self, table: str) -> list[str]:
        """Return where Spark finds the files that `files` names."""
        return [f"{self.store.address}/{one.name}" for one in self.files(table)]

    def read(self, one: LakeFile, columns: list[str] | None = None) -> tuple[bytes, pa.Table]:
        """Return the bytes of a file, and its rows with these columns or all."""
        content = self.store.read(one.name)
        if content is None:
            raise LakeDamaged(
                f"{self.address(one.name)} is missing: it has the rows {one.row.first} to "
                f"{one.row.last} of partition {one.row.partition}. Restore it"
            )
        # The table itself, without columns made of the names of its folders.
        return content, pq.ParquetFile(pa.BufferReader(content)).read(columns)

    def _unchanged(self, table: str, row: FileRow) -> pa.Table:
        """Return the rows of a file that has the bytes that were captured."""
        one = LakeFile(name_of(table, row), row)
        content = self.store.read(one.name) or b""
        if not digest_of(content).startswith(row.digest):
            # A merged file would get its own digest, and hide the change.
            raise LakeDamaged(
                f"{self.address(one.name)} is missing or was changed: it has {table} {row.first} "
                f"to {row.last} of partition {row.partition}. Restore it"
            )
        return pq.ParquetFile(pa.BufferReader(content)).read()

    def vacuum(
        self,
        logs: Mapping[str, DeltaLog],
        now_ms: float,
        needed: Callable[[str], Collection[str]] = lambda table: (),
    ) -> int:
        """Remove old files that no reader needs; return their number.

        They are of batches that were cut off, were merged, or are of an earlier layout. No
        version of the Delta log that is kept names them, and `needed` of their table does not.
        """
        before, deleted = now_ms - KEEP_MS, 0
        for table, log in logs.items():
            log.clean(before)
            others: Collection[str] | None = None
            earlier: dict[str, int] = {}
            for name, changed_ms in self.store.times(table).items():
                path = name[len(table) + 1 :]
                finished = path.startswith(LOG) and "/." not in path
                if finished or changed_ms >= before or log.is_kept(path, before):
                    day = path.partition("/")[0] if is_earlier(path) else ""
                    earlier[day] = 1
                    continue
                others = needed(table) if others is None else others
                if path in others:
                    continue
                if is_earlier(path):
                    earlier.setdefault(path.partition("/")[0], 0)
                self.store.delete(name)
                deleted += 1
            for folder, left in earlier.items():
                if folder and not left:
                    self.store.delete_folder(f"{table}/{folder}")
        return deleted

    # --- compaction -------------------------------------------------------------------------------

    def merged(
        self, table: str, rows: Sequence[FileRow], size: int
    ) -> tuple[list[FileRow], list[FileRow]]:
        """Merge neighbouring files of a day into ones of about `size` bytes.

        Return the new files and those that they replace. The newest day is still growing: its files
        wait until there are a few of them, so that rows are not copied again and again.
        """
        files = sorted(rows)
        newest = max((row.date for row in files), default="")
        last_of = {_day(row): row for row in files}
        added, removed = [], []
        for group in _groups(files, size, table != ERRORS):
            first, last = group[0], group[-1]
            growing = last.date == newest and last == last_of[_day(last)]
            if growing and len(group) < _GROWING_MIN:
                continue
            content = [self._unchanged(table, row) for row in group]
            covered = Covered(first.date, first.partition, first.first, last.last)
            # Structs may have got fields since.
            whole = pa.concat_tables(content, promote_options="permissive")
            added.append(self.write(table, whole, covered).row)
            removed += group
        return added, removed


def _manifest_name(version: int) -> str:
    return f"{_MANIFEST}/{version:019}.json"


def _check_version(stored: Manifest, table: str, log: DeltaLog) -> None:
    known = stored.versions.get(table, -1)
    if log.version < known:
        raise LakeDamaged(
            f"{log.address}/{LOG} is missing or incomplete: it has version {log.version}, and the "
            f"lake had {known}. Restore that folder"
        )


def digest_of(content: bytes | pa.Buffer) -> str:
    """Return the digest of a file's bytes."""
    return hashlib.sha256(content).hexdigest()


def _new_row(
    table: str, row: FileRow, content: bytes | pa.Buffer, told: pq.FileMetaData
) -> FileRow:
    attempt = attempt_of(digest_of(content))
    stats = statistics(told, STATISTICS[table])
    return replace(row, digest=attempt[:-8], attempt=attempt, stats=stats)


def by_date(table: str, rows: pa.Table) -> Iterator[tuple[Covered, pa.Table]]:
    """Yield the rows of each partition and day, given those of each partition in order."""
    for partition, first, last in _runs(rows.column("partition")):
        mine = rows.slice(first, last - first)
        days = pc.strftime(mine.column(TIMES[table]), format="%Y-%m-%d")
        for day, start, end in _runs(days):
            part = mine.slice(start, end - start)
            numbers = part.column(NUMBERS[table])
            yield Covered(day, partition, numbers[0].as_py(), numbers[-1].as_py()), part


def _runs(values: pa.ChunkedArray) -> Iterator[tuple[Any, int, int]]:
    """Yield each run of equal values, with where it begins and ends."""
    encoded = pc.run_end_encode(values.combine_chunks())
    start = 0
    for value, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield value, start, end
        start = end


def _day(row: FileRow) -> tuple[str, int]:
    return row.date, row.partition


def _groups(files: list[FileRow], size: int, whole: bool) -> Iterator[list[FileRow]]:
    """Yield neighbours that together have about `size` bytes; never one alone.

    If files are `whole` they have every row of their range: they are not merged over a gap.
    """
    if size < 1:
        raise InvalidArgument(f"cannot write files of {size} bytes: use a larger size")
    group: list[FileRow] = []
    for one in files:
        full = sum(member.size for member in group) + one.size > size
        apart = whole and bool(group) and one.first != group[-1].last + 1
        if group and (_day(one) != _day(group[0]) or full or apart):
            if len(group) > 1:
                yield group
            group = []
        group.append(one)
    if len(group) > 1:
        yield group
