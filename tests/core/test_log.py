"""The log: where rows are, and that damage is noticed, never served."""

from __future__ import annotations

import pytest

from onibus.core.errors import Damaged
from onibus.core.limits import BLOCK_BYTES_MAX
from onibus.core.records import BLOCK_INDEX, BLOCKS, COUNTERS
from tests.core.partition_helpers import Bench


def test_a_large_batch_is_cut_into_blocks() -> None:
    bench = Bench()
    sent = bench.send(*[b"x" * 400_000] * 7)
    assert [one.sequence_number for one in sent] == list(range(1, 8))
    places = bench.partition.log.places
    assert [(p.first, p.last) for p in places] == [(1, 2), (3, 4), (5, 6), (7, 7)]
    assert all(place.size <= BLOCK_BYTES_MAX for place in places)


def test_what_is_not_durable_is_not_shown() -> None:
    bench = Bench()
    commit, bench.commit = bench.commit, lambda: None  # type: ignore[method-assign]
    bench.send(b"x")
    assert bench.receive() == []
    commit()
    assert [m.body for m in bench.receive()] == [b"x"]


def test_a_waiting_message_costs_no_reads_until_it_is_delivered() -> None:
    bench = Bench()
    for n in range(50):
        bench.send(b"%d" % n)
    bench.store.blocks_read = 0
    bench.restart()
    assert bench.store.blocks_read == 0, "recovery reads no blocks"
    bench.receive(3)
    assert bench.store.blocks_read == 3


def flip(bench: Bench, position: int) -> None:
    for key, row in bench.store.tables[BLOCKS].items():
        payload = bytearray(row[-1])  # type: ignore[arg-type]
        payload[position] ^= 1
        bench.store.tables[BLOCKS][key] = (*row[:-1], bytes(payload))


@pytest.mark.parametrize("position", [0, 5, 20, 40, -1, -5])
def test_a_flipped_bit_is_noticed_and_never_served(position: int) -> None:
    bench = Bench()
    bench.send(b"precious")
    flip(bench, position)
    bench.restart()
    with pytest.raises(Damaged):
        bench.receive()


@pytest.mark.parametrize("table", [BLOCK_INDEX, COUNTERS], ids=lambda table: table.name)
def test_a_missing_row_is_noticed_at_the_start(table: object) -> None:
    bench = Bench()
    bench.send(b"1", b"2")
    bench.complete(*bench.receive(1))
    bench.store.tables[table].clear()  # type: ignore[index]
    with pytest.raises(Damaged):
        bench.restart()
