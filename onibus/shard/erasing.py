"""Erasing: the rows of a deleted entity leave their stores slice by slice."""

from __future__ import annotations

from itertools import islice

from onibus.core.path.erase import erase, unsubscribe
from onibus.core.records import WriteBatch
from onibus.shard.seat import Seat
from onibus.shard.slices import CallSoon, in_slices

#: Rows deleted in one slice.
ROWS_A_SLICE = 1_000


def erase_rows(call_soon: CallSoon, seat: Seat, number: int) -> None:
    """Delete the rows of a partition, or those of one subscription in it.

    If the store fails in between, its next opening deletes the rest.
    """
    partition, store, loop = seat.online(), seat.store, seat.store.loop
    assert loop is not None
    rows = unsubscribe(partition, number) if number else erase(partition)

    def step() -> bool:
        if store.loop is not loop or (number and seat.partition is not partition):
            return False
        out = WriteBatch()
        some = list(islice(rows, ROWS_A_SLICE))
        for table, key in some:
            if table is None:
                first, last = key
                partition.log.release(first, last, out)
            else:
                out.delete(table, key)
        if number:
            partition.write_counters(out)
        loop.write(out)
        store.flush_later()
        return len(some) == ROWS_A_SLICE

    in_slices(call_soon, step)
