"""The manifest of a lake: which files count, from where to where they reach, and who writes.

One file has all of it, `_manifest/<version>.json`, and the highest version counts. A commit makes
the next version, which only one of several writers can do, and then removes the one before. A
writer that was replaced finds a higher version than its own: it has committed nothing.
"""

from __future__ import annotations

import msgspec


class FileRow(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A file of a table: its range of the log, its rows, and the digest of its bytes."""

    date: str
    partition: int
    first: int
    last: int
    rows: int
    size: int
    #: SHA-256, in hexadecimal digits
    digest: str


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
    #: the row that comes next
    next: list[int]
    gaps: list[Gap] = []


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One version of what a lake has."""

    version: int = 0
    #: the writer of this version, and where it runs
    token: str = ""
    holder: str = ""
    #: tokens that the lake's readers may have: the last that was confirmed, and those since
    tokens: list[str] = []
    tables: dict[str, Progress] = {}
    files: dict[str, list[FileRow]] = {}


def encode(manifest: Manifest) -> bytes:
    """Return a manifest as JSON."""
    return msgspec.json.encode(manifest)


def decode(content: bytes) -> Manifest:
    """Return the manifest that a file has; a msgspec error if it has none."""
    return msgspec.json.decode(content, type=Manifest)
