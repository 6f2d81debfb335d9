"""The model's own clock: the three kinds of time as the promises describe them (S4, S6).

It looks at the machine's clocks whenever the bus may, and at the row that a crash left of the bus's
clock. It shares no code with `shard/clock.py`.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from onibus.testing.clock import SimulatedClock
from tests.simulator.mismatch import check, same

_MONTH = 30 * 24 * 3_600 * 1_000
_MINUTE = 60_000


class Moment(NamedTuple):
    """One instant in the three kinds of time."""

    #: durations
    now: int
    #: stamps
    wall: int
    #: moments that people give
    due: int


class BusTime:
    """What time it is on a bus."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        #: bus time and proven wall time, at this value of the boot clock
        self._bus = self._proven = clock.wall()
        self._at = clock.monotonic()
        self.sure = True
        self._down = False

    def _tick(self) -> None:
        """Let both times run on by what the boot clock measured."""
        passed = self._clock.monotonic() - self._at
        self._at += passed
        self._bus += passed
        self._proven += passed

    def look(self) -> None:
        """Look at the wall clock: take it over, or doubt it."""
        self._tick()
        difference = self._clock.wall() - self._proven
        if self.sure:
            self.sure = abs(difference) <= _MONTH
        elif -_MINUTE <= difference <= _MONTH:
            self.sure = True
            if self._down:
                self._bus += max(difference, 0)
                self._down = False
        if self.sure:
            self._proven = self._clock.wall()

    def accept(self) -> None:
        """An operator says that the wall clock is right."""
        self.look()
        if not self.sure:
            if self._down:
                self._bus += max(self._clock.wall() - self._proven, 0)
            self._proven = self._clock.wall()
            self.sure, self._down = True, False

    def restarted(self, row: str | None, seen: int) -> None:
        """The bus was opened again, with that row of its clock; partitions had seen that time."""
        if row is None:
            self.__init__(self._clock)  # type: ignore[misc]
        else:
            kept = json.loads(row)
            self._bus, self._proven = kept["bus"], kept["proven"]
            self.sure, self._down = kept.get("sure", True), kept.get("down", False)
            self._at = self._clock.monotonic()
            if kept["boot"] == self._clock.boot():
                self._bus += self._at - kept["monotonic"]
                self._proven += self._at - kept["monotonic"]
            else:
                self.sure, self._down = False, True
        self.look()
        if seen > self._bus:
            # The bus ran for so long after its clock was kept.
            if self._down:
                self._proven += seen - self._bus
            self._bus = seen
        self.look()

    def at(self) -> Moment:
        """Return what time it is."""
        self.look()
        return Moment(self._bus, self._clock.wall(), min(self._clock.wall(), self._proven))

    def now(self) -> int:
        return self.at().now

    def wall(self) -> int:
        return self._clock.wall()

    def proven(self) -> int:
        self.look()
        return self._proven

    def shown(self, deadline: int) -> int:
        """Return a deadline as the wall clock shows it."""
        return deadline + self._clock.wall() - self.now()


class TrueTime:
    """How long it really was, whatever the clocks say: bus time may not run ahead of that."""

    def __init__(self, clock: SimulatedClock, bus: int) -> None:
        self._clock = clock
        self._began = bus - clock.passed
        #: by how much plausible steps of the wall clock may have been wrong
        self._misled = 0

    def misled(self, ms: int, by_operator: bool = False) -> None:
        """The wall clock is set, or wrong at a start, by that much; or an operator confirms it."""
        if by_operator or abs(ms) <= 2 * _MONTH:
            self._misled += abs(ms)

    def check(self, bus: int, model: int) -> None:
        """Check bus time against the model's, and against the time that really passed."""
        same("bus time", bus, model)
        longest = self._began + self._clock.passed + self._misled
        check(bus <= longest, f"bus time is {bus - longest} ms ahead of the time that passed")
