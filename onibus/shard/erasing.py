"""Erasing: the rows of a deleted entity leave their stores slice by slice."""

from __future__ import annotations

from itertools import islice

from onibus.core.path.erase import erase, unsubscribe
from onibus.core.records import WriteBatch
from onibus.shard.partition import ShardPartition
from onibus.shard.slices import CallSoon, in_slices

#: Rows deleted in one slice.
ROWS_A_SLICE = 1_000


def erase_rows(call_soon: CallSoon, partition: ShardPartition, number: int) -> None:
    """Delete the rows of a partition, or those of one subscription in it.

    If the store fails in between, its next opening deletes the rest.
    """
    core, store, loop = partition.online(), partition.store, partition.store.loop
    assert loop is not None
    rows = unsubscribe(core, number) if number else erase(core)

    def step() -> bool:
        if store.loop is not loop or (number and partition.core is not core):
            return False
        out = WriteBatch()
        some = list(islice(rows, ROWS_A_SLICE))
        for table, key in some:
            if table is None:
                first, last = key
                core.log.release(first, last, out)
            else:
                out.delete(table, key)
        if number:
            core.write_counters(out)
        store.write(out)
        return len(some) == ROWS_A_SLICE

    in_slices(call_soon, step)
