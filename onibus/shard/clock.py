"""Time: what the machine says, and the bus's own (docs/decisions/0020).

Three kinds of time:

- *Durations* (locks, windows, time to live, delays, leases) count in bus time: the time that the
  bus ran, plus the time that it was provably down. It never runs backwards and is never shown.
- *Moments that people give* (scheduled messages) are wall time, as far as it is proven.
- *Stamps* are wall time, and never fall.

The machine's boot clock proves how long the bus was down, or the wall clock if the machine was
restarted. A wall clock that says more than 30 days, or that is earlier than it was, proves nothing:
the bus serves and raises an alarm, and the time in doubt counts for nothing until the clock is
right again or an operator accepts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec

from onibus.core.clock_offsets import ClockOffsets

DAY_MS = 86_400_000
#: The wall clock may step, or say that the bus was down, by as much as this.
PLAUSIBLE_MS = 30 * DAY_MS
#: A machine's clock may be behind by this after a start, until it is synchronised.
SLACK_MS = 60_000
#: A smaller difference between the two clocks is how they tick.
_TICK_MS = 1
#: A larger step moves scheduled messages that wait for their time, and is worth a write.
_STEP_MS = 500
#: The highest age of the record: a down time of over 30 days is known within this.
KEEP_EVERY_MS = 600_000


class Clock(Protocol):
    """What the machine says, in milliseconds.

    A clock may also have `boot()`, which returns what tells this start of the machine from all
    others: with it `monotonic` proves how long a bus was down.
    """

    def wall(self) -> int: ...

    def monotonic(self) -> int:
        """Return the time since the machine started, including the time that it slept."""


class SystemClock:
    """The machine's own clocks."""

    def wall(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> int:
        return _boot_clock() // 1_000_000

    def boot(self) -> str:
        return _boot_id()


#: Linux has a clock that also counts while the machine sleeps; elsewhere the usual one does.
if hasattr(time, "CLOCK_BOOTTIME"):

    def _boot_clock() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

else:

    def _boot_clock() -> int:
        return time.monotonic_ns()


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class MovableClock(SystemClock):
    """The machine's own clocks, plus the time that a test adds (X10)."""

    def __init__(self) -> None:
        self._passed = 0

    def wall(self) -> int:
        return super().wall() + self._passed

    def monotonic(self) -> int:
        return super().monotonic() + self._passed

    def advance(self, ms: int) -> None:
        """Let time pass at once."""
        self._passed += ms


class ClockRecord(msgspec.Struct, frozen=True):
    """The record for the next start: both times of one instant, and how to prove them."""

    #: bus time and proven wall time
    bus: int
    proven: int
    #: the machine's boot clock, and which boot it belongs to
    monotonic: int
    boot: str
    #: the wall clock was plausible
    sure: bool = True
    #: the bus was down for a time that is not proven
    down: bool = False


class BusClock:
    """Bus time on top of a machine's clock."""

    def __init__(self, machine: Clock, on_step: Callable[[], None] = lambda: None) -> None:
        self.machine = machine
        self._boot: str = getattr(machine, "boot", lambda: "")()
        self._base = machine.wall() - machine.monotonic()
        #: the offsets that partitions and protocols show deadlines by
        self.offsets = ClockOffsets()
        #: the wall clock as far as it is proven, less bus time
        self._proven = 0
        #: the wall clock is plausible: it is followed
        self.sure = True
        #: the bus was down for a time that is not proven
        self._down = False
        self._kept: ClockRecord | None = None
        #: called when scheduled messages come due earlier or later than they did
        self._on_step = on_step
        self._told = 0

    # Over restarts

    def resume(self, record: ClockRecord) -> None:
        """Continue from the record, and count the time that the bus was down if it is proven."""
        monotonic = self.machine.monotonic()
        passed = monotonic - record.monotonic
        self.sure, self._down = record.sure, record.down
        if not self._boot or self._boot != record.boot or passed < 0:
            passed = 0
            self.sure, self._down = False, True
        self._base = record.bus + passed - monotonic
        self._proven = record.proven - record.bus
        self._set(self._proven)
        self.observe()

    def record(self) -> ClockRecord | None:
        """Return the record to keep, unless the last one says the same."""
        kept = self._kept
        if kept is not None and (kept.sure, kept.down) == (self.sure, self._down):
            step = self._proven - (kept.proven - kept.bus)
            if abs(step) <= _STEP_MS and self.now() - kept.bus < KEEP_EVERY_MS:
                return None
        return self.record_now()

    def record_now(self) -> ClockRecord:
        """Return the record to keep."""
        now = self.now()
        self._kept = ClockRecord(
            bus=now,
            proven=now + self._proven,
            monotonic=self.machine.monotonic(),
            boot=self._boot,
            sure=self.sure,
            down=self._down,
        )
        return self._kept

    def not_before(self, seen: int) -> None:
        """Let bus time continue from what a store has seen, if that is later."""
        late = seen - self.now()
        if late > 0:
            self._base += late
            if not self._down:
                self._proven -= late
            # Otherwise the bus ran for so long after its clock was kept: that is proven, too.
            self._set(self.offsets.wall - late)
            # That may make the wall clock plausible, and then bus time takes a step.
            self.observe()

    # The wall clock

    def observe(self) -> None:
        """Look at the wall clock, and follow it while it is plausible."""
        ahead = self.machine.wall() - self.now()
        step = ahead - self._proven
        if self.sure and abs(step) <= _TICK_MS:
            return
        furthest_back = -PLAUSIBLE_MS if self.sure else -SLACK_MS
        if furthest_back <= step <= PLAUSIBLE_MS:
            self._follow(ahead)
        else:
            self.sure = False
            self._set(ahead)

    def accept(self) -> None:
        """Take the wall clock for right, because the operator says so."""
        self._follow(self.machine.wall() - self.now())

    def _follow(self, ahead: int) -> None:
        # For so long was the bus down: durations count it from now on.
        passed = max(ahead - self._proven, 0) if self._down else 0
        self.sure, self._down = True, False
        self._base += passed
        self._proven = ahead - passed
        self._set(self._proven)

    def _set(self, ahead: int) -> None:
        """Take over how far the wall clock is ahead of bus time."""
        offsets = self.offsets
        offsets.wall = ahead
        # No scheduled message is early by either clock.
        offsets.moments = min(ahead, self._proven)
        if abs(offsets.moments - self._told) > _STEP_MS:
            self._told = offsets.moments
            self._on_step()

    @property
    def in_doubt_ms(self) -> int:
        """The difference of the wall clock from proven time; 0 while the bus follows the clock."""
        return 0 if self.sure else self.machine.wall() - self.now() - self._proven

    # What time it is

    def now(self) -> int:
        return self.machine.monotonic() + self._base

    def wall(self) -> int:
        return self.wall_at(self.now())

    def wall_at(self, now: int) -> int:
        """Return the wall time of a moment that was just now in bus time.

        The two clocks do not tick together, so that their difference comes out a millisecond larger
        or smaller as it happens. `observe` takes it over only when it differs by more: equal times
        of messages are equal deadlines.
        """
        self.observe()
        return now + self.offsets.wall

    def moment(self) -> int:
        """Return the time by which moments that people give are measured."""
        self.observe()
        return self.now() + self.offsets.moments

    def proven(self) -> int:
        """Return the wall time as far as it is proven."""
        self.observe()
        return self.now() + self._proven
