"""Alarms: what went wrong with stores and partitions, kept for whoever asks, told to who listens.

A store that stays down raises the same alarm with each attempt to open it. All are counted, and
listed; the listener is told once, until the words change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from onibus.core.errors import StoreFailed

#: Alarms that are kept: a store that stays down would add to them for ever.
ALARMS_KEPT = 1_000

#: Hears where something went wrong, and what.
Listener = Callable[[str, BaseException], None]


class Alarms:
    """The last things that went wrong."""

    def __init__(self) -> None:
        self.kept: deque[str] = deque(maxlen=ALARMS_KEPT)
        self.count = 0
        #: what was last said of each place, for those who listen later
        self._last: dict[str, BaseException] = {}
        self._listener: Listener | None = None

    def raise_one(self, where: str, error: BaseException) -> None:
        """Something went wrong."""
        self.kept.append(f"{where}: {error}")
        self.count += 1
        last = self._last.get(where)
        self._last[where] = error
        if self._listener is not None and str(last) != str(error):
            self._listener(where, error)

    def raise_once(self, where: str, error: BaseException) -> None:
        """Raise an alarm that lasts: it counts once until it is over, whatever its words."""
        if where not in self._last:
            self.raise_one(where, error)

    def over(self, where: str) -> None:
        """All is well there again: the next alarm of it is news."""
        self._last.pop(where, None)

    def opened(self, where: str, notice: str) -> None:
        """A store is open; raise an alarm if something about it was odd."""
        self.over(where)
        if notice:
            self.raise_one(where, StoreFailed(notice))

    def listen(self, listener: Listener) -> None:
        """Tell somebody of every new alarm, and of the last one of each place so far."""
        self._listener = listener
        for where, error in self._last.items():
            listener(where, error)
