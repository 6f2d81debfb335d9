"""Ordinals and sequence numbers.

An ordinal is a message's place in its partition's log: it starts at 1, rises by one, never wraps.
The sequence number that users see is its low bits under the partition's index: 48 bits of counter
in a partitioned entity, 63 otherwise. The counter rolls over to zero at the end of its range (S8).

Ordinals are unsigned and have 64 bits, one more than the widest counter. Columns of stores hold
signed integers: `to_column` and `from_column` translate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from onibus.core.limits import COUNTER_BITS, COUNTER_BITS_PARTITIONED

#: All ordinals are lower.
ORDINALS_END = 1 << 64
#: How numpy and `array` keep ordinals.
ORDINAL = np.dtype("<u8")
ORDINAL_CODE = "Q"

#: From here on an ordinal is negative as an integer column has it.
SIGNED_END = 1 << 63

Ordinals = npt.NDArray[np.uint64]


def ordinals_from(first: int, count: int) -> Ordinals:
    """Return consecutive ordinals."""
    return np.arange(first, first + count, dtype=ORDINAL)


def to_column(ordinal: int) -> int:
    """Return an ordinal as an integer column holds it."""
    return ordinal if ordinal < SIGNED_END else ordinal - ORDINALS_END


def from_column(value: int) -> int:
    """Return the ordinal that an integer column holds."""
    return value if value >= 0 else value + ORDINALS_END


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

    def numbers(self, ordinals: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the sequence numbers of many ordinals."""
        return ((ordinals & self._mask) | self._base).astype(np.int64)

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

    def not_below(
        self, number: int, first: int, next_ordinal: int, is_live: Callable[[int], bool]
    ) -> int:
        """Return from which ordinal on, of those from `first` on, a peek at that number continues.

        After a roll-over a number alone gives no order, but no two live messages share one. So a
        peek continues behind the live message with the number before, because clients page that
        way, or else at the live message with that number. If neither exists, the number counts as
        below all ordinals, or above, whichever is nearer on the circle.
        """
        low = number - self._base
        if not 0 < low <= self.span:
            return first if low <= 0 else next_ordinal
        if next_ordinal <= self.span:
            return min(max(low, first), next_ordinal)
        for behind, wanted in ((1, low - 1), (0, low)):
            for ordinal in self.candidates(self.number(wanted), next_ordinal):
                if is_live(ordinal):
                    return ordinal + behind
        youngest = next_ordinal - ((next_ordinal - low) & self._mask)
        if youngest >= first:
            return youngest
        above, below = (low - next_ordinal) & self._mask, (first - low) & self._mask
        return first if below < above else next_ordinal

    def earlier(self, ordinal: int) -> range:
        """Return the ordinals that had the same number before."""
        return range(ordinal - self.span, 0, -self.span)


def partition_index(number: int, partitioned: bool) -> int:
    """Return which partition of its entity a sequence number belongs to."""
    return number >> COUNTER_BITS_PARTITIONED if partitioned else 0
