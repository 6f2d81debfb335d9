"""The path over columns gives what the broker gives, however the rows are cut into batches."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from onibus.core.arrow_block import SCHEMA
from onibus.core.timeline.chunks import Chunks, nobody
from onibus.core.timeline.enqueue import Enqueuing
from onibus.core.timeline.state import decode, encode
from tests.bus_helpers import run
from tests.timeline.workloads import Workload, compare, make_workload, tell, times_of

SECRET = bytes(32)
CASES = 80


class Kept:
    """A state that is written and read back after every batch, as a restart would."""

    def __init__(self) -> None:
        self.head: bytes | None = None
        self.chunks: dict[int, bytes] = {}

    def open(self, workload: Workload, index: int) -> Enqueuing:
        enqueuing = Enqueuing(workload.settings, index, Chunks(self.chunks.__getitem__), SECRET)
        if self.head is not None:
            decode(self.head, [enqueuing.timeline])
        return enqueuing

    def close(self, enqueuing: Enqueuing) -> None:
        self.head = encode([enqueuing.timeline])
        put, dropped = enqueuing.timeline.chunks.changes()
        self.chunks |= put
        for chunk in dropped:
            del self.chunks[chunk]


def events_of(enqueuing: Enqueuing, workload: Workload, positions: list[int], until: int) -> Any:
    rows = workload.table(positions)
    messages = pa.RecordBatch.from_arrays(
        [column.combine_chunks() for column in rows.select(SCHEMA.names).columns], schema=SCHEMA
    )
    events = enqueuing.take(rows, messages, times_of(workload, positions), until)
    return events.to_pylist()


def in_one_batch(workload: Workload) -> list[dict[str, Any]]:
    partitions, events = workload.partitions(), []
    for index in sorted(set(partitions)):
        mine = [at for at, one in enumerate(partitions) if one == index]
        enqueuing = Enqueuing(workload.settings, index, Chunks(nobody), None)
        events += events_of(enqueuing, workload, mine, workload.until)
    return events


def in_many_batches(workload: Workload, random: Random) -> list[dict[str, Any]]:
    """Cut the rows at random; every partition hears how far time is, and is written and read."""
    partitions, events = workload.partitions(), []
    kept = {index: Kept() for index in set(partitions)}
    start, count = 0, len(workload.messages)
    while start <= count:
        end = min(count, start + random.randrange(1, 9))
        until = workload.times[end - 1] if end < count else workload.until
        for index, state in kept.items():
            mine = [at for at in range(start, end) if partitions[at] == index]
            enqueuing = state.open(workload, index)
            events += events_of(enqueuing, workload, mine, until)
            state.close(enqueuing)
        if end == count:
            break
        start = end
    return events


@pytest.mark.promise("D1", "D3", "D5", "D8", "D10", "D11", "F4", "F5", "F6", "F7")
@pytest.mark.promise("P3", "P4", "S1", "S2", "S4", "S5", "S6", "B2")
@pytest.mark.parametrize("first", range(0, CASES, 20))
@run
async def test_random_messages_end_as_in_the_broker(first: int) -> None:
    for seed in range(first, first + 20):
        workload = make_workload(seed)
        told = await tell(workload)
        compare(workload, told, in_one_batch(workload))
        compare(workload, told, in_many_batches(workload, Random(seed)))
