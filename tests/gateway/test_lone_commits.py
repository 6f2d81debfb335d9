"""Commits for a lone request: the event loop runs them itself while the only store is fast."""

from __future__ import annotations

import asyncio
import threading

import pytest

from onibus import Bus
from onibus.bus import OpeningBus
from onibus.core.errors import StoreFailed, Unknown
from onibus.core.records import WriteBatch
from onibus.shard import commits
from onibus.shard.clock import SystemClock
from onibus.shard.commits import FAST_COMMITS, FAST_S, LONE_REQUESTS
from onibus.store.memory import MemoryStore
from tests.bus_helpers import msg, run

#: After this number of sends the event loop runs commits, if it may.
WARM = FAST_COMMITS + LONE_REQUESTS


class Watched(MemoryStore):
    """A store that notes which thread commits, and can be slow or fail."""

    #: what a commit takes is read from here
    seconds = 0.0

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.on_loop: list[bool] = []
        self.pause_s = 0.0
        self.fails = False

    def commit(self, batch: WriteBatch) -> None:
        self.on_loop.append(threading.current_thread() is threading.main_thread())
        Watched.seconds += self.pause_s
        if self.fails:
            raise StoreFailed("pulled")
        super().commit(batch)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "perf_counter", lambda: Watched.seconds)


def opened(stores: dict[str, Watched]) -> OpeningBus:
    def open_store(name: str, _: bool) -> MemoryStore:
        return stores[name] if name in stores else MemoryStore(name)

    return OpeningBus(list(stores), open_store, SystemClock(), 0)


async def send_alone(bus: Bus, count: int) -> None:
    for _ in range(count):
        await bus.send("q", msg("x"))


@run
async def test_a_lone_request_is_committed_on_the_loop() -> None:
    store = Watched("main")
    async with opened({"main": store}) as bus:
        await bus.create_queue("q")
        await send_alone(bus, WARM)
        store.on_loop.clear()
        await send_alone(bus, 5)
        assert all(store.on_loop)
        assert len(bus.peek("q")) == WARM + 5


@run
async def test_requests_that_come_together_are_not() -> None:
    store = Watched("main")
    async with opened({"main": store}) as bus:
        await bus.create_queue("q")
        await send_alone(bus, WARM)
        store.on_loop.clear()
        await asyncio.gather(*[bus.send("q", msg("x")) for _ in range(5)])
        assert store.on_loop == [False]


@run
async def test_several_stores_never_commit_on_the_loop() -> None:
    stores = {"a": Watched("a"), "b": Watched("b")}
    async with opened(stores) as bus:
        await bus.create_queue("q")
        await send_alone(bus, WARM + 5)
        assert not any(stores["a"].on_loop[1:] + stores["b"].on_loop[1:])


@run
async def test_a_store_that_becomes_slow_leaves_the_loop() -> None:
    store = Watched("main")
    async with opened({"main": store}) as bus:
        await bus.create_queue("q")
        await send_alone(bus, WARM)
        store.pause_s = 2 * FAST_S
        store.on_loop.clear()
        await send_alone(bus, 4)
        assert store.on_loop == [True, False, False, False], "one commit shows that it is slow"


@pytest.mark.promise("B8")
@run
async def test_a_commit_that_fails_on_the_loop_is_unknown() -> None:
    store = Watched("main")
    async with opened({"main": store}) as bus:
        await bus.create_queue("q")
        await send_alone(bus, WARM)
        store.fails = True
        store.on_loop.clear()
        with pytest.raises(Unknown):
            await bus.send("q", msg("x"))
        assert store.on_loop == [True]
        assert not bus.broker.stores["main"].online
