"""Erase: every row that a deleted partition, or a deleted subscription, has in its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.numbering import to_column
from onibus.core.records import (
    ATTEMPTS,
    BLOCK_INDEX,
    BLOCKS,
    COUNTERS,
    DUPLICATES,
    GONE,
    HOLDS,
    MARKS,
    REPAIRS,
    SESSIONS,
    WriteBatch,
)

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription


def erase(partition: Partition, out: WriteBatch) -> None:
    """Delete the rows of a partition whose entity is gone.

    What a slice of sealing or merging ids had under way is found and deleted at the next opening.
    """
    for place in partition.log.places:
        out.delete(BLOCKS, (place.block,))
        out.delete(BLOCK_INDEX, (place.block,))
    for subscription in partition.subscriptions.values():
        _erase_rows(subscription, out)
    for slot in range(len(partition.recent_duplicates)):
        out.delete(DUPLICATES, (partition.id, slot))
    for repair in partition.log.repairs:
        out.delete(REPAIRS, (partition.id, to_column(repair.ordinal)))
    out.delete(COUNTERS, (partition.id,))
    partition.ids.erase(out)


def unsubscribe(partition: Partition, number: int, out: WriteBatch) -> None:
    """Delete a subscription of a topic: what nobody else wants goes."""
    subscription = partition.subscriptions.pop(number)
    _erase_rows(subscription, out)
    gone = subscription.gone
    ordinal = gone.next_outside(1)
    while ordinal < partition.log.next_ordinal:
        end = next((first for first, _ in gone.runs(ordinal)), partition.log.next_ordinal)
        partition.log.release(ordinal, end - 1, out)
        ordinal = gone.next_outside(end)


def _erase_rows(subscription: Subscription, out: WriteBatch) -> None:
    key = subscription.key
    for ordinal in subscription.marks:
        out.delete(MARKS, (*key, to_column(ordinal)))
    for first in subscription.gone.firsts:
        out.delete(GONE, (*key, to_column(first)))
    for epoch in subscription.holds:
        out.delete(HOLDS, (*key, epoch))
    for session_id in subscription.sessions.kept():
        out.delete(SESSIONS, (*key, session_id))
    for attempt_id in subscription.attempts:
        out.delete(ATTEMPTS, (*key, attempt_id))
    subscription.outcomes.erase(out)
