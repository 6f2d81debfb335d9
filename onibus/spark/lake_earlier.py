"""The files of lakes that earlier versions made.

    <table>/date=<date>/partition=<partition>/<first>-<last>.parquet

Version 0.1.0 has no list of files: each file counts whose range is not inside that of another. In
later lakes of this layout the manifest lists them. A capture converts both (lake_migration.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from onibus.spark.lake_files import LakeFiles
from onibus.spark.lake_manifest import FileRow

_SUFFIX = ".parquet"


def earlier_folder(entity: str) -> str:
    """Return the folder that an entity had."""
    return quote(entity, safe="")


def earlier_name(table: str, row: FileRow) -> str:
    """Return the name of a file below the entity's folder."""
    numbers = f"{row.first:019}-{row.last:019}{_SUFFIX}"
    return f"{table}/date={row.date}/partition={row.partition:02}/{numbers}"


def is_earlier(path: str) -> bool:
    """Return whether a path in a table's folder is of this layout."""
    return path.startswith("date=")


def files_found(store: LakeFiles, table: str) -> Iterator[FileRow]:
    """Yield the files that count in a lake of version 0.1.0; their rows are not known."""
    files = []
    for name, size in store.sizes(table).items():
        folder, _, last = name.rpartition("/")
        if "date=" not in folder or not last.endswith(_SUFFIX) or last[0] == ".":
            continue
        numbers = last.removesuffix(_SUFFIX).split("-")
        date = folder.rpartition("date=")[2].partition("/")[0]
        partition = int(folder.rpartition("partition=")[2])
        files.append(FileRow(date, partition, int(numbers[0]), int(numbers[1]), -1, size, ""))
    files.sort(key=lambda row: (row.date, row.partition, row.first, -row.last))
    whole: FileRow | None = None
    for row in files:
        if whole is None or not _within(row, whole):
            whole = row
            yield row


def _within(row: FileRow, other: FileRow) -> bool:
    same = (row.date, row.partition) == (other.date, other.partition)
    return same and other.first <= row.first and row.last <= other.last
