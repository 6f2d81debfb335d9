"""Stores whose threads are at work when something happens: a failure beside a commit, and the
housekeeping of the namespace's own store.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onibus import Bus
from onibus.core.errors import Unknown
from onibus.directory.namespace import NAME
from onibus.shard.commits import CommitLoop
from onibus.shard.housekeeping import HOUSEKEEPING_COMMITS, HOUSEKEEPING_MS
from onibus.store.sqlite import SqliteStore
from tests.bus_helpers import SECOND, ManualClock, bodies, get, msg, pass_ms, run, send, settle


class StalledDisk:
    """A disk on which commits come to a halt, until it goes on."""

    def __init__(self, store: Any) -> None:
        assert isinstance(store, SqliteStore)
        self.reached, self._on = threading.Event(), threading.Event()
        store._writer.set_commit_hook(self._halt)

    def _halt(self) -> bool:
        self.reached.set()
        self._on.wait()
        return False

    def go_on(self) -> None:
        self._on.set()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread."""
    while not condition():
        await asyncio.sleep(0.001)


def owner_of(bus: Bus, store: str) -> Any:
    return bus.broker.namespace if store == NAME else bus.broker.stores[store]


def loop_of(bus: Bus, store: str) -> CommitLoop:
    loop: CommitLoop = owner_of(bus, store).loop
    return loop


async def fail_beside(bus: Bus, store: str, path: Path) -> None:
    """Let housekeeping fail: the store's file is away for a moment."""
    aside = path.with_suffix(".aside")
    path.rename(aside)
    bus.broker.houses[store].begin(loop_of(bus, store))
    await until(lambda: not owner_of(bus, store).online)
    aside.rename(path)


@pytest.mark.parametrize("store", ["main", NAME])
@run
async def test_a_store_that_fails_under_a_commit_is_left_to_that_commit(
    tmp_path: Path, clock: ManualClock, store: str
) -> None:
    path = tmp_path / f"{store}.sqlite"
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "first")
        await settle(bus)
        disk = StalledDisk(loop_of(bus, store).store)
        try:
            change = bus.send("q", msg("late")) if store == "main" else bus.create_queue("late")
            waiting = asyncio.ensure_future(change)
            await until(disk.reached.is_set)
            await fail_beside(bus, store, path)
            with pytest.raises(Unknown):
                await waiting
            clock.advance(SECOND)
            bus.broker.tick()
            assert not owner_of(bus, store).online, "the commit still writes to its files"
        finally:
            disk.go_on()
        await until(lambda: bool(owner_of(bus, store).online))
        assert path.read_bytes()[:16] == b"SQLite format 3\0"
        assert len(bus.alarms) == 1
        await send(bus, "q", "after")
    async with Bus.open(tmp_path, clock=clock) as bus:
        late = ["late"] if store == "main" else []
        assert bodies(await get(bus, "q")) == ["first", *late, "after"]
        assert store == "main" or bus.queue("late").active_count == 0


@run
async def test_a_bus_is_closed_while_a_failed_store_has_a_commit_under_way(
    tmp_path: Path, clock: ManualClock
) -> None:
    bus = await Bus.open(tmp_path, clock=clock)
    await bus.create_queue("q")
    await settle(bus)
    disk = StalledDisk(loop_of(bus, "main").store)
    waiting = asyncio.ensure_future(bus.send("q", msg("late")))
    try:
        await until(disk.reached.is_set)
        await fail_beside(bus, "main", tmp_path / "main.sqlite")
        with pytest.raises(Unknown):
            await waiting
    finally:
        disk.go_on()
    bus.broker.close()
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bodies(await get(bus, "q")) == ["late"]


async def housekeeping_over(bus: Bus) -> None:
    await until(lambda: not bus.broker.namespace.threads.housekeeping)


@run
async def test_the_namespace_gives_its_log_back_when_it_has_come_to_rest(
    tmp_path: Path, clock: ManualClock
) -> None:
    log = tmp_path / f"{NAME}.sqlite-wal"
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        assert log.stat().st_size > 0
        for _ in range(3):
            await pass_ms(bus, clock, HOUSEKEEPING_MS)
            await housekeeping_over(bus)
        assert log.stat().st_size == 0


@run
async def test_the_namespace_moves_its_log_under_load(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / f"{NAME}.sqlite"
    async with Bus.open(tmp_path, clock=clock) as bus:
        store: Any = loop_of(bus, NAME).store
        store._log_bytes_max = 0
        before = path.stat().st_size
        for n in range(HOUSEKEEPING_COMMITS):
            await bus.create_queue(f"q-{n}", user_metadata="x" * 1_000)
        await housekeeping_over(bus)
        assert os.path.getsize(path) > before, "no time has passed, and nothing rests"
