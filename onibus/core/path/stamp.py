"""Stamp: the ordinals and the EnqueuedTimeUtc of messages that are being stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from onibus.core.errors import InvalidOperation
from onibus.core.numbering import ORDINALS_END
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition


def stamp(partition: Partition, count: int, wall: int, out: WriteBatch) -> tuple[int, int, int]:
    """Take up to `count` consecutive ordinals; return (first, how many, stamp).

    The stamp never runs backwards, whatever the wall clock does (S4). After the counter has rolled
    over, an ordinal whose sequence number is still in use is skipped (S8), which may split a batch.
    """
    log = partition.log
    log.last_stamp = max(wall, log.last_stamp)
    if log.next_ordinal + count > partition.numbering.span:
        while _in_use(partition, log.next_ordinal):
            pass_over(partition, log.next_ordinal + 1, out)
        for taken in range(1, count):
            if _in_use(partition, log.next_ordinal + taken):
                count = taken
                break
    if log.next_ordinal + count >= ORDINALS_END:
        raise InvalidOperation(f"partition {partition.id} has used all {ORDINALS_END} ordinals")
    first = log.next_ordinal
    log.next_ordinal += count
    return first, count, log.last_stamp


def pass_over(partition: Partition, ordinal: int, out: WriteBatch) -> None:
    """Leave out the ordinals up to that one, without it: no message ever has them."""
    log = partition.log
    assert log.next_ordinal < ordinal < ORDINALS_END
    first, log.next_ordinal = log.next_ordinal, ordinal
    log.complete_from = ordinal
    for subscription in partition.subscriptions.values():
        subscription.depart_run(first, ordinal - 1, out)


def stamps(last: int, walls: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the stamps of messages that were stored one after the other (S4)."""
    stamped: npt.NDArray[np.int64] = np.maximum.accumulate(np.maximum(walls, last))
    return stamped


def _in_use(partition: Partition, ordinal: int) -> bool:
    """Return whether a message still has the ordinal's sequence number."""
    return any(partition.in_use(earlier) for earlier in partition.numbering.earlier(ordinal))
