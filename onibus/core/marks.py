"""Marks: the states of messages that are not simply active, or were delivered before.

After a restart marks are *cold*: their ordinals, states and times in three arrays. A mark's row is
read when a command needs it, so that many deferred and scheduled messages cost a restart little.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from onibus.core.block import NEVER
from onibus.core.lifecycle import State, words
from onibus.core.mark import Mark
from onibus.core.message import Message, ReceivedMessage, decode_overlay
from onibus.core.numbering import ORDINAL_CODE
from onibus.core.timers import Timers

#: deliveries, due, reason, description, overlay of one mark's row
MarkRow = tuple[int, int, str | None, str | None, bytes | None]

#: A field of an overlay that the message does not have.
FIRST_RECEIVED = "first_received_ms"

_STATES = tuple(State)
#: The word for a state, by its number.
STATE_WORDS = tuple(words(state) for state in State)


class Marks:
    """The marks of one subscription in one partition, by ordinal."""

    __slots__ = (
        "_changed", "_cold", "_delayed", "_dues", "_left", "_read", "_scheduled", "_states",
        "_taken", "hot",
    )  # fmt: skip

    def __init__(
        self, read: Callable[[int], MarkRow], changed: Callable[[], None] | None = None
    ) -> None:
        """Read marks by their ordinals; `changed` is called when one is to come due."""
        self._read = read
        self._changed = changed
        #: those that were made or asked for since the start
        self.hot: dict[int, Mark] = {}
        self.load(array(ORDINAL_CODE), array("b"), array("q"))

    def load(self, ordinals: array[int], states: array[int], dues: array[int]) -> None:
        """Load the marks found at the start: ordinals in rising order, 0 if nothing is due."""
        self._cold = ordinals
        self._states = states
        self._dues = dues
        self._taken = bytearray(len(ordinals))
        self._left = len(ordinals)
        times = np.frombuffer(dues, "i8") if dues else np.zeros(0, "i8")
        scheduled = np.frombuffer(states, "i1") == State.SCHEDULED if states else times != 0
        #: messages due after a duration (bus time), and at a moment (wall time)
        self._delayed = _Agenda(self, times, ~scheduled, self._changed)
        self._scheduled = _Agenda(self, times, scheduled, self._changed)
        if self._changed is not None:
            self._changed()

    @property
    def has_cold(self) -> bool:
        """Return whether a message may have a mark that is not in `hot`."""
        return self._left > 0

    def get(self, ordinal: int) -> Mark | None:
        """Return a message's mark, if it has one."""
        mark = self.hot.get(ordinal)
        if mark is None and self._left:
            at = self._find(ordinal)
            if at >= 0:
                mark = self.warm(at)
                if mark.due:
                    self.watch(ordinal, mark)
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

    def reason(self, ordinal: int) -> str | None:
        """Return why a message was dead-lettered; a cold mark stays cold."""
        mark = self.hot.get(ordinal)
        return self._read(ordinal)[2] if mark is None else mark.reason

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

    def cold(self, at: int) -> tuple[int, int]:
        """Return when the mark at that place is due, and its ordinal."""
        return self._dues[at], self._cold[at]

    def warm(self, at: int) -> Mark:
        """Read the mark at that place; from now on it is hot."""
        ordinal = self._cold[at]
        mark = self.hot[ordinal] = Mark(_STATES[self._states[at]])
        mark.deliveries, mark.due, mark.reason, mark.description, mark.overlay = self._read(ordinal)
        mark.stored = True
        self._taken[at] = 1
        self._left -= 1
        return mark

    # Due messages

    def watch(self, ordinal: int, mark: Mark) -> None:
        """Watch when a message is due: a scheduled one by the wall clock, others in bus time."""
        agenda = self._scheduled if mark.state is State.SCHEDULED else self._delayed
        agenda.timers.set(("due", ordinal), mark.due, rank=ordinal)

    def unwatch(self, ordinal: int) -> None:
        """Stop watching when a message is due."""
        for agenda in (self._delayed, self._scheduled):
            agenda.timers.cancel(("due", ordinal))

    def is_watched(self, ordinal: int) -> bool:
        agendas = (self._delayed, self._scheduled)
        return any(agenda.timers.is_set(("due", ordinal)) for agenda in agendas)

    def next_due(self) -> int:
        """Return the earliest bus time at which a delayed message comes due."""
        return self._delayed.next_due()

    def next_scheduled(self) -> int:
        """Return the earliest moment, by the wall clock, of a scheduled message."""
        return self._scheduled.next_due()

    def pop_due(self, now: int) -> int | None:
        """Return a message whose delay is over at that bus time: by time, then by ordinal."""
        return self._delayed.pop(now)

    def pop_scheduled(self, moment: int) -> int | None:
        """Return a message that is scheduled for that moment or before it."""
        return self._scheduled.pop(moment)

    def first_untaken(self, places: npt.NDArray[Any], at: int) -> int:
        """Return the index of the first of these places, from `at` on, that is still cold."""
        while at < len(places) and self._taken[places[at]]:
            at += 1
        return at


class _Agenda:
    """Messages that are due by one clock: cold marks in order, and timers of the others."""

    __slots__ = ("_at", "_marks", "_places", "timers")

    def __init__(
        self,
        marks: Marks,
        times: npt.NDArray[Any],
        chosen: npt.NDArray[np.bool_],
        changed: Callable[[], None] | None,
    ) -> None:
        self._marks = marks
        self.timers = Timers(changed)
        order = np.argsort(times, kind="stable")
        #: places of those that are cold, the earliest first
        self._places = order[(times[order] > 0) & chosen[order]]
        self._at = 0

    def next_due(self) -> int:
        if self._at == len(self._places):
            return self.timers.next_due()
        return min(self._first_cold()[0], self.timers.next_due())

    def pop(self, until: int) -> int | None:
        cold, hot = self._first_cold(), self.timers.first()
        due, ordinal = min(cold, hot)
        if due > until:
            return None
        if cold < hot:
            self._marks.warm(int(self._places[self._at]))
        else:
            self.timers.pop(until)
        return ordinal

    def _first_cold(self) -> tuple[int, int]:
        self._at = self._marks.first_untaken(self._places, self._at)
        if self._at == len(self._places):
            return NEVER, NEVER
        return self._marks.cold(int(self._places[self._at]))


def apply_mark(received: ReceivedMessage, mark: Mark, shown: Callable[[int], int]) -> None:
    """Copy a mark's reason and overlay to a message; its state and deliveries are set elsewhere."""
    if mark.reason is not None or mark.description is not None:
        received.dead_letter_reason = mark.reason
        received.dead_letter_description = mark.description
    if mark.overlay is not None:
        message: Message = received.message
        for field, value in decode_overlay(mark.overlay).items():
            if field == FIRST_RECEIVED:
                received.first_received_ms = shown(value)
                continue
            setattr(message, field, value)
            message.rewritten = bool(message.as_sent)
