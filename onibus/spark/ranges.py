"""Which numbers are read by which task, and how many of them in one batch: plain arithmetic.

A range is half open: from its start up to, without, its end. Numbers of one partition have no gaps,
so a range has as many rows as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of one partition's log."""

    partition: int
    start: int
    end: int
    #: what the numbers belong to: an entity that was made again has another one
    incarnation: int

    def __len__(self) -> int:
        return max(self.end - self.start, 0)


def split(ranges: Iterable[Range], most: int) -> Iterator[Range]:
    """Cut ranges into equal pieces of at most so many rows; empty ones go."""
    for one in ranges:
        pieces = -(-len(one) // most)
        for at in range(pieces):
            start = one.start + len(one) * at // pieces
            end = one.start + len(one) * (at + 1) // pieces
            yield Range(one.partition, start, end, one.incarnation)


def share(waiting: Mapping[int, int], limit: int) -> dict[int, int]:
    """Divide a limit over partitions by what waits in each; what one does not need others get."""
    given: dict[int, int] = {}
    left = limit
    in_order = sorted(waiting, key=lambda partition: (waiting[partition], partition))
    for at, partition in enumerate(in_order):
        given[partition] = min(waiting[partition], left // (len(in_order) - at))
        left -= given[partition]
    return given
