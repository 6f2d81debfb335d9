"""The lake: what was captured of an entity, as Parquet files that anything reads.

    <lake>/<entity>/entity.json                       which entity this is
    <lake>/<entity>/messages/date=…/partition=…/<first>-<last>.parquet
    <lake>/<entity>/outcomes/date=…/partition=…/<first>-<last>.parquet
    <lake>/<entity>/errors/date=…/partition=…/<first>-<last>.parquet

Dates are those of the rows' times, UTC; <first> and <last> are the first and last number of the
range of the log that the file covers, 19 digits each. Such a range never changes (R3), so whoever
writes it again writes the same file under the same name: a task or a batch that is repeated adds
nothing.

Names that begin with a dot are being written. `files` is the truth about what a folder has: a file
whose range lies inside another's was merged into that one and is about to go.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from onibus.core.errors import EntityReplaced, InvalidArgument

MESSAGES = "messages"
OUTCOMES = "outcomes"
ERRORS = "errors"

#: The column that orders the rows of each table, and the one that has their times.
NUMBERS = {MESSAGES: "sequence_number", OUTCOMES: "number", ERRORS: "sequence_number"}
TIMES = {MESSAGES: "enqueued_time", OUTCOMES: "time", ERRORS: "enqueued_time"}

_DIGITS = 19
#: Files of the newest day are merged when there are so many.
_GROWING_MIN = 8
_SUFFIX = ".parquet"


class Covered(NamedTuple):
    """A range of the log, of one partition and one day."""

    date: str
    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of a table: which rows it has, and where it lies."""

    folder: str
    first: int
    last: int
    size: int

    @property
    def path(self) -> str:
        return f"{self.folder}/{file_name(self.first, self.last)}"

    @property
    def date(self) -> str:
        return self.folder.rpartition("date=")[2].partition("/")[0]

    @property
    def partition(self) -> int:
        return int(self.folder.rpartition("partition=")[2])

    def within(self, other: LakeFile) -> bool:
        """Tell whether another file has all of this one's rows."""
        return self.folder == other.folder and other.first <= self.first and self.last <= other.last


def file_name(first: int, last: int) -> str:
    """Return what a file with these rows is called."""
    return f"{first:0{_DIGITS}}-{last:0{_DIGITS}}{_SUFFIX}"


