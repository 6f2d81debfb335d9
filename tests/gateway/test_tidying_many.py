"""Many idle partitions wait to be tidied while their store commits."""

from __future__ import annotations

import asyncio
import threading

import pytest

from onibus.bus import OpeningBus
from onibus.core.records import WriteBatch
from onibus.shard import tidying
from onibus.shard.partition import ShardPartition
from onibus.shard.shard import TIDY_AFTER_MS
from onibus.store.memory import MemoryStore
from tests.bus_helpers import ManualClock, msg, run, tick, until

QUEUES = 60


class Stalled(MemoryStore):
    """A store whose commits wait until a test releases them."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.goes = threading.Event()
        self.goes.set()

    def commit(self, batch: WriteBatch) -> None:
        self.goes.wait()
        super().commit(batch)


@run
async def test_idle_partitions_do_not_crowd_a_busy_store(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Stalled("main")
    tidied: list[int] = []
    original = tidying.tidy

    def counted(partition: ShardPartition, *, eager: bool = True) -> bool:
        tidied.append(partition.id)
        return original(partition, eager=eager)

    monkeypatch.setattr(tidying, "tidy", counted)

    def open_store(name: str, _: bool) -> MemoryStore:
        return store if name == "main" else MemoryStore(name)

    async with OpeningBus(["main"], open_store, clock, 0) as bus:
        for at in range(QUEUES):
            await bus.create_queue(f"q{at}")
        store.goes.clear()
        # Two at once: the loop itself would commit a lone one.
        sent = asyncio.gather(bus.send("q0", msg("x")), bus.send("q0", msg("y")))
        loop = bus.broker.stores["main"].loop
        assert loop is not None
        await until(lambda: loop.busy)
        clock.advance(2 * TIDY_AFTER_MS)
        tick(bus)
        tidied.clear()
        for _ in range(20):
            clock.advance(tidying.TIDY_AGAIN_MS)
            tick(bus)
        busy = len(tidied)
        store.goes.set()
        await sent
        tidied.clear()
        clock.advance(2 * QUEUES * tidying.TIDY_AGAIN_MS)
        tick(bus)
    assert 0 < busy <= 21, "one partition at a time"
    assert len(set(tidied)) == QUEUES, "each has its turn"
