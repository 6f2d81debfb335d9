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


class BusClock:
    """Bus time on top of a machine's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.monotonic()

    def not_before(self, seen: int) -> None:
        """Bus time goes on from what a store has seen, if that is later."""
        self._offset = max(self._offset, seen - self._clock.monotonic())

    def wall(self) -> int:
        return self._clock.wall()

    def now(self) -> int:
        return self._clock.monotonic() + self._offset
