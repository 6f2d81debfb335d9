"""Stamp: the ordinals and the EnqueuedTimeUtc of messages that are being stored."""

from __future__ import annotations

from onibus.core.log import Log
from onibus.core.numbering import Numbering
from onibus.core.records import WriteBatch
from onibus.core.subscription import Subscription


def stamp(
    log: Log,
    numbering: Numbering,
    subscription: Subscription,
    count: int,
    wall: int,
    out: WriteBatch,
) -> tuple[int, int, int]:
    """Take up to `count` consecutive ordinals; return (first, how many, stamp).

    The stamp never runs backwards, whatever the wall clock does (S4). After the counter has rolled
    over, an ordinal whose number is still in use is passed over (S8), which may cut a batch in two.
    """
    log.last_stamp = max(wall, log.last_stamp)
    if log.next_ordinal + count > numbering.span:
        while _in_use(log.next_ordinal, numbering, subscription):
            log.next_ordinal += 1
            subscription.depart([log.next_ordinal - 1], out)
        for taken in range(1, count):
            if _in_use(log.next_ordinal + taken, numbering, subscription):
                count = taken
                break
    first = log.next_ordinal
    log.next_ordinal += count
    return first, count, log.last_stamp


def _in_use(ordinal: int, numbering: Numbering, subscription: Subscription) -> bool:
    """Tell whether the ordinal's number is that of a message that is still there."""
    return any(subscription.is_live(earlier) for earlier in numbering.earlier(ordinal))
