"""The lake: captured rows of an entity, as Parquet files for any program.

    <lake>/<entity>/entity.json                       which entity this is, and which lake
    <lake>/<entity>/_manifest/<version>.json          which files count (lake_manifest.py)
    <lake>/<entity>/messages/date=…/partition=…/<first>-<last>.parquet
    <lake>/<entity>/outcomes/date=…/partition=…/<first>-<last>.parquet
    <lake>/<entity>/errors/date=…/partition=…/<first>-<last>.parquet

Dates are those of the rows' times, UTC; <first> and <last> are the first and last number of the
range of the log that the file covers, 19 digits each. Such a range never changes (R3). A task that
is repeated writes the same file under the same name, and so adds nothing.

Names that begin with a dot are being written. The manifest is the truth about what a lake has. A
lake of version 0.1.0 has none, and no identity: there every file counts whose range is not
inside that of another. The next capture gives it both (lake_migration.py).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onibus.core.errors import EntityReplaced, InvalidArgument
from onibus.spark.lake_files import LakeFailed, LakeFiles
from onibus.spark.lake_manifest import FileRow, Manifest, decode, encode

MESSAGES = "messages"
OUTCOMES = "outcomes"
ERRORS = "errors"
TABLES = (MESSAGES, OUTCOMES, ERRORS)

#: The column that orders the rows of each table, and the one that has their times.
NUMBERS = {MESSAGES: "sequence_number", OUTCOMES: "number", ERRORS: "sequence_number"}
TIMES = {MESSAGES: "enqueued_time", OUTCOMES: "time", ERRORS: "enqueued_time"}

_DIGITS = 19
#: Number of files of the newest day that triggers a merge.
_GROWING_MIN = 8
_SUFFIX = ".parquet"
_MANIFEST = "_manifest"
_ENTITY = "entity.json"


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

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]

    def within(self, other: LakeFile) -> bool:
        """Return whether the range of another file has all of this one's."""
        mine, other_row = self.row, other.row
        inside = other_row.first <= mine.first and mine.last <= other_row.last
        return self.folder == other.folder and inside


def file_name(table: str, covered: Covered) -> str:
    """Return the name of the file with these rows, below the entity's folder."""
    numbers = f"{covered.first:0{_DIGITS}}-{covered.last:0{_DIGITS}}{_SUFFIX}"
    return f"{table}/date={covered.date}/partition={covered.partition:02}/{numbers}"


def name_of(table: str, row: FileRow) -> str:
    """Return the name of a file that a manifest lists."""
    return file_name(table, Covered(row.date, row.partition, row.first, row.last))


