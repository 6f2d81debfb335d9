"""Schedule: messages that wait for their time, until they are enqueued or cancelled (S5–S7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.commands import Cancel
from onibus.core.errors import MessageNotFound
from onibus.core.lifecycle import Input, State
from onibus.core.path.admit import Prepared, time_to_live
from onibus.core.path.enqueue import store
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition


def activate(
    partition: Partition, ordinals: list[int], now: int, wall: int, out: WriteBatch
) -> None:
    """Enqueue scheduled messages as if they were sent now: new numbers, stamps and expiry (S6)."""
    prepared = []
    for ordinal in ordinals:
        block, position = partition.log.entry(ordinal)
        message = block.message(position)
        ttl = time_to_live(message, partition.settings)
        prepared.append(Prepared(message, block.row(position), (), ttl))
        partition.subscription.change(ordinal, Input.ACTIVATE, out)
    store(partition, prepared, now, wall, out, activated=True)
    partition.subscription.depart(ordinals, out)


def cancel(partition: Partition, command: Cancel, now: int, wall: int, out: WriteBatch) -> None:
    """Delete scheduled messages."""
    subscription = partition.subscriptions[command.subscription]
    ordinals = find_scheduled(partition, command)
    for ordinal in ordinals:
        subscription.change(ordinal, Input.CANCEL, out)
    subscription.depart(ordinals, out)


def find_scheduled(partition: Partition, command: Cancel) -> list[int]:
    """Return the ordinals of scheduled messages; if one is not found, reject all (S5)."""
    subscription = partition.subscriptions[command.subscription]
    ordinals = []
    missing = []
    for number in dict.fromkeys(command.numbers):
        try:
            ordinal = subscription.ordinal(number)
        except MessageNotFound:
            missing.append(number)
            continue
        if subscription.state(ordinal) is State.SCHEDULED:
            ordinals.append(ordinal)
        else:
            missing.append(number)
    if missing:
        raise MessageNotFound(f"not scheduled, already cancelled or already active: {missing}")
    return ordinals
