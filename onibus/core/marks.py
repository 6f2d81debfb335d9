"""Marks: what is known of messages that are not simply waiting, or were delivered before.

After a restart marks are *cold*: their ordinals, states and times in three arrays. The row of one
is read when somebody asks for it, so that many deferred and scheduled messages cost a restart
little.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator

import numpy as np

from onibus.core.block import NEVER
from onibus.core.lifecycle import State, words
from onibus.core.mark import Mark
from onibus.core.message import Message, ReceivedMessage, decode_overlay
from onibus.core.timers import Timers

#: deliveries, due, reason, description, overlay of one mark's row
MarkRow = tuple[int, int, str | None, str | None, bytes | None]

#: What an overlay has besides fields of the message.
FIRST_RECEIVED = "first_received_ms"

_STATES = tuple(State)
#: How a state is told, by its number.
STATE_WORDS = tuple(words(state) for state in State)


class Marks:
    """The marks of one subscription in one partition, by ordinal."""

    __slots__ = (
        "_cold", "_due", "_due_at", "_dues", "_left", "_read", "_states", "_taken", "_timers",
        "hot",
    )  # fmt: skip

    def __init__(self, read: Callable[[int], MarkRow]) -> None:
        self._read = read
        #: the times of those that are not cold
        self._timers = Timers()
        #: those that were made or asked for since the start
        self.hot: dict[int, Mark] = {}
        self.load(array("q"), array("b"), array("q"))

    def load(self, ordinals: array[int], states: array[int], dues: array[int]) -> None:
        """Take up what was found at the start: ordinals in rising order, 0 where nothing is due."""
        self._cold = ordinals
        self._states = states
        self._dues = dues
        self._taken = bytearray(len(ordinals))
        self._left = len(ordinals)
        times = np.frombuffer(dues, "i8") if dues else np.zeros(0, "i8")
        order = np.argsort(times, kind="stable")
        #: places of those that come due by themselves, the earliest first
        self._due = order[np.searchsorted(times[order], 1) :]
        self._due_at = 0

    @property
    def has_cold(self) -> bool:
        """Tell whether a message may have a mark that is not in `hot`."""
        return self._left > 0

    def get(self, ordinal: int) -> Mark | None:
        """Return a message's mark, if it has one."""
        mark = self.hot.get(ordinal)
        if mark is None and self._left:
            at = self._find(ordinal)
            if at >= 0:
                mark = self._warm(at)
                if mark.due:
                    self.watch(ordinal, mark.due)
        return mark

    def state(self, ordinal: int) -> State | None:
        """Return the state of a message that has a mark."""
        mark = self.hot.get(ordinal)
        if mark is not None:
            return mark.state
        if self._left:
            at = self._find(ordinal)
            if at >= 0:
                return _STATES[self._states[at]]
        return None

    def __getitem__(self, ordinal: int) -> Mark:
        mark = self.hot.get(ordinal) or self.get(ordinal)
        assert mark is not None
        return mark

    def __iter__(self) -> Iterator[int]:
        """Yield the ordinals of all marks."""
        yield from self.hot
        for at in range(len(self._cold)):
            if not self._taken[at]:
                yield self._cold[at]

    def _find(self, ordinal: int) -> int:
        at = bisect_left(self._cold, ordinal)
        if at < len(self._cold) and self._cold[at] == ordinal and not self._taken[at]:
            return at
        return -1

    def _warm(self, at: int) -> Mark:
        ordinal = self._cold[at]
        mark = self.hot[ordinal] = Mark(_STATES[self._states[at]])
        mark.deliveries, mark.due, mark.reason, mark.description, mark.overlay = self._read(ordinal)
        mark.stored = True
        self._taken[at] = 1
        self._left -= 1
        return mark

    # What comes due by itself

    def watch(self, ordinal: int, due: int) -> None:
        """A message comes due by itself."""
        self._timers.set(("due", ordinal), due, rank=ordinal)

    def unwatch(self, ordinal: int) -> None:
        """A message does not come due any more."""
        self._timers.cancel(("due", ordinal))

    def is_watched(self, ordinal: int) -> bool:
        return self._timers.is_set(("due", ordinal))

    def next_due(self) -> int:
        """Return the earliest time at which a message comes due."""
        return min(self._first_cold()[0], self._timers.next_due())

    def pop_due(self, now: int) -> int | None:
        """Return the ordinal of a message whose time has come: by time, then by ordinal."""
        cold, hot = self._first_cold(), self._timers.first()
        due, ordinal = min(cold, hot)
        if due > now:
            return None
        if cold < hot:
            self._warm(int(self._due[self._due_at]))
        else:
            self._timers.pop(now)
        return ordinal

    def _first_cold(self) -> tuple[int, int]:
        while self._due_at < len(self._due):
            at = int(self._due[self._due_at])
            if not self._taken[at]:
                return self._dues[at], self._cold[at]
            self._due_at += 1
        return NEVER, NEVER


def apply_mark(received: ReceivedMessage, mark: Mark) -> None:
    """Show on a message what is known of it, besides its state and its deliveries."""
    if mark.reason is not None or mark.description is not None:
        received.dead_letter_reason = mark.reason
        received.dead_letter_description = mark.description
    if mark.overlay is not None:
        message: Message = received.message
        for field, value in decode_overlay(mark.overlay).items():
            if field == FIRST_RECEIVED:
                received.first_received_ms = value
                continue
            setattr(message, field, value)
            message.rewritten = bool(message.as_sent)
