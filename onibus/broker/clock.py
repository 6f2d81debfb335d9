"""Time: what the machine says, and the bus's own.

`wall` is for stamps: what people call the time; it may jump. `now` is *bus time*: wall time at the
start plus monotonic time since, and never before anything the stores have seen. Every deadline is
in bus time, so a clock that jumps neither fires timers nor freezes them (S4).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the machine says, in milliseconds."""

    def wall(self) -> int: ...

    def monotonic(self) -> int: ...


class SystemClock:
    """The machine's own clocks."""

    def wall(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1_000_000


class MovableClock(SystemClock):
    """The machine's own clocks, and the time that a test lets pass besides (X10)."""

    def __init__(self) -> None:
        self._passed = 0

    def wall(self) -> int:
        return super().wall() + self._passed

    def monotonic(self) -> int:
        return super().monotonic() + self._passed

    def advance(self, ms: int) -> None:
        """Let time pass at once."""
        self._passed += ms


class BusClock:
    """Bus time on top of a machine's clock."""

    def __init__(self, clock: Clock) -> None:
        self.machine = clock
        self._offset = clock.wall() - clock.monotonic()
        #: wall time less bus time
        self._ahead = 0

    def not_before(self, seen: int) -> None:
        """Bus time goes on from what a store has seen, if that is later."""
        self._offset = max(self._offset, seen - self.machine.monotonic())

    def wall(self) -> int:
        return self.wall_at(self.now())

    def wall_at(self, now: int) -> int:
        """Return the wall time of a moment that was just now in bus time.

        The two clocks do not tick together, so that their difference comes out a millisecond larger
        or smaller as it happens. It is taken over only when it differs by more: equal times of
        messages are equal deadlines.
        """
        ahead = self.machine.wall() - self.now()
        if abs(ahead - self._ahead) > 1:
            self._ahead = ahead
        return now + self._ahead

    def now(self) -> int:
        return self.machine.monotonic() + self._offset
