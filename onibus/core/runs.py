"""Ordinals as runs: a million untouched messages are one pair of numbers."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from onibus.core.numbering import ORDINAL, ORDINAL_CODE, ORDINALS_END

#: Runs of positions in a block: pairs, or, if there are many, an array of firsts and of lasts.
Spans = list[tuple[int, int]] | npt.NDArray[Any]
#: Positions from which on arrays are faster than lists.
_MANY = 256


class Runs:
    """A set of ordinals, kept as runs (first, last) in rising order."""

    __slots__ = ("count", "firsts", "lasts")

    def __init__(self) -> None:
        self.firsts = array(ORDINAL_CODE)
        self.lasts = array(ORDINAL_CODE)
        self.count = 0

    def __contains__(self, ordinal: int) -> bool:
        at = bisect_right(self.firsts, ordinal) - 1
        return at >= 0 and ordinal <= self.lasts[at]

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, first: int, last: int) -> tuple[int, int, int]:
        """Add a run that is not in the set yet.

        Return the run it became part of, and the first of a later run that was swallowed, or -1.
        """
        firsts, lasts = self.firsts, self.lasts
        self.count += last - first + 1
        if not lasts or first > lasts[-1]:
            # New ordinals follow all others: nothing to search, nothing to move.
            if lasts and lasts[-1] == first - 1:
                lasts[-1] = last
            else:
                firsts.append(first)
                lasts.append(last)
            return firsts[-1], last, -1
        at = bisect_right(firsts, first)
        assert at == 0 or lasts[at - 1] < first
        assert at == len(firsts) or last < firsts[at]
        swallowed = -1
        if at < len(firsts) and firsts[at] == last + 1:
            swallowed = firsts[at]
            firsts[at] = first
            last = lasts[at]
        else:
            firsts.insert(at, first)
            lasts.insert(at, last)
        if at and lasts[at - 1] == first - 1:
            lasts[at - 1] = last
            del firsts[at], lasts[at]
            first = firsts[at - 1]
        return first, last, swallowed

    def extend_by(self, spans: Spans, first: int, count: int) -> None:
        """Add runs of that many positions, each moved by `first`, behind all others."""
        if isinstance(spans, list):
            if spans:
                start, end = spans[0]
                self.add(first + start, first + end)
                self.count += count - (end - start + 1)
                if len(spans) > 1:
                    self.firsts.extend([first + start for start, _ in spans[1:]])
                    self.lasts.extend([first + end for _, end in spans[1:]])
            return
        starts, ends = spans + ORDINAL.type(first)
        firsts, lasts = self.firsts, self.lasts
        before, known = len(firsts), lasts[-1] if lasts else 0
        firsts.frombytes(starts.tobytes())
        lasts.frombytes(ends.tobytes())
        self.count += count
        assert firsts[before] > known or not before
        if before and firsts[before] == known + 1:
            # The first of them continues the last run.
            del firsts[before], lasts[before - 1]

    def extend(self, runs: list[tuple[int, int]]) -> None:
        """Add runs, in rising order and apart from each other, that follow all others."""
        if runs:
            self.add(*runs[0])
            assert self.lasts[-1] == runs[0][1]
            more = runs[1:]
            self.firsts.extend([first for first, _ in more])
            self.lasts.extend([last for _, last in more])
            self.count += sum([last - first + 1 for first, last in more])

    def remove(self, ordinal: int) -> bool:
        """Remove one ordinal; return whether it was in."""
        firsts, lasts = self.firsts, self.lasts
        at = bisect_right(firsts, ordinal) - 1
        if at < 0 or ordinal > lasts[at]:
            return False
        self.count -= 1
        first, last = firsts[at], lasts[at]
        if first == last:
            del firsts[at], lasts[at]
        elif ordinal == first:
            firsts[at] = ordinal + 1
        elif ordinal == last:
            lasts[at] = ordinal - 1
        else:
            lasts[at] = ordinal - 1
            firsts.insert(at + 1, ordinal + 1)
            lasts.insert(at + 1, last)
        return True

    def first(self) -> int:
        """Return the lowest ordinal, or ORDINALS_END."""
        return self.firsts[0] if self.firsts else ORDINALS_END

    def take(self, limit: int, below: int, now: int = 0) -> list[int]:
        """Take out and return the lowest ordinals, at most `limit`, all lower than `below`.

        Time matters only in a fair queue (core/fair_queue.py).
        """
        taken: list[int] = []
        firsts, lasts = self.firsts, self.lasts
        used = 0
        while len(taken) < limit and used < len(firsts) and firsts[used] < below:
            first = firsts[used]
            last = min(lasts[used], below - 1, first + limit - len(taken) - 1)
            taken.extend(range(first, last + 1))
            if last < lasts[used]:
                firsts[used] = last + 1
                break
            used += 1
        if used:
            del firsts[:used], lasts[:used]
        self.count -= len(taken)
        return taken

    def overlap(self, first: int, last: int) -> int:
        """Return how many of the ordinals first … last are in the set."""
        total = 0
        at = max(bisect_right(self.firsts, first) - 1, 0)
        while at < len(self.firsts) and self.firsts[at] <= last:
            total += max(0, min(last, self.lasts[at]) - max(first, self.firsts[at]) + 1)
            at += 1
        return total

    def outside(self, ordinals: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return which of these ordinals are not in the set."""
        if not self.firsts or not len(ordinals):
            return np.ones(len(ordinals), bool)
        at = np.searchsorted(np.frombuffer(self.firsts, ORDINAL), ordinals, side="right") - 1
        return (at < 0) | (ordinals > np.frombuffer(self.lasts, ORDINAL)[np.maximum(at, 0)])

    def next_outside(self, ordinal: int) -> int:
        """Return the lowest ordinal from this one on that is not in the set."""
        at = bisect_right(self.firsts, ordinal) - 1
        if at >= 0 and ordinal <= self.lasts[at]:
            return self.lasts[at] + 1
        return ordinal

    def runs(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the runs that reach `start` or are above it."""
        at = max(bisect_right(self.firsts, start) - 1, 0)
        for position in range(at, len(self.firsts)):
            if self.lasts[position] >= start:
                yield max(self.firsts[position], start), self.lasts[position]

    def ordinals(self, start: int = 0) -> Iterator[int]:
        """Yield the ordinals from `start` on, in order."""
        for first, last in self.runs(start):
            yield from range(first, last + 1)


def as_runs(ordinals: list[int]) -> list[tuple[int, int]]:
    """Return ordinals, in any order and each once, as runs in rising order."""
    if not ordinals:
        return []
    ordered = sorted(ordinals)
    if ordered[-1] - ordered[0] + 1 == len(ordered):
        return [(ordered[0], ordered[-1])]
    runs = []
    first = last = ordered[0]
    for ordinal in ordered[1:]:
        if ordinal != last + 1:
            runs.append((first, last))
            first = ordinal
        last = ordinal
    runs.append((first, last))
    return runs


def spans_of(positions: list[int], count: int) -> tuple[Spans, Spans]:
    """Return the runs of some of `count` positions, in rising order, and the gaps between them."""
    if len(positions) == count:
        return [(0, count - 1)] if count else [], []
    if len(positions) >= _MANY:
        found = np.asarray(positions, ORDINAL)
        breaks = np.flatnonzero(np.diff(found) != 1)
        runs = np.stack((found[np.concatenate(([0], breaks + 1))], found[np.append(breaks, -1)]))
        before = np.concatenate((np.array([0], ORDINAL), runs[1] + ORDINAL.type(1)))
        after = np.append(runs[0], ORDINAL.type(count))
        left = before < after
        gaps = np.stack((before[left], after[left] - ORDINAL.type(1)))
        return runs, gaps if gaps.size else []
    pairs = as_runs(positions)
    gaps_of = []
    start = 0
    for first, last in pairs:
        if start < first:
            gaps_of.append((start, first - 1))
        start = last + 1
    if start < count:
        gaps_of.append((start, count - 1))
    return pairs, gaps_of
