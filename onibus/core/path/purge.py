"""Purge and undefer: acts of an owner on many messages at once (X2, X3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onibus.core.block import NEVER
from onibus.core.errors import MessageNotFound
from onibus.core.inspection import Filter
from onibus.core.lifecycle import HELD, Input, State
from onibus.core.path.peek import SLICE_BYTES, live_ordinals, states_of
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription

_DEFERRED = (State.DEFERRED, State.DEAD_LETTERED_DEFERRED)


def purge(
    subscription: Subscription,
    wanted: Filter,
    start: int,
    limit: int,
    out: WriteBatch,
    held: bool = False,
    most: int | None = None,
) -> tuple[int, int]:
    """Delete what a filter means and nobody holds, among the next `limit` messages from `start` on.

    With `held` also what receivers hold, by locks of their own; the first `most` of them, where it
    is told. Return how many, and where to go on: 0 at the end.
    """
    states = states_of(wanted, dead=False)
    if not held:
        states -= HELD
    chosen: list[int] = []
    after = size = 0
    for looked, ordinal in enumerate(live_ordinals(subscription, start, states), 1):
        message = subscription.view(ordinal)
        size += len(message.body)
        if wanted.matches(message):
            chosen.append(ordinal)
        if looked == limit or size > SLICE_BYTES or len(chosen) == most:
            after = ordinal + 1
            break
    if held:
        chosen = [ordinal for ordinal in chosen if _take_back(subscription, ordinal, out)]
    for ordinal in chosen:
        subscription.change(ordinal, Input.PURGE, out)
    subscription.depart(chosen, out)
    return len(chosen), after


def _take_back(subscription: Subscription, ordinal: int, out: WriteBatch) -> bool:
    """Take a message from its receiver; tell whether nobody holds it now."""
    mark = subscription.marks.get(ordinal)
    if mark is None or mark.hold is None:
        return True
    if mark.hold.until == NEVER:
        # A session, a claim or a work holds it.
        return False
    subscription.change(ordinal, Input.RELEASE, out)
    return True


def forget_ids(partition: Partition, out: WriteBatch) -> None:
    """Forget every id recorded so far: what was sent before can be sent again."""
    partition.forget_below = partition.log.next_ordinal
    partition.write_counters(out)


def find_undeferrable(subscription: Subscription, numbers: Sequence[int]) -> list[int]:
    """Return the ordinals of deferred messages that nobody holds, or refuse all of them."""
    ordinals = []
    for number in dict.fromkeys(numbers):
        ordinal = subscription.ordinal(number)
        if subscription.state(ordinal) not in _DEFERRED:
            raise MessageNotFound(f"message {number} is not deferred, or it is locked")
        ordinals.append(ordinal)
    return ordinals


def undefer(subscription: Subscription, ordinals: list[int], out: WriteBatch) -> None:
    """Give deferred messages back to the active ones, at their numbers' places."""
    for ordinal in ordinals:
        subscription.change(ordinal, Input.DUE, out)
