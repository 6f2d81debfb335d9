"""Holes: rows between the start and the end of a lake's table that the lake does not have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onibus.core.errors import LogGap
from onibus.spark.lake_manifest import FileRow, Progress


def uncovered(progress: Progress, rows: Sequence[FileRow]) -> Iterator[tuple[int, int, int]]:
    """Yield ranges between a table's start and its end that neither files nor gaps have."""
    known = [(row.partition, row.first, row.last) for row in rows]
    known += [(gap.partition, gap.first, gap.last) for gap in progress.gaps]
    by_partition: dict[int, list[tuple[int, int]]] = {}
    for partition, first, last in sorted(known):
        by_partition.setdefault(partition, []).append((first, last))
    for partition, (start, end) in enumerate(zip(progress.start, progress.next, strict=True)):
        at = start
        for first, last in by_partition.get(partition, ()):
            if first > at:
                yield partition, at, first - 1
            at = max(at, last + 1)
        if at < end:
            yield partition, at, end - 1


def hole(address: str, lost: str, first: int, last: int) -> LogGap:
    """Return the error of a lake that lacks rows which the server no longer has."""
    return LogGap(
        f"{lost}, and {address} does not have them: nothing was captured. Record a gap of this "
        "lake with --accept-gap, or capture into another lake",
        first,
        last,
    )
