"""Undefer: deferred messages become active again, at the places of their sequence numbers (X3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.commands import Undefer
from onibus.core.errors import MessageNotFound
from onibus.core.lifecycle import Input, State
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition

_DEFERRED = (State.DEFERRED, State.DEAD_LETTERED_DEFERRED)


def undefer(partition: Partition, command: Undefer, now: int, wall: int, out: WriteBatch) -> None:
    """Make deferred messages active."""
    subscription = partition.subscriptions[command.subscription]
    for ordinal in find_undeferrable(partition, command):
        subscription.change(ordinal, Input.DUE, out)


def find_undeferrable(partition: Partition, command: Undefer) -> list[int]:
    """Return the ordinals of deferred messages that are not locked, or reject all of them."""
    subscription = partition.subscriptions[command.subscription]
    ordinals = []
    for number in dict.fromkeys(command.numbers):
        ordinal = subscription.ordinal(number)
        if subscription.state(ordinal) not in _DEFERRED:
            raise MessageNotFound(f"message {number} is not deferred, or it is locked")
        ordinals.append(ordinal)
    return ordinals
