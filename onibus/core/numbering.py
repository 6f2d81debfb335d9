"""Ordinals and sequence numbers.

An ordinal is a message's place in its partition's log: it starts at 1, rises by one, never wraps.
The sequence number that users see is its low bits under the partition's index: 48 bits of counter
in a partitioned entity, 63 otherwise. The counter rolls over to zero at the end of its range (S8).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

from onibus.core.limits import COUNTER_BITS, COUNTER_BITS_PARTITIONED


class Numbering:
    """Turns ordinals of one partition into sequence numbers and back."""

    __slots__ = ("_base", "_mask", "span")

    def __init__(self, index: int, partitioned: bool, bits: int | None = None) -> None:
        if bits is None:
            bits = COUNTER_BITS_PARTITIONED if partitioned else COUNTER_BITS
        assert 0 <= index < 0x8000
        self.span = 1 << bits
        self._mask = self.span - 1
        self._base = index << COUNTER_BITS_PARTITIONED if partitioned else 0

    def number(self, ordinal: int) -> int:
        return self._base | (ordinal & self._mask)

    def each(self, ordinals: Iterable[int]) -> list[int]:
        """Return the sequence numbers of some ordinals."""
        base, mask = self._base, self._mask
        return [base | (ordinal & mask) for ordinal in ordinals]

    def numbers(self, ordinals: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the sequence numbers of many ordinals."""
        return (ordinals & self._mask) | self._base

    def candidates(self, number: int, next_ordinal: int) -> tuple[int, ...]:
        """Return the ordinals that may bear the number, the youngest first."""
        low = number - self._base
        if not 0 <= low < self.span:
            return ()
        if next_ordinal <= self.span:
            # It has not rolled over yet.
            return (low,) if 0 < low < next_ordinal else ()
        youngest = next_ordinal - 1 - ((next_ordinal - 1 - low) & self._mask)
        return tuple(range(youngest, 0, -self.span))

    def earlier(self, ordinal: int) -> range:
        """Return the ordinals that had the same number before."""
        return range(ordinal - self.span, 0, -self.span)


def partition_index(number: int, partitioned: bool) -> int:
    """Return which partition of its entity a sequence number belongs to."""
    return number >> COUNTER_BITS_PARTITIONED if partitioned else 0
