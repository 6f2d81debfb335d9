"""The subscriptions that want each row of a topic's block.

`Members` is what a block is stored with: for each subscription the rows that it takes. As bytes, in
the column `fans` of `block_index`, little-endian:

    u8   1 if the ordinals of the rows follow (compaction left gaps), 0 if they are first, …
    u64  the ordinal of each row, if so
    then for each subscription that takes any row:
    i64  its number; 0 is the topic itself, whose scheduled messages wait there
    u8   1 if it takes all rows; 0 if a bit for each row follows, lowest first, in whole bytes

`Fans` is what memory keeps of it: how many subscriptions want each row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from onibus.core.errors import Damaged
from onibus.core.numbering import ORDINAL, Ordinals, ordinals_from

_ENTRY = struct.Struct("<qB")
#: Positions that are gathered before they are counted.
_COUNTED_AT_ONCE = 10_000


class Fans:
    """How many subscriptions want each row of one block."""

    __slots__ = ("counts", "ordinals")

    def __init__(self, ordinals: Ordinals, counts: npt.NDArray[Any]) -> None:
        #: rising, one for each row
        self.ordinals = ordinals
        self.counts = counts

    def live(self) -> int:
        """Return how many rows any subscription wants."""
        return int(np.count_nonzero(self.counts))

    def release(self, first: int, last: int) -> int:
        """Release these rows for one subscription; return how many no subscription wants now."""
        start, end = np.searchsorted(self.ordinals, np.array((first, last + 1), ORDINAL))
        if end - start == 1:
            self.counts[start] -= 1
            return int(self.counts[start] == 0)
        chosen = self.counts[start:end]
        chosen -= 1
        return int(len(chosen) - np.count_nonzero(chosen))

    def wanted(self) -> set[int]:
        """Return the ordinals that any subscription wants."""
        return set(self.ordinals[self.counts > 0].tolist())


class Members:
    """The rows of a new block, and which subscription takes which of them."""

    __slots__ = ("_added", "_counts", "_ordinals", "_size", "_skips", "_taken", "_whole")

    def __init__(self, ordinals: Ordinals) -> None:
        self._ordinals = ordinals
        self._skips = int(ordinals[-1] - ordinals[0]) + 1 != len(ordinals)
        self._size = (len(ordinals) + 7) // 8
        self._counts = np.zeros(len(ordinals), np.uint16)
        #: positions that are not counted yet, once per subscription
        self._added: list[int] = []
        #: subscriptions that take all rows
        self._whole = 0
        #: the bits of the rows that a subscription takes; None: all of them
        self._taken: dict[int, bytes | None] = {}

    def place(self, first: int) -> None:
        """Give the rows consecutive ordinals from this one on."""
        self._ordinals = ordinals_from(first, len(self._ordinals))

    def add(self, number: int, positions: list[int]) -> None:
        """Add a subscription that takes the rows at these positions, in rising order."""
        if len(positions) == len(self._ordinals):
            self._taken[number] = None
            self._whole += 1
        elif len(positions):
            self._taken[number] = _bits(positions, self._size)
            self._added += positions
            if len(self._added) > _COUNTED_AT_ONCE:
                self._count()

    def add_flags(self, number: int, taken: npt.NDArray[np.bool_]) -> None:
        """Add a subscription that takes the rows with a flag; `recount` counts them."""
        if taken.all():
            self._taken[number] = None
        elif taken.any():
            self._taken[number] = np.packbits(taken, bitorder="little").tobytes()

    def recount(self, counts: npt.NDArray[Any]) -> None:
        """Set how many take each row: fewer than were added, if some were released since."""
        self._counts = counts

    def _count(self) -> None:
        if self._added:
            counts = np.bincount(self._added, minlength=len(self._counts))
            self._counts += counts.astype(np.uint16)
            self._added = []

    def remove(self, number: int) -> None:
        """Remove a subscription and the rows that it was given."""
        bits = self._taken.pop(number, b"")
        if bits is None:
            self._whole -= 1
        elif bits:
            taken = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
            self._counts -= taken[: len(self._counts)]

    def fans(self) -> Fans:
        """Return how many take each row."""
        self._count()
        self._counts += np.uint16(self._whole)
        self._whole = 0
        return Fans(self._ordinals, self._counts)

    def encode(self) -> bytes:
        """Return it as it is stored."""
        parts = [b"\1" + self._ordinals.astype(ORDINAL).tobytes() if self._skips else b"\0"]
        for number in sorted(self._taken):
            bits = self._taken[number]
            parts.append(_ENTRY.pack(number, bits is None))
            if bits is not None:
                parts.append(bits)
        return b"".join(parts)


def _bits(positions: list[int], size: int) -> bytes:
    """Return `size` bytes with the bits at these positions set."""
    if size > 64:
        flags = np.zeros(8 * size, np.uint8)
        flags[positions] = 1
        return np.packbits(flags, bitorder="little").tobytes()
    bits = 0
    for position in positions:
        bits |= 1 << position
    return bits.to_bytes(size, "little")


def decode_fans(fans: bytes, first: int, rows: int) -> tuple[Ordinals, dict[int, Ordinals]]:
    """Return the ordinals of a block's rows, and those that each subscription takes."""
    return _ordinals(fans, first, rows), dict(_taken(fans, first, rows))


def _ordinals(fans: bytes, first: int, rows: int) -> Ordinals:
    if fans[:1] == b"\1":
        if len(fans) < 1 + 8 * rows:
            raise Damaged("the fans of a block end within its ordinals")
        return np.frombuffer(fans, ORDINAL, rows, 1)
    return ordinals_from(first, rows)


def _taken(fans: bytes, first: int, rows: int) -> Iterator[tuple[int, Ordinals]]:
    ordinals = _ordinals(fans, first, rows)
    size = (rows + 7) // 8
    at = 1 + (8 * rows if fans[:1] == b"\1" else 0)
    while at < len(fans):
        if at + _ENTRY.size > len(fans):
            raise Damaged("the fans of a block end within an entry")
        number, everything = _ENTRY.unpack_from(fans, at)
        at += _ENTRY.size
        if everything:
            yield number, ordinals
            continue
        if at + size > len(fans):
            raise Damaged("the fans of a block end within its bits")
        bits = np.unpackbits(np.frombuffer(fans, np.uint8, size, at), bitorder="little")
        at += size
        yield number, ordinals[bits[:rows].astype(bool)]
