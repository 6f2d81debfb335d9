"""Alarms: failures of stores and partitions, kept for operators and passed to a listener.

A store that stays down raises the same alarm with each attempt to open it. All are counted and
listed; the listener gets one, until the error changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from onibus.core.errors import StoreFailed

#: Alarms that are kept: a store that stays down would add to them without end.
ALARMS_KEPT = 1_000

#: Gets the place and the error of an alarm.
Listener = Callable[[str, BaseException], None]


class Alarms:
    """The last failures."""

    def __init__(self) -> None:
        self.kept: deque[str] = deque(maxlen=ALARMS_KEPT)
        self.count = 0
        #: the last error of each place, for a listener that comes later
        self._last: dict[str, BaseException] = {}
        self._listener: Listener | None = None

    def raise_one(self, where: str, error: BaseException) -> None:
        """Count, list and pass on an alarm."""
        self.kept.append(f"{where}: {error}")
        self.count += 1
        last = self._last.get(where)
        self._last[where] = error
        if self._listener is not None and str(last) != str(error):
            self._listener(where, error)

    def raise_once(self, where: str, error: BaseException) -> None:
        """Raise a lasting alarm: it counts once until it is over, even if its error changes."""
        if where not in self._last:
            self.raise_one(where, error)

    def over(self, where: str) -> None:
        """End the alarm of a place: its next one is new."""
        self._last.pop(where, None)

    def opened(self, where: str, notice: str) -> None:
        """End the alarm of an opened store; raise one if the store has a notice."""
        self.over(where)
        if notice:
            self.raise_one(where, StoreFailed(notice))

    def listen(self, listener: Listener) -> None:
        """Call the listener for the last alarm of each place so far, and for every new one."""
        self._listener = listener
        for where, error in self._last.items():
            listener(where, error)
