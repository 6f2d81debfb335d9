"""The manifest of a lake: where its tables begin, which gaps they have, and who writes.

The Delta log of each table lists its files (delta_log.py). The manifest has what Delta has no place
for, in one file, `_manifest/<version>.json`, and the highest version counts. A commit makes the
next version, which only one of several writers can do, and then removes the one before. A writer
that was replaced finds a higher version than its own: it has committed nothing.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from onibus.spark.decoding.formats import BodyFormat


class FileRow(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A file of a table: its range of the log, its rows, and the digest of its bytes."""

    date: str
    partition: int
    first: int
    last: int
    rows: int
    size: int
    #: SHA-256, in hexadecimal digits, or the first of them
    digest: str
    #: the end of the file's name; empty for files of earlier versions
    attempt: str = ""
    #: what a commit says of a new file: its statistics and columns
    stats: str = ""
    schema: str = ""


class Gap(msgspec.Struct, frozen=True):
    """Rows that were gone before they were captured, and that the owner accepted as missing."""

    partition: int
    first: int
    last: int
    accepted_ms: int


class Progress(msgspec.Struct, frozen=True):
    """How far a table reaches; lists have one number for each partition."""

    #: the first row that the lake has, or will have
    start: list[int]
    #: the row that comes next; in the manifest itself, or a later one
    next: list[int]
    gaps: list[Gap] = []
    #: of outcomes: earlier messages may lack theirs, because the lake began without outcomes
    since: list[int] = []


class Iceberg(msgspec.Struct, frozen=True):
    """Where Iceberg tables of a lake are listed."""

    #: an address, or a name in pyiceberg's configuration; empty for the lake's own file
    catalog: str = ""


#: Layouts of a lake: files by date and partition, Delta tables, Delta tables with the columns
#: of lake_columns.py, and these with Iceberg tables, which an earlier version would not follow.
FOLDERS, DELTA, TYPED, WITH_ICEBERG = 1, 2, 3, 4


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One version of what a lake has."""

    version: int = 0
    layout: int = FOLDERS
    #: the writer of this version, and where it runs
    token: str = ""
    holder: str = ""
    #: tokens that the lake's readers may have: the last that was confirmed, and those since
    tokens: list[str] = []
    tables: dict[str, Progress] = {}
    #: by table: a version that its Delta log has
    versions: dict[str, int] = {}
    #: how bodies are decoded
    body: BodyFormat = BodyFormat()
    #: how long rows stay, in milliseconds; 0 for as long as the lake exists
    keep_ms: int = 0
    #: None without Iceberg tables
    iceberg: Iceberg | None = None
    #: the files of a lake of an earlier version
    files: dict[str, list[FileRow]] = {}


def encode(manifest: Manifest) -> bytes:
    """Return a manifest as JSON."""
    return msgspec.json.encode(manifest)


def is_consistent(manifest: Manifest, tables: Collection[str]) -> bool:
    """Return whether a manifest has only these tables, and each partition once in each list."""
    return all(
        table in tables
        and len(one.start) == len(one.next)
        and len(one.since) in (0, len(one.start))
        and all(number >= 0 for number in (*one.start, *one.next))
        and all(0 <= gap.partition < len(one.start) for gap in one.gaps)
        for table, one in manifest.tables.items()
    )


def decode(content: bytes) -> Manifest:
    """Return the manifest that a file has; a msgspec error if it has none."""
    return msgspec.json.decode(content, type=Manifest)
