"""Erase: every row that a deleted partition has in its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.records import (
    ATTEMPTS,
    BLOCK_INDEX,
    BLOCKS,
    COUNTERS,
    DUPLICATES,
    GONE,
    HOLDS,
    MARKS,
    SESSIONS,
    WriteBatch,
)

if TYPE_CHECKING:
    from onibus.core.partition import Partition


def erase(partition: Partition, out: WriteBatch) -> None:
    """Delete the rows of a partition whose entity is gone.

    What a slice of sealing or merging ids had under way is found and deleted at the next opening.
    """
    subscription = partition.subscription
    key = (partition.partition, subscription.number)
    for place in partition.log.places:
        out.delete(BLOCKS, (place.block,))
        out.delete(BLOCK_INDEX, (place.block,))
    for ordinal in subscription.marks:
        out.delete(MARKS, (*key, ordinal))
    for first in subscription.gone.firsts:
        out.delete(GONE, (*key, first))
    for epoch in subscription.holds:
        out.delete(HOLDS, (*key, epoch))
    for session_id in subscription.sessions.kept():
        out.delete(SESSIONS, (*key, session_id))
    for attempt_id in subscription.attempts:
        out.delete(ATTEMPTS, (*key, attempt_id))
    for slot in range(len(partition.recent_duplicates)):
        out.delete(DUPLICATES, (partition.partition, slot))
    out.delete(COUNTERS, (partition.partition,))
    partition.ids.erase(out)
