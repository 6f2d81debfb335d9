"""Deliberate mistakes in what holds messages: changes that no record says."""

from __future__ import annotations

from typing import Any

from onibus.core import subscription
from tests.simulation.mutating import Mutant

_LOCKED = ("plain", "fading", "spread")


def renew_and_write_nothing(original: Any) -> Any:
    """A command that changes state and writes nothing."""

    def renew(self: Any, hold: Any, ordinal: int, until: int) -> None:
        hold.ordinals[ordinal] = until
        self.watch_hold(hold)

    return renew


def change_unnoticed(original: Any) -> Any:
    """A partition that does not know that it changed."""

    def changed(self: Any, hold: Any) -> None:
        before = self.partition.dirty
        original(self, hold)
        self.partition.dirty = before

    return changed


OF_HOLDS = {
    "a renewal is not stored": Mutant(
        subscription.Subscription, "renew", renew_and_write_nothing, _LOCKED
    ),
    "a partition does not notice a change": Mutant(
        subscription.Subscription, "_changed", change_unnoticed, _LOCKED
    ),
}
