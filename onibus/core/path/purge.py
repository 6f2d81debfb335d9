"""Purge and undefer: acts of an owner on many messages at once (X2, X3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onibus.core.errors import MessageNotFound
from onibus.core.lifecycle import HELD, Input, State
from onibus.core.path.peek import Filter, live_ordinals, states_of
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition

_DEFERRED = (State.DEFERRED, State.DEAD_LETTERED_DEFERRED)


def purge(partition: Partition, wanted: Filter, limit: int, out: WriteBatch) -> int:
    """Delete at most `limit` messages that a filter means and nobody holds; return how many."""
    subscription = partition.subscription
    states = states_of(wanted, dead=False) - HELD
    chosen = []
    for ordinal in live_ordinals(partition, 0, states):
        if wanted.matches(partition.view(ordinal)):
            chosen.append(ordinal)
            if len(chosen) == limit:
                break
    for ordinal in chosen:
        subscription.change(ordinal, Input.PURGE, out)
    subscription.depart(chosen, out)
    return len(chosen)


def forget_ids(partition: Partition, out: WriteBatch) -> None:
    """Forget every id recorded so far: what was sent before can be sent again."""
    partition.forget_below = partition.log.next_ordinal
    partition.write_counters(out)


def find_undeferrable(partition: Partition, numbers: Sequence[int]) -> list[int]:
    """Return the ordinals of deferred messages that nobody holds, or refuse all of them."""
    ordinals = []
    for number in dict.fromkeys(numbers):
        ordinal = partition.ordinal(number)
        if partition.subscription.state(ordinal) not in _DEFERRED:
            raise MessageNotFound(f"message {number} is not deferred, or it is locked")
        ordinals.append(ordinal)
    return ordinals


def undefer(partition: Partition, ordinals: list[int], out: WriteBatch) -> None:
    """Give deferred messages back to the active ones, at their numbers' places."""
    for ordinal in ordinals:
        partition.subscription.change(ordinal, Input.DUE, out)