class Lake:
    """One entity's part of a lake, in a file system that pyarrow knows: a path, s3://, hdfs://."""

    def __init__(self, place: str, entity: str) -> None:
        self.place = place
        self.entity = entity
        if "://" in place:
            self._files, root = pafs.FileSystem.from_uri(place)
        else:
            self._files, root = pafs.LocalFileSystem(), os.path.abspath(place)
        self._root = f"{root.rstrip('/')}/{quote(entity, safe='')}"

    def address(self, table: str) -> str:
        """Return where Spark finds a table."""
        scheme, mark, _ = self.place.partition("://")
        return f"{scheme}{mark}{self._path(table)}" if mark else self._path(table)

    def _path(self, table: str) -> str:
        return f"{self._root}/{table}"

    def has(self, name: str) -> bool:
        """Tell whether there is a file or folder of that name."""
        return bool(self._files.get_file_info(self._path(name)).type != pafs.FileType.NotFound)

    # --- which entity ---------------------------------------------------------------------------

    def belong(self, incarnation: int) -> None:
        """Say that this part of the lake has the rows of one entity, and of no later namesake."""
        path = f"{self._root}/entity.json"
        told = self.about()
        if told is None:
            about = {"entity": self.entity, "incarnation": incarnation}
            self._files.create_dir(self._root, recursive=True)
            self._write_bytes(path, json.dumps(about).encode())
        elif told["incarnation"] != incarnation:
            raise EntityReplaced(
                f"{path} has rows of an earlier {self.entity!r} (incarnation "
                f"{told['incarnation']}, now {incarnation}): capture into another lake, or move "
                "that folder and its checkpoint away"
            )

    def about(self) -> dict[str, Any] | None:
        """Return which entity this is; None where nothing was captured yet."""
        path = f"{self._root}/entity.json"
        if not self.has("entity.json"):
            return None
        with self._files.open_input_stream(path) as stream:
            told: dict[str, Any] = json.loads(stream.read())
        return told

    # --- writing --------------------------------------------------------------------------------

    def write(self, table: str, rows: pa.Table, covered: Covered, attempt: str) -> LakeFile:
        """Write the rows that a table has of a range of the log; they may be fewer than that.

        The file appears whole. Two who write the same range at once (a task that was started
        twice) have different attempts, and the second takes the first one's place.
        """
        folder = f"{self._path(table)}/date={covered.date}/partition={covered.partition:02}"
        return self._put(folder, covered.first, covered.last, rows, attempt)

    def _put(self, folder: str, first: int, last: int, rows: pa.Table, attempt: str) -> LakeFile:
        path = f"{folder}/{file_name(first, last)}"
        unfinished = f"{folder}/.{file_name(first, last)}.{attempt}"
        self._files.create_dir(folder, recursive=True)
        with self._files.open_output_stream(unfinished) as stream:
            pq.write_table(rows, stream, compression="zstd")
        self._sync(unfinished)
        self._files.move(unfinished, path)
        self._sync(folder)
        return LakeFile(folder, first, last, self._files.get_file_info(path).size)

    def _write_bytes(self, path: str, content: bytes) -> None:
        unfinished = f"{path}.{os.getpid()}"
        with self._files.open_output_stream(unfinished) as stream:
            stream.write(content)
        self._sync(unfinished)
        self._files.move(unfinished, path)
        self._sync(path.rpartition("/")[0])

    def _sync(self, path: str) -> None:
        """Have it on disk: the broker forgets what the lake has. Object stores do that anyway."""
        if isinstance(self._files, pafs.LocalFileSystem):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    # --- reading --------------------------------------------------------------------------------

    def files(self, table: str) -> list[LakeFile]:
        """Return the files that together have every captured row once, in order of numbers."""
        return [one for one, inside in self._all_files(table) if not inside]

    def leftovers(self, table: str) -> list[LakeFile]:
        """Return files whose rows another one has."""
        return [one for one, inside in self._all_files(table) if inside]

    def _all_files(self, table: str) -> Iterator[tuple[LakeFile, bool]]:
        found = pafs.FileSelector(self._path(table), allow_not_found=True, recursive=True)
        files = []
        for info in self._files.get_file_info(found):
            folder, _, name = info.path.rpartition("/")
            if info.type == pafs.FileType.File and name.endswith(_SUFFIX) and name[0] != ".":
                first, last = name.removesuffix(_SUFFIX).split("-")
                files.append(LakeFile(folder, int(first), int(last), info.size))
        files.sort(key=lambda one: (one.folder, one.first, -one.last))
        whole: LakeFile | None = None
        for one in files:
            inside = whole is not None and one.within(whole)
            if not inside:
                whole = one
            yield one, inside

    def paths(self, table: str) -> list[str]:
        """Return where Spark finds the files that `files` names."""
        mark = self.place.partition("://")
        start = f"{mark[0]}://" if mark[1] else ""
        return [f"{start}{one.path}" for one in self.files(table)]

    def resume_at(self, table: str) -> dict[int, int]:
        """Return, by partition, the number that follows what is there without a hole.

        What lies behind a hole was left by a batch that did not come to its end: it goes.
        """
        following: dict[int, int] = {}
        for one in sorted(self.files(table), key=lambda one: one.first):
            partition = one.partition
            if one.first == following.setdefault(partition, one.first):
                following[partition] = one.last + 1
            else:
                self._files.delete_file(one.path)
        return following

    # --- compaction -----------------------------------------------------------------------------

    def compact(self, table: str, size: int) -> tuple[int, int]:
        """Merge neighbouring files of a folder into ones of about `size` bytes.

        The newest day is still growing: its files wait until there are a few of them, so that rows
        are not copied again and again. Return how many files were merged, and into how many. Only
        one process may do this at a time; the table may be written meanwhile, since what is written
        again lies inside a file that has it.
        """
        self.tidy(table)
        files = self.files(table)
        newest = max((one.date for one in files), default="")
        last_of = {one.folder: one for one in files}
        before = after = 0
        for group in _groups(files, size):
            growing = group[-1].date == newest and group[-1] == last_of[group[-1].folder]
            if growing and len(group) < _GROWING_MIN:
                continue
            merged = pa.concat_tables([self._read(one) for one in group])
            self._put(group[0].folder, group[0].first, group[-1].last, merged, "merged")
            before += len(group)
            after += 1
        self.tidy(table)
        return before, after

    def tidy(self, table: str) -> None:
        """Remove files that were merged into others."""
        for one in self.leftovers(table):
            self._files.delete_file(one.path)

    def _read(self, one: LakeFile) -> pa.Table:
        with self._files.open_input_file(one.path) as source:
            # The table itself, without columns made of the names of its folders.
            return pq.ParquetFile(source).read()


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
        raise InvalidArgument(f"files of {size} bytes cannot be made")
    group: list[LakeFile] = []
    for one in files:
        full = sum(member.size for member in group) + one.size > size
        # Over a hole nothing is merged: what belongs there may still be written.
        apart = bool(group) and one.first != group[-1].last + 1
        if group and (one.folder != group[0].folder or full or apart):
            if len(group) > 1:
                yield group
            group = []
        group.append(one)
    if len(group) > 1:
        yield group
