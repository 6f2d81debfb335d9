"""Stamp: the ordinals and the EnqueuedTimeUtc of messages that are being stored."""

from __future__ import annotations

from onibus.core.log import Log
from onibus.core.numbering import Numbering
from onibus.core.records import WriteBatch
from onibus.core.subscription import Subscription


def stamp(
    log: Log, numbering: Numbering, subscription: Subscription, count: int, wall: int,
    out: WriteBatch,
) -> tuple[int, int, int]:
    """Take up to `count` consecutive ordinals; return (first, how many, stamp).

    The stamp never runs backwards, whatever the wall clock does (S4). After the counter has rolled
    over, an ordinal whose number is still in use is passed over (S8), which may cut a batch in two.
    """
    log.last_stamp = max(wall, log.last_stamp)
    if log.next_ordinal + count > numbering.span:
        while subscription.is_live(log.next_ordinal - numbering.span):
            log.next_ordinal += 1
            subscription.depart([log.next_ordinal - 1], out)
        for taken in range(1, count):
            if subscription.is_live(log.next_ordinal + taken - numbering.span):
                count = taken
                break
    first = log.next_ordinal
    log.next_ordinal += count
    return first, count, log.last_stamp
