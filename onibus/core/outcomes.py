"""The outcomes of a subscription's messages: a second log with its own numbers (R4).

One row of the table `outcomes` has the outcomes first … last of one command or of time passing, at
`time` (bus time). Numbers start at 1 and rise without gaps. `entries` is, little-endian,

    i64  the ordinal of each message
    u8   the outcome of each (Fate)
    then the MessagePack array of [reason, description] of those that were dead-lettered, in order

Outcomes are kept if the entity has a retention or a named reader; otherwise none are written or
numbered. Rows are deleted once they are older than the retention and no named reader needs them.
The newest row is never deleted, only emptied (size 0), so that the numbers continue from it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from onibus.core.errors import Damaged
from onibus.core.lifecycle import Input
from onibus.core.numbering import ORDINAL
from onibus.core.records import OUTCOMES, Table, WriteBatch
from onibus.core.settings import LogSettings

#: Rows that one slice of trimming deletes.
TRIMMED_A_SLICE = 1_000

Reason = tuple[str | None, str | None]


class Fate(IntEnum):
    """What can become of a message. The values are stored: they never change."""

    COMPLETED = 0  #: by its receiver, or by receive and delete
    DEAD_LETTERED = 1
    EXPIRED = 2
    CANCELLED = 3
    ACTIVATED = 4  #: its scheduled time was due; it was enqueued under a new sequence number
    FORWARDED = 5  #: it was forwarded to another entity, or resubmitted
    PURGED = 6


#: The outcomes of inputs; all other inputs only change where a message waits.
FATES: dict[Input, Fate] = {
    Input.COMPLETE: Fate.COMPLETED,
    Input.TAKE: Fate.COMPLETED,
    Input.DEAD_LETTER: Fate.DEAD_LETTERED,
    Input.EXPIRE: Fate.EXPIRED,
    Input.CANCEL: Fate.CANCELLED,
    Input.ACTIVATE: Fate.ACTIVATED,
    Input.PURGE: Fate.PURGED,
    Input.MOVE: Fate.FORWARDED,
}


class OutcomePlace(NamedTuple):
    """One row of the table, as far as memory knows it."""

    first: int
    last: int
    #: when it was written, by the wall clock
    stamp: int


class OutcomeLog:
    """The outcomes of one subscription in one partition."""

    __slots__ = (
        "_committing_below", "_emptied", "_firsts", "_lasts", "_noted", "_reasons", "_sizes",
        "_stamps", "_times", "kept", "key", "next_number", "readers", "visible_below",
    )  # fmt: skip

    def __init__(self, key: tuple[int, int]) -> None:
        self.key = key
        #: whether outcomes are written at all
        self.kept = False
        #: the position of each named reader
        self.readers: dict[str, int] = {}
        self.next_number = 1
        #: numbers below this are durable
        self.visible_below = 1
        self._firsts = array("q")
        self._lasts = array("q")
        #: when rows were written, in bus time and by the wall clock
        self._times = array("q")
        self._stamps = array("q")
        self._sizes = array("q")
        #: the first number of the row that only stands for the numbers that were given
        self._emptied = 0
        self._noted: list[tuple[int, Fate]] = []
        self._reasons: list[Reason] = []
        self._committing_below = 1

    @property
    def first_number(self) -> int:
        """The number from which all outcomes exist."""
        return self._firsts[0] if self._firsts else self.next_number

    # Writing

    def note(self, ordinal: int, fate: Fate, reason: str | None, description: str | None) -> None:
        """Note the outcome of a message; `write` follows before the command ends."""
        self._noted.append((ordinal, fate))
        if fate is Fate.DEAD_LETTERED:
            self._reasons.append((reason, description))

    @property
    def noted(self) -> bool:
        """Whether there is something to write."""
        return bool(self._noted)

    def write(self, now: int, stamp: int, out: WriteBatch) -> None:
        """Write the gathered outcomes as one row, of that bus time and that stamp."""
        if self._emptied:
            out.delete(OUTCOMES, (*self.key, self._emptied))
            self._emptied = 0
        entries = encode(self._noted, self._reasons)
        first, last = self.next_number, self.next_number + len(self._noted) - 1
        out.put(OUTCOMES, (*self.key, first, last, now, len(entries), entries, stamp))
        self._take_up(first, last, now, len(entries), stamp)
        self._noted, self._reasons = [], []

    def load(self, rows: list[Any]) -> None:
        """Take up the rows that the store has, without their entries, in order."""
        for _, _, first, last, time, size, stamp in rows:
            if size:
                # Rows of format 1 have one time for both.
                self._take_up(first, last, time, size, time if stamp is None else stamp)
            else:
                self._emptied = first
                self.next_number = last + 1
        self.visible_below = self.next_number

    def _take_up(self, first: int, last: int, time: int, size: int, stamp: int) -> None:
        self._firsts.append(first)
        self._lasts.append(last)
        self._times.append(time)
        self._sizes.append(size)
        self._stamps.append(stamp)
        self.next_number = last + 1

    def commit_started(self) -> None:
        self._committing_below = self.next_number

    def commit_finished(self) -> None:
        self.visible_below = self._committing_below

    # Reading

    def places(self, start: int, end: int, limit: int) -> list[OutcomePlace]:
        """Return up to `limit` rows with outcomes from start on and below end."""
        at = bisect_right(self._lasts, start - 1)
        found: list[OutcomePlace] = []
        while at < len(self._firsts) and self._firsts[at] < end and len(found) < limit:
            found.append(OutcomePlace(self._firsts[at], self._lasts[at], self._stamps[at]))
            at += 1
        return found

    def since(self, moment: int) -> int:
        """Return the number of the first outcome of a time or after it; else the next to come."""
        # The wall clock may have been set back, so these times need not rise.
        young = np.flatnonzero(np.array(self._stamps) >= moment)
        first = self._firsts[young[0]] if len(young) else self.next_number
        return min(first, self.visible_below)

    # Letting go

    def trim(self, settings: LogSettings, now: int, out: WriteBatch) -> bool:
        """Delete some of the rows that are no longer kept; return whether more are left."""
        needless = bisect_right(self._lasts, self._floor(settings, now) - 1)
        count = min(needless, TRIMMED_A_SLICE)
        if not count:
            return False
        for first in self._firsts[:count]:
            out.delete(OUTCOMES, (*self.key, first))
        if count == len(self._firsts):
            self._emptied = self._firsts[-1]
            out.put(OUTCOMES, (*self.key, self._emptied, self._lasts[-1], now, 0, None, None))
        for column in (self._firsts, self._lasts, self._times, self._sizes, self._stamps):
            del column[:count]
        return needless > count

    def _floor(self, settings: LogSettings, now: int) -> int:
        """Return the number from which on outcomes are kept."""
        floor = self.next_number
        if settings.retention_ms is not None:
            floor = self._first_after(now - settings.retention_ms)
        if not self.readers:
            return floor
        position = min(self.readers.values())
        if settings.reader_age_ms_max is not None:
            position = max(position, self._first_after(now - settings.reader_age_ms_max))
        if settings.reader_bytes_max is not None:
            position = max(position, self._first_within(settings.reader_bytes_max))
        return min(floor, position)

    def _first_after(self, moment: int) -> int:
        at = bisect_right(self._times, moment)
        return self._firsts[at] if at < len(self._firsts) else self.next_number

    def _first_within(self, size: int) -> int:
        """Return the number from which on all outcomes together have at most that size."""
        if sum(self._sizes) <= size:
            return self.first_number
        first = self.next_number
        for at in range(len(self._sizes) - 1, -1, -1):
            size -= self._sizes[at]
            if size < 0:
                break
            first = self._firsts[at]
        return first

    def erase(self) -> Iterator[tuple[Table, Any]]:
        """Yield all rows: the subscription is gone."""
        for first in self._firsts:
            yield OUTCOMES, (*self.key, first)
        if self._emptied:
            yield OUTCOMES, (*self.key, self._emptied)


def encode(noted: list[tuple[int, Fate]], reasons: list[Reason]) -> bytes:
    """Return the entries of one row."""
    ordinals = np.array([ordinal for ordinal, _ in noted], ORDINAL).tobytes()
    return ordinals + bytes([fate for _, fate in noted]) + msgspec.msgpack.encode(reasons)


def decode(
    entries: bytes, count: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8], list[Reason]]:
    """Return the ordinals and fates of one row, and the reasons of those dead-lettered."""
    try:
        ordinals = np.frombuffer(entries, ORDINAL, count)
        fates = np.frombuffer(entries, np.uint8, count, 8 * count)
        reasons = msgspec.msgpack.decode(memoryview(entries)[9 * count :], type=list[Reason])
    except (ValueError, msgspec.DecodeError) as error:
        raise Damaged(f"a row of outcomes cannot be read: {error}") from error
    if len(reasons) != int((fates == Fate.DEAD_LETTERED).sum()) or int(fates.max()) >= len(Fate):
        raise Damaged("a row of outcomes contradicts itself")
    return ordinals, fates, reasons
