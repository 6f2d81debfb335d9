"""Which numbers are read by which task, and how many of them in one batch: plain arithmetic.

A range is half open: from its start up to, without, its end. Numbers of one partition have no gaps,
so a range has as many rows as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

#: Milliseconds since 1970 after every stamp.
TIME_MAX = 1 << 43


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of one partition's log."""

    partition: int
    start: int
    end: int
    #: the incarnation of the numbers; a recreated entity has a different one
    incarnation: int

    def __len__(self) -> int:
        return max(self.end - self.start, 0)


def split(ranges: Iterable[Range], most: int) -> Iterator[Range]:
    """Cut ranges into equal pieces of at most `most` rows, without empty ones."""
    for one in ranges:
        pieces = -(-len(one) // most)
        for at in range(pieces):
            start = one.start + len(one) * at // pieces
            end = one.start + len(one) * (at + 1) // pieces
            yield Range(one.partition, start, end, one.incarnation)


def share(waiting: Mapping[int, int], limit: int) -> dict[int, int]:
    """Divide a limit over partitions in proportion to the rows that wait in each."""
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    given = {partition: count * limit // total for partition, count in waiting.items()}
    left = limit - sum(given.values())
    by_rest = sorted(waiting, key=lambda one: (-(waiting[one] * limit % total), one))
    for partition in by_rest[:left]:
        given[partition] += 1
    return given


def meeting(
    fill: Callable[[int], float], hint: int | None, last: int = TIME_MAX, enough: float = 0.9
) -> int:
    """Return the time up to which a batch may go, so that all partitions come to the same time.

    `fill` returns how full a batch up to a time is: more than 1 is too full. A batch that is full
    enough ends the search; `hint` is where it begins. A batch up to 0 is empty, one up to `last` is
    too full.
    """
    low, high, step = 0, last, 1_000
    moment = hint
    while high - low > 1:
        if moment is None or not low < moment < high:
            moment = (low + high) // 2
        full = fill(moment)
        if enough <= full <= 1:
            return moment
        low, high = (moment, high) if full <= 1 else (low, moment)
        # Near the hint at first, then farther away each time, until the time is in between.
        found = low > 0 and high < last
        moment = None if hint is None or found else moment + (step if low else -step)
        step *= 2
    return low
