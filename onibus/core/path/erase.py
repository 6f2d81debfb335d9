"""Erase: every row that a deleted partition, or a deleted subscription, has in its store.

They can be many, so they are deleted in slices, each in its own commit. A crash leaves rows that
belong to no entity: the next opening of the store deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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
    Table,
)

#: A row to be deleted; or, without a table, rows of the log that a subscription wants no longer.
Erased = tuple[Table | None, Any]
#: Rows of the log that are released at once.
RELEASED_AT_ONCE = 500

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription


def erase(partition: Partition) -> Iterator[Erased]:
    """Yield the rows of a partition whose entity is gone.

    What a slice of sealing or merging ids had under way is found and deleted at the next opening.
    """
    for place in partition.log.places:
        yield BLOCKS, (place.block,)
        yield BLOCK_INDEX, (place.block,)
    for subscription in partition.subscriptions.values():
        yield from _rows(subscription)
    for slot in range(len(partition.recent_duplicates)):
        yield DUPLICATES, (partition.id, slot)
    for repair in partition.log.repairs:
        yield REPAIRS, (partition.id, to_column(repair.ordinal))
    yield COUNTERS, (partition.id,)
    yield from partition.ids.erase()


def unsubscribe(partition: Partition, number: int) -> Iterator[Erased]:
    """Take a subscription out of a topic; yield its rows, and those of the log that it wanted."""
    subscription = partition.subscriptions.pop(number)
    # Until then the log counts it among those that want its rows.
    partition.releasing += 1
    return _unsubscribed(partition, subscription, partition.log.next_ordinal)


def _unsubscribed(partition: Partition, subscription: Subscription, below: int) -> Iterator[Erased]:
    yield from _rows(subscription)
    gone = subscription.gone
    ordinal = gone.next_outside(1)
    while ordinal < below:
        end = next((first for first, _ in gone.runs(ordinal)), below)
        for first in range(ordinal, end, RELEASED_AT_ONCE):
            yield None, (first, min(first + RELEASED_AT_ONCE, end) - 1)
        ordinal = gone.next_outside(end)
    partition.releasing -= 1


def _rows(subscription: Subscription) -> Iterator[Erased]:
    key, hot = subscription.key, subscription.marks.hot
    for ordinal in list(subscription.marks):
        yield MARKS, (*key, to_column(ordinal))
        # Free the memory row by row as well: freeing all at once would block as long.
        hot.pop(ordinal, None)
    for first in subscription.gone.firsts:
        yield GONE, (*key, to_column(first))
    for epoch in subscription.holds:
        yield HOLDS, (*key, epoch)
    for session_id in subscription.sessions.kept():
        yield SESSIONS, (*key, session_id)
    for attempt_id in subscription.attempts:
        yield ATTEMPTS, (*key, attempt_id)
    yield from subscription.outcomes.erase()
