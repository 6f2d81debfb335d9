"""Which numbers are read by which task: plain arithmetic.

A range is half open: from its start up to, without, its end. Numbers of one partition have no gaps,
so a range has as many rows as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

#: Instead of an incarnation.
ANY = None


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of one partition's log."""

    partition: int
    start: int
    end: int
    #: the incarnation of the numbers, or ANY; a recreated entity has a different one
    incarnation: int | None

    def __len__(self) -> int:
        return max(self.end - self.start, 0)


def pack(ranges: Iterable[Range], most: int, tasks: int | None = None) -> list[tuple[Range, ...]]:
    """Divide ranges into equal parts of at most `most` rows, but not more parts than `tasks`.

    A part has rows of several partitions if these have few: a task costs as much as reading
    thousands of rows.
    """
    given = [one for one in ranges if len(one)]
    total = sum(map(len, given))
    count = min(-(-total // most), tasks or total)
    parts: list[list[Range]] = [[] for _ in range(count)]
    before, at = 0, 0
    for one in given:
        start = one.start
        while start < one.end:
            end = min(one.end, start + total * (at + 1) // count - before)
            parts[at].append(replace(one, start=start, end=end))
            before, start = before + end - start, end
            at += before == total * (at + 1) // count
    return [tuple(part) for part in parts]
