"""Purge: an owner deletes messages that match a filter (X2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.block import NEVER
from onibus.core.commands import Counted, CountPurgeable, ForgetIds, Purge
from onibus.core.lifecycle import HELD, Input
from onibus.core.path.peek import SLICE_BYTES, live_ordinals, states_of
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription


def purge(partition: Partition, command: Purge, now: int, wall: int, out: WriteBatch) -> Counted:
    """Delete the messages that match among the next `looks`; return how many."""
    subscription = partition.subscriptions[command.subscription]
    states = states_of(command.wanted, dead=False)
    if not command.held:
        states -= HELD
    chosen: list[int] = []
    after = size = 0
    for looked, ordinal in enumerate(live_ordinals(subscription, command.start, states), 1):
        message = subscription.view(ordinal)
        matches, effort = command.wanted.look(message)
        size += effort
        if matches:
            chosen.append(ordinal)
        if looked == command.looks or size > SLICE_BYTES or len(chosen) == command.most:
            after = ordinal + 1
            break
    if command.held:
        chosen = [ordinal for ordinal in chosen if _take_back(subscription, ordinal, out)]
    for ordinal in chosen:
        subscription.change(ordinal, Input.PURGE, out)
    subscription.depart(chosen, out)
    return Counted(len(chosen), after)


def _take_back(subscription: Subscription, ordinal: int, out: WriteBatch) -> bool:
    """Release a message from its receiver; return whether no client holds it now."""
    mark = subscription.marks.get(ordinal)
    if mark is None or mark.hold is None:
        return True
    if mark.hold.until == NEVER:
        # A session, a claim or a multi-partition operation holds it.
        return False
    subscription.change(ordinal, Input.RELEASE, out)
    return True


def count_purgeable(
    partition: Partition, command: CountPurgeable, now: int, wall: int, out: WriteBatch
) -> Counted:
    """Count a slice of the messages that a purge would delete."""
    subscription = partition.subscriptions[command.subscription]
    states = states_of(command.wanted, dead=False) - HELD
    count = size = 0
    for looked, ordinal in enumerate(live_ordinals(subscription, command.start, states)):
        if looked == command.looks or size > SLICE_BYTES:
            return Counted(count, ordinal)
        matches, effort = command.wanted.look(subscription.view(ordinal))
        size += effort
        count += matches
    return Counted(count, 0)


def forget_ids(
    partition: Partition, command: ForgetIds, now: int, wall: int, out: WriteBatch
) -> None:
    """Discard every recorded id."""
    partition.forget_below = partition.log.next_ordinal
    partition.write_counters(out)