class Lake:
    """One entity's part of a lake."""

    def __init__(self, place: str, entity: str) -> None:
        self.place = place
        self.entity = entity
        self.store = LakeFiles(place, quote(entity, safe=""))

    def address(self, table: str) -> str:
        """Return where Spark finds a table."""
        return f"{self.store.address}/{table}"

    # --- which entity, and which lake -------------------------------------------------------------

    def about(self) -> dict[str, Any] | None:
        """Return which entity and lake this is; None where nothing was captured yet."""
        content = self.store.read(_ENTITY)
        try:
            told: dict[str, Any] | None = None if content is None else json.loads(content)
        except ValueError:
            raise LakeFailed(f"{self.address(_ENTITY)} is damaged: restore it") from None
        return told

    def identity(self) -> str | None:
        """Return the lake's identity; None where nothing was captured, or by version 0.1.0."""
        return (self.about() or {}).get("identity")

    def check_incarnation(self, incarnation: int) -> None:
        """Refuse rows of a later entity of this name."""
        told = self.about()
        if told is not None and told["incarnation"] != incarnation:
            raise EntityReplaced(
                f"{self.address(_ENTITY)} has rows of an earlier {self.entity!r} (incarnation "
                f"{told['incarnation']}, now {incarnation}): capture into another lake, or move "
                "that folder away"
            )

    def set_identity(self, incarnation: int) -> str:
        """Give this part of the lake a new identity, for one entity and no later namesake."""
        identity = uuid4().hex
        about = {"entity": self.entity, "incarnation": incarnation, "identity": identity}
        self.store.put(_ENTITY, json.dumps(about).encode(), str(os.getpid()))
        return identity

    # --- the manifest -----------------------------------------------------------------------------

    def manifest_or_none(self) -> Manifest | None:
        """Return the version that counts; None if the lake has no manifest."""
        while True:
            newest = max(self._versions(), default=None)
            if newest is None:
                return None
            content = self.store.read(newest)
            # None: the next version has replaced it since.
            if content is not None:
                try:
                    return decode(content)
                except msgspec.MsgspecError:
                    raise LakeFailed(
                        f"{self.address(newest)} is damaged: restore it from a backup of the lake"
                    ) from None

    def manifest(self) -> Manifest:
        """Return the version that counts; an error if the lake has no manifest."""
        found = self.manifest_or_none()
        if found is None:
            raise LakeFailed(f"{self.store.address} has no manifest: restore it from a backup")
        return found

    def _versions(self) -> list[str]:
        found = self.store.sizes(_MANIFEST)
        return [name for name in found if name.endswith(".json") and "/." not in name]

    def put_manifest(self, manifest: Manifest) -> bool:
        """Make a version, unless there is one of that number or a higher one; return whether."""
        name = f"{_MANIFEST}/{manifest.version:0{_DIGITS}}.json"
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

    # --- writing ----------------------------------------------------------------------------------

    def write(self, table: str, rows: pa.Table, covered: Covered, attempt: str) -> LakeFile:
        """Write the rows that a table has of a range of the log; they may be fewer than that.

        The file appears whole. Two tasks that write the same range at once have different attempts,
        and write the same bytes.
        """
        sink = pa.BufferOutputStream()
        pq.write_table(rows.combine_chunks(), sink, compression="zstd")
        content = sink.getvalue()
        name = file_name(table, covered)
        row = FileRow(*covered, rows.num_rows, content.size, digest_of(content))
        if not self.store.put_new(name, content, attempt):
            there = self.store.read(name)
            if there is None or digest_of(there) != row.digest:
                raise LakeFailed(
                    f"{self.address(name)} was also written by another process: capture again"
                )
        return LakeFile(name, row)

    # --- reading ----------------------------------------------------------------------------------

    def files(self, table: str) -> list[LakeFile]:
        """Return the files that together have every captured row once, in order of numbers."""
        if self.identity() is None:
            return [one for one, inside in self._found(table) if not inside]
        rows = self.manifest().files.get(table, [])
        return [LakeFile(name_of(table, row), row) for row in rows]

    def _found(self, table: str) -> Iterator[tuple[LakeFile, bool]]:
        """Yield the files of a lake without a manifest, and whether another has their rows."""
        files = []
        for name, size in self.store.sizes(table).items():
            folder, _, last = name.rpartition("/")
            if not last.endswith(_SUFFIX) or last[0] == ".":
                continue
            numbers = last.removesuffix(_SUFFIX).split("-")
            date = folder.rpartition("date=")[2].partition("/")[0]
            partition = int(folder.rpartition("partition=")[2])
            row = FileRow(date, partition, int(numbers[0]), int(numbers[1]), -1, size, "")
            files.append(LakeFile(name, row))
        files.sort(key=lambda one: (one.folder, one.row.first, -one.row.last))
        whole: LakeFile | None = None
        for one in files:
            inside = whole is not None and one.within(whole)
            if not inside:
                whole = one
            yield one, inside

    def paths(self, table: str) -> list[str]:
        """Return where Spark finds the files that `files` names."""
        return [f"{self.store.address}/{one.name}" for one in self.files(table)]

    def read(self, one: LakeFile) -> tuple[bytes, pa.Table]:
        """Return the bytes and the rows of a file."""
        content = self.store.read(one.name)
        if content is None:
            raise LakeFailed(
                f"{self.address(one.name)} is missing: it has the rows {one.row.first} to "
                f"{one.row.last} of partition {one.row.partition}. Restore it"
            )
        # The table itself, without columns made of the names of its folders.
        return content, pq.ParquetFile(pa.BufferReader(content)).read()

    def sweep(self, manifest: Manifest) -> None:
        """Remove files that do not count: those of batches that were cut off, and merged ones."""
        for table in TABLES:
            listed = {name_of(table, row) for row in manifest.files.get(table, [])}
            for name in self.store.sizes(table):
                if name not in listed:
                    self.store.delete(name)

    # --- compaction -------------------------------------------------------------------------------

    def merged(self, table: str, rows: Sequence[FileRow], size: int) -> list[FileRow] | None:
        """Merge neighbouring files of a folder into ones of about `size` bytes.

        Return what replaces the rows of the manifest; None if there is nothing to merge. The newest
        day is still growing: its files wait until there are a few of them, so that rows are not
        copied again and again. Files that were merged stay until the manifest is committed.
        """
        files = [LakeFile(name_of(table, row), row) for row in sorted(rows)]
        newest = max((one.row.date for one in files), default="")
        last_of = {one.folder: one for one in files}
        kept = {one.name: one.row for one in files}
        for group in _groups(files, size):
            last = group[-1]
            growing = last.row.date == newest and last == last_of[last.folder]
            if growing and len(group) < _GROWING_MIN:
                continue
            content = [self.read(one)[1] for one in group]
            first = group[0].row
            covered = Covered(first.date, first.partition, first.first, last.row.last)
            made = self.write(table, pa.concat_tables(content), covered, "merged")
            for one in group:
                del kept[one.name]
            kept[made.name] = made.row
        return None if len(kept) == len(files) else sorted(kept.values())


def digest_of(content: bytes | pa.Buffer) -> str:
    """Return the digest of a file's bytes."""
    return hashlib.sha256(content).hexdigest()


def by_date(table: str, rows: pa.Table) -> Iterator[tuple[Covered, pa.Table]]:
    """Yield the rows of each day, given rows of one partition in order."""
    days = pc.strftime(rows.column(TIMES[table]), format="%Y-%m-%d").combine_chunks()
    for day, start, end in _runs(days):
        part = rows.slice(start, end - start)
        numbers = part.column(NUMBERS[table])
        partition = part.column("partition")[0].as_py()
        yield Covered(day, partition, numbers[0].as_py(), numbers[-1].as_py()), part


def _runs(values: pa.Array) -> Iterator[tuple[str, int, int]]:
    """Yield each run of equal values, with where it begins and ends."""
    encoded = pc.run_end_encode(values)
    start = 0
    for value, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield value, start, end
        start = end


def _groups(files: list[LakeFile], size: int) -> Iterator[list[LakeFile]]:
    """Yield neighbours that together have about `size` bytes; never one alone."""
    if size < 1:
        raise InvalidArgument(f"cannot write files of {size} bytes: use a larger size")
    group: list[LakeFile] = []
    for one in files:
        full = sum(member.row.size for member in group) + one.row.size > size
        # Nothing is merged over a gap: a file has every row of its range.
        apart = bool(group) and one.row.first != group[-1].row.last + 1
        if group and (one.folder != group[0].folder or full or apart):
            if len(group) > 1:
                yield group
            group = []
        group.append(one)
    if len(group) > 1:
        yield group
