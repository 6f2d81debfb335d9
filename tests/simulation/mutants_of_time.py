"""Deliberate mistakes about time: clocks that are wrong or set, and what is shown of them."""

from __future__ import annotations

from typing import Any

from onibus.core import clock_offsets
from onibus.core import partition as partition_module
from onibus.shard import clock
from tests.simulation.mutating import Mutant


def believe_any_clock(original: Any) -> Any:
    def observe(self: Any) -> None:
        self._follow(self.machine.wall() - self.now())

    return observe


def count_no_down_time(original: Any) -> Any:
    def follow(self: Any, ahead: int) -> None:
        self._down = False
        original(self, ahead)

    return follow


def count_steps_as_down_time(original: Any) -> Any:
    def follow(self: Any, ahead: int) -> None:
        self._down = True
        original(self, ahead)

    return follow


def forget_the_boot(original: Any) -> Any:
    def resume(self: Any, record: Any) -> None:
        self._boot = record.boot
        original(self, record)

    return resume


def follow_a_clock_in_doubt(original: Any) -> Any:
    def set_(self: Any, ahead: int) -> None:
        original(self, ahead)
        self.offsets.moments = ahead

    return set_


def show_bus_time(original: Any) -> Any:
    def shown(self: Any, deadline: int) -> int:
        return deadline

    return shown


def leave_stamps_in_the_future(original: Any) -> Any:
    def set_stamps_back(self: Any, wall: int, out: Any) -> Any:
        before = self.log.last_stamp
        repair = original(self, wall, out)
        self.log.last_stamp = before
        return repair

    return set_stamps_back


_TIMED = ("plain", "fading", "mortal")
_CLOCK = clock.BusClock

OF_TIME = {
    "any clock is believed": Mutant(_CLOCK, "observe", believe_any_clock, _TIMED),
    "down time counts for nothing": Mutant(_CLOCK, "_follow", count_no_down_time, _TIMED),
    "steps count as down time": Mutant(_CLOCK, "_follow", count_steps_as_down_time, _TIMED),
    "every boot is the same": Mutant(_CLOCK, "resume", forget_the_boot, _TIMED),
    "schedules follow a clock in doubt": Mutant(_CLOCK, "_set", follow_a_clock_in_doubt, _TIMED),
    "bus time is shown": Mutant(clock_offsets.ClockOffsets, "shown", show_bus_time, _TIMED),
    "stamps stay in the future": Mutant(
        partition_module.Partition, "set_stamps_back", leave_stamps_in_the_future, _TIMED
    ),
}
