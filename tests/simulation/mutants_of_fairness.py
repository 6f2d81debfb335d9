"""Deliberate mistakes in fair delivery: noisy groups, and the message that comes next (B10)."""

from __future__ import annotations

from typing import Any

from onibus.core import fair_queue, noise
from tests.simulation.mutating import Mutant

_FAIR = ("fair", "fair-spread")


def hear_nothing(original: Any) -> Any:
    return lambda self, now: {}


def forget_the_silence(original: Any) -> Any:
    """A group stays noisy however long it sends nothing."""

    def noisy(self: Any, now: int) -> dict[str, int]:
        active, self._active = self._active, dict.fromkeys(self._active, now)
        try:
            return dict(original(self, now))
        finally:
            self._active = active

    return noisy


def serve_the_oldest(original: Any) -> Any:
    """Among noisy groups the one that waits longest comes first."""

    def take(self: Any, limit: int, below: int, noisy: dict[str, int]) -> Any:
        return original(self, limit, below, dict.fromkeys(noisy, 0))

    return take


def count_no_time(original: Any) -> Any:
    return lambda self, now: self._landed.clear()


def keep_the_old_order(original: Any) -> Any:
    """Messages that were passed once wait behind all others, though their group is quiet."""

    def take(self: Any, limit: int, below: int, noisy: dict[str, int]) -> Any:
        queues = dict.fromkeys(self._queues, 0)
        return original(self, limit, below, noisy | queues)

    return take


def lose_a_queue(original: Any) -> Any:
    """A message that was passed is not found when it is settled in another way."""
    return lambda self, ordinal: super(fair_queue.FairQueue, self).remove(ordinal)


OF_FAIRNESS = {
    "no group is noisy": Mutant(noise.Noise, "noisy", hear_nothing, _FAIR),
    "silence does not end noise": Mutant(noise.Noise, "noisy", forget_the_silence, _FAIR),
    "released messages took no time": Mutant(noise.Noise, "finish", count_no_time, _FAIR),
    "noisy groups come by age": Mutant(
        fair_queue.FairQueue, "_take_noisy", serve_the_oldest, _FAIR
    ),
    "a quiet group stays behind": Mutant(
        fair_queue.FairQueue, "_take_quiet", keep_the_old_order, _FAIR
    ),
    "a passed message cannot be removed": Mutant(
        fair_queue.FairQueue, "remove", lose_a_queue, _FAIR
    ),
}
