"""Stores are opened on their own threads: a slow or hanging disk stops nothing else (P2)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from onibus.core.errors import PartitionOffline, StoreFailed
from onibus.core.partition import Partition
from onibus.core.path.recover import recover
from onibus.core.records import META
from onibus.shard import opening
from onibus.store.memory import MemoryStore
from tests.bus_helpers import Disks, ManualClock, get, pull, run, send, until
from tests.gateway.topic_helpers import there


class SlowDisks(Disks):
    """Disks whose stores open when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.slow: set[str] = set()
        self.begun = threading.Event()
        self.go = threading.Event()
        self.threads: list[str] = []

    def _store(self, name: str, _known: bool = False) -> MemoryStore:
        self.threads.append(threading.current_thread().name)
        if name in self.slow:
            self.begun.set()
            self.go.wait(60)
        return super()._store(name, _known)


async def on_store(bus: Any, store: str) -> str:
    """Make a queue in that store; return its name."""
    for at in range(20):
        name = f"{store}{at}"
        await bus.create_queue(name)
        if bus.broker.find(name).stores == [store]:
            return name
    raise AssertionError("no queue came to the store")


@pytest.mark.promise("P2")
@run
async def test_a_store_that_does_not_open_stops_no_other(clock: ManualClock) -> None:
    disks = SlowDisks()
    async with disks.bus(clock, "a", "b") as bus:
        here, away = await on_store(bus, "a"), await on_store(bus, "b")
        await send(bus, away, "before")
        disks.slow.add("b")
        pull(bus, "b")
        clock.advance(2_000)
        bus.broker.tick()
        await until(disks.begun.is_set)
        for text in "xyz":
            await send(bus, here, text)
            with pytest.raises(PartitionOffline):
                await send(bus, away, text)
        assert [one.body for one in await get(bus, here)] == [b"x", b"y", b"z"]
        # Its timer rings again; it is opened once.
        clock.advance(2_000)
        bus.broker.tick()
        opened = len(disks.threads)
        disks.go.set()
        await until(lambda: bus.broker.stores["b"].online)
        assert len(disks.threads) == opened
        await send(bus, away, "after")
        assert there(bus, away) == ["before", "after"]
    main = threading.current_thread().name
    assert main not in disks.threads


@pytest.mark.promise("P2")
@run
async def test_a_bus_that_opens_stops_nothing_else_on_the_loop(clock: ManualClock) -> None:
    disks = SlowDisks()
    bus = await disks.bus(clock, "a", "b")
    await bus.create_queue("q")
    await send(bus, "q", "x")
    await bus.close()
    disks.slow |= {"a", "b", "namespace"}
    opening = asyncio.ensure_future(_open(disks, clock))
    await until(disks.begun.is_set)
    assert not opening.done()
    disks.go.set()
    bus = await opening
    assert there(bus, "q") == ["x"]
    await bus.close()


@pytest.mark.promise("P2")
@run
async def test_a_cancelled_opening_leaves_no_store_open(clock: ManualClock) -> None:
    disks = SlowDisks()
    disks.slow.add("b")
    opening = asyncio.ensure_future(_open(disks, clock))
    await until(disks.begun.is_set)
    opening.cancel()
    await asyncio.sleep(0)
    disks.go.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert set(disks.open) == {"namespace", "a", "b"}
    for store in disks.open.values():
        with pytest.raises(StoreFailed, match="closed"):
            store.read(META, ("boot",))


@pytest.mark.promise("P2", "R2")
@run
async def test_a_store_is_read_again_if_a_reader_moves_while_it_opens(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = SlowDisks()
    recovered = 0

    def slow_recover(partition: Partition, rows: Any) -> Any:
        nonlocal recovered
        recovered += 1
        disks.begun.set()
        disks.go.wait(60)
        return recover(partition, rows)

    async with disks.bus(clock, "a", "b") as bus:
        name = await on_store(bus, "b")
        await bus.create_reader(name, "r")
        await send(bus, name, "1", "2")
        monkeypatch.setattr(opening, "recover", slow_recover)
        pull(bus, "b")
        bus.broker.reopen(bus.broker.stores["b"])
        await until(disks.begun.is_set)
        # As if the namespace's store were reopened and found a decision.
        del bus.broker.find(name).readers["r"]
        alarms = bus.alarms
        disks.go.set()
        await until(lambda: bus.broker.stores["b"].online)
        assert recovered == 2
        assert bus.broker.find(name).partitions[0].online().readers == {}
        assert bus.alarms == alarms
        assert there(bus, name) == ["1", "2"]


async def _open(disks: Disks, clock: ManualClock) -> Any:
    return await disks.bus(clock, "a", "b")
