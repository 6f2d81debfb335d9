"""Retention of a lake: rows that are older than the lake keeps them are removed, by the file.

A file has rows of one day, UTC. It goes once the whole day is too old, so rows stay for the time
that was asked, and up to a day longer. Files leave a partition from its start, so that the rest is
complete from a later start. The commit of the Delta log that removes files has that start (`starts`
of delta_log.py): the two never differ, and a removed range is not a hole.

Errors go with their messages. An outcome stays as long as its message, if the lake has both.

    errors, messages, outcomes     the order of the commits

A capture that is cut off between them removes the rest the next time. In this order no error is
without a message, and no message without an outcome that the lake had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from onibus.core.errors import InvalidArgument
from onibus.spark.delta_log import DeltaLog
from onibus.spark.delta_schema import greatest
from onibus.spark.lake import ERRORS, KEEP_MS, MESSAGES, OUTCOMES
from onibus.spark.lake_manifest import FileRow, Manifest

#: Rows are removed by the day.
KEEP_MS_MIN = 86_400_000


class Expired(NamedTuple):
    """Files of a table that go, and where its partitions start without them."""

    table: str
    files: list[FileRow]
    starts: dict[int, int]


def check_keep(keep_ms: int) -> int:
    """Return how long a lake keeps rows, 0 for all; reject less than a day."""
    if keep_ms and keep_ms < KEEP_MS_MIN:
        raise InvalidArgument(
            f"a lake cannot keep rows for {keep_ms:,} ms: retention removes whole days, so use at "
            "least 1d"
        )
    return keep_ms


def files_of(logs: Mapping[str, DeltaLog]) -> dict[str, list[FileRow]]:
    """Return the files of each table."""
    return {table: log.files() for table, log in logs.items()}


def expired(
    manifest: Manifest, rows: Mapping[str, Sequence[FileRow]], now_ms: float
) -> list[Expired]:
    """Return which of the tables' files to remove now, in the order of their commits."""
    if not manifest.keep_ms:
        return []
    # No row is older than 1970, and a calendar has no day before the year 1.
    since_ms = max(now_ms - manifest.keep_ms, 0)
    day = f"{datetime.fromtimestamp(since_ms / 1_000, UTC):%Y-%m-%d}"
    messages = _of(MESSAGES, manifest, rows, lambda row: row.date < day)
    progress = manifest.tables.get(MESSAGES)
    begins = (
        messages.starts if progress is None else dict(enumerate(progress.start)) | messages.starts
    )

    def is_over(row: FileRow) -> bool:
        """Return whether a file of outcomes is too old, and its messages are gone."""
        last = greatest(row.stats, "sequence_number")
        gone = progress is None or (isinstance(last, int) and last < begins[row.partition])
        return row.date < day and gone

    outcomes = _of(OUTCOMES, manifest, rows, is_over)
    errors = [row for row in rows[ERRORS] if row.last < begins.get(row.partition, 0)]
    return [one for one in (Expired(ERRORS, errors, {}), messages, outcomes) if one.files]


def is_due(manifest: Manifest, logs: Mapping[str, DeltaLog], now_ms: float) -> bool:
    """Return whether a capture without new rows has something to remove."""
    if not manifest.keep_ms:
        return False
    removed = any(log.has_removed(now_ms - KEEP_MS) for log in logs.values())
    return removed or bool(expired(manifest, files_of(logs), now_ms))


def _of(
    table: str,
    manifest: Manifest,
    rows: Mapping[str, Sequence[FileRow]],
    is_over: Callable[[FileRow], bool],
) -> Expired:
    """Return the files of each partition up to the first that stays, and where it starts then."""
    progress = manifest.tables.get(table)
    found = Expired(table, [], {})
    if progress is None:
        return found
    left: set[int] = set()
    for row in sorted(rows[table], key=lambda row: (row.partition, row.first)):
        at = row.partition
        if at in left:
            continue
        if is_over(row):
            found.files.append(row)
            found.starts[at] = progress.next[at]
            continue
        left.add(at)
        if at in found.starts:
            found.starts[at] = row.first
    return found
