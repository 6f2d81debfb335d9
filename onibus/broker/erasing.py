"""Erasing: the rows of a deleted entity leave their stores slice by slice."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from onibus.broker.slices import in_slices
from onibus.core.path.erase import erase, unsubscribe
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.broker.broker import Broker
    from onibus.broker.entity import Seat

#: Rows deleted in one slice.
ROWS_A_SLICE = 1_000


def erase_rows(broker: Broker, seat: Seat, number: int) -> None:
    """Delete what an entity has in a partition: all of it, or what a subscription has (number).

    A store that fails in between forgets the rest when it is opened again.
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
        broker.flush_later(store)
        return len(some) == ROWS_A_SLICE

    in_slices(broker, step)
