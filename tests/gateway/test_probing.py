"""Idle stores whose disks fail, hang or are taken away (P10)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from onibus import Bus, Rule
from onibus.core.errors import PartitionOffline, Unknown
from onibus.directory.entity import Entity
from onibus.directory.namespace import NAME, REOPEN_MS
from onibus.directory.probing import FRESH_MS, GRACE_MS, PATIENCE_MS, PROBE_MS
from onibus.operation.health import readiness
from onibus.protocols.sqs.changing import in_turn
from onibus.shard.housekeeping import HOUSEKEEPING_MS
from onibus.store.files import ProbeFile
from tests.bus_helpers import KEYS, ManualClock, get, index_in, msg, pass_ms, run, send
from tests.failing_reads import failing_reads

#: Limited shows this long after a disk went away, at most.
NOTICED_MS = 5_000


@asynccontextmanager
async def two_disks(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Bus]:
    """A bus with a partitioned queue and a topic over two stores, at rest."""
    places = {"one": tmp_path / "one", "two": tmp_path / "two"}
    async with Bus.open(tmp_path / NAME, clock=clock, stores=places) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        await bus.create_topic("t", enable_partitioning=True)
        await bus.create_subscription("t", "s")
        await send(bus, "q", *[str(n) for n in range(16)])
        for _ in range(4):
            # Until housekeeping has come to rest: it looks at the files, too.
            await pass_ms(bus, clock, HOUSEKEEPING_MS)
            await until(lambda: not any(house_kept(bus)))
        yield bus


def house_kept(bus: Bus) -> list[bool]:
    """Return for each store whether its housekeeping is under way."""
    owners: list[Any] = [bus.broker.namespace, *bus.broker.stores.values()]
    return [one.threads.housekeeping for one in owners]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread."""
    while not condition():
        await asyncio.sleep(0.001)


def owner_of(bus: Bus, store: str) -> Any:
    return bus.broker.namespace if store == NAME else bus.broker.stores[store]


async def come_back(bus: Bus, clock: ManualClock, store: str) -> None:
    """Let the bus find a store whose disk is back."""
    while not owner_of(bus, store).online:
        await pass_ms(bus, clock, REOPEN_MS)
        await asyncio.sleep(0.001)


def tick(bus: Bus, clock: ManualClock, ms: int) -> None:
    """Let time pass, and do what is due: not what waits for a disk."""
    clock.advance(ms)
    bus.broker.tick()


def under_way(bus: Bus) -> list[str]:
    """Return the stores with a probe on its way to their disks."""
    return [name for name, probe in bus.broker.probing._probes.items() if probe.under_way]


Operation = Callable[[Bus], Any]
OPERATIONS: dict[str, Operation] = {
    "create": lambda bus: bus.create_queue("new", enable_partitioning=True),
    "change": lambda bus: bus.change_queue("q", max_delivery_count=5),
    "delete": lambda bus: bus.delete_queue("q"),
    "subscribe": lambda bus: bus.create_subscription("t", "other"),
    "add a rule": lambda bus: bus.create_rule("t/subscriptions/s", Rule("more")),
}


@pytest.mark.promise("P10")
@pytest.mark.parametrize("store", ["two", NAME])
@run
async def test_a_store_that_went_away_is_noticed_while_nobody_uses_it(
    tmp_path: Path, clock: ManualClock, store: str
) -> None:
    async with two_disks(tmp_path, clock) as bus:
        assert readiness(bus).ready
        (tmp_path / store).rename(tmp_path / "away")
        await pass_ms(bus, clock, PROBE_MS)
        await until(lambda: not owner_of(bus, store).online)
        assert PROBE_MS < NOTICED_MS
        info = bus.queue("q")
        assert not readiness(bus).ready
        assert [alarm.partition(":")[0] for alarm in bus.alarms] == [f"store {store}"]
        if store == "two":
            assert info.availability == "limited"
            assert {bus.broker.find("q").stores[one] for one in info.offline_partitions} == {"two"}
        for operation in OPERATIONS.values():
            with pytest.raises(PartitionOffline):
                await operation(bus)
        (tmp_path / "away").rename(tmp_path / store)
        await come_back(bus, clock, store)
        assert bus.queue("q").availability == "available"
        assert bus.queue("q").active_count == 16
        assert readiness(bus).ready
        for operation in OPERATIONS.values():
            await operation(bus)
        # The next failure is news.
        assert not bus.broker.alarms._last


@run
async def test_changes_that_waited_for_a_disk_are_made_one_after_the_other(
    tmp_path: Path, clock: ManualClock
) -> None:
    # Each adds one attribute to those of its queue. All wait for the same probe.
    def add(key: str) -> Coroutine[Any, Any, None]:
        def added(entity: Entity) -> dict[str, Any]:
            return {"attributes": {**entity.settings.attributes, key: "x"}}

        async def do() -> None:
            await bus.ask(lambda reply: bus.broker.namespace.change("q", added, reply))

        return in_turn(do)

    def fault(entity: Entity) -> dict[str, Any]:
        raise KeyError(entity.name)

    async with two_disks(tmp_path, clock) as bus:
        clock.advance(FRESH_MS + 1)
        await asyncio.gather(add("one"), add("two"), add("three"))
        assert set(bus.queue("q").settings.attributes) == {"one", "two", "three"}
        clock.advance(FRESH_MS + 1)
        with pytest.raises(KeyError):
            await bus.ask(lambda reply: bus.broker.namespace.change("q", fault, reply))


@pytest.mark.promise("P10")
@pytest.mark.parametrize("operation", OPERATIONS)
@run
async def test_what_needs_all_partitions_asks_their_disks_first(
    tmp_path: Path, clock: ManualClock, operation: str
) -> None:
    async with two_disks(tmp_path, clock) as bus:
        before = bus.queue("q"), bus.queues(), bus.subscription("t/subscriptions/s")
        (tmp_path / "two").rename(tmp_path / "away")
        # No timer has rung: nobody knows yet.
        clock.advance(FRESH_MS + 1)
        assert bus.queue("q").availability == "available"
        with pytest.raises(PartitionOffline):
            await OPERATIONS[operation](bus)
        assert bus.queue("q").availability == "limited"
        (tmp_path / "away").rename(tmp_path / "two")
        await come_back(bus, clock, "two")
        assert before == (bus.queue("q"), bus.queues(), bus.subscription("t/subscriptions/s"))
        await OPERATIONS[operation](bus)


@run
async def test_a_store_in_use_is_not_probed(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        for _ in range(10):
            await send(bus, "q", "x")
            await pass_ms(bus, clock, PROBE_MS - 1)
        assert not (tmp_path / "main.sqlite.probe").exists()
        await pass_ms(bus, clock, 1)
        assert (tmp_path / "main.sqlite.probe").exists()
    assert not list(tmp_path.glob("*.probe")), "a closed bus leaves none"


@run
async def test_probes_can_be_turned_off(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock, probe_ms=0) as bus:
        await bus.create_queue("q")
        for _ in range(3):
            await pass_ms(bus, clock, PROBE_MS)
        assert ("probe", "main") not in bus.broker.timers._due
        assert not list(tmp_path.glob("*.probe"))


@pytest.mark.promise("B8", "P10")
@pytest.mark.parametrize("store", ["two", NAME])
@run
async def test_a_disk_that_fails_reads_is_back_without_a_restart(
    tmp_path: Path, clock: ManualClock, store: str
) -> None:
    """SQLite calls the database malformed when the first commit after a rest cannot read it."""
    async with two_disks(tmp_path, clock) as bus:
        key = KEYS[index_in(bus, "q", "two")]
        with failing_reads(tmp_path / store):
            keyed = msg("keyed", partition_key=key)
            change = bus.create_queue("new") if store == NAME else bus.send("q", keyed)
            with pytest.raises(Unknown, match="the disk failed a read"):
                await change
            for _ in range(3):
                await pass_ms(bus, clock, REOPEN_MS)
                assert not readiness(bus).ready
        await come_back(bus, clock, store)
        assert readiness(bus).ready
        assert bus.queue("q").availability == "available"
        await send(bus, "q", "keyed", partition_key=key)
        await bus.create_queue("new")
        assert bus.queue("q").active_count == 17


class HangingDisk:
    """A disk that keeps the writes of one directory waiting until it goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self._on = threading.Event()
        self.waiting = threading.Event()
        write = ProbeFile.write

        def hang(file: ProbeFile) -> None:
            if file._path.startswith(f"{directory}/"):
                self.waiting.set()
                self._on.wait()
            write(file)

        monkeypatch.setattr(ProbeFile, "write", hang)

    def go_on(self) -> None:
        self._on.set()


@pytest.mark.promise("P10", "P5")
@pytest.mark.parametrize("store", ["two", NAME])
@run
async def test_a_disk_that_hangs_is_noticed_and_goes_on(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    async with two_disks(tmp_path, clock) as bus:
        loop = owner_of(bus, store).loop
        disk = HangingDisk(monkeypatch, tmp_path / store)
        try:
            tick(bus, clock, PROBE_MS)
            await until(lambda: disk.waiting.is_set() and under_way(bus) == [store])
            tick(bus, clock, PATIENCE_MS)
            assert readiness(bus).ready, "a slow disk is given a little more time"
            # The others are probed again by now.
            await until(lambda: under_way(bus) == [store])
            tick(bus, clock, GRACE_MS)
            assert PROBE_MS + PATIENCE_MS + GRACE_MS < NOTICED_MS
            assert not readiness(bus).ready
            (alarm,) = bus.alarms
            assert f"the disk of store {store} has not responded for 2500 ms" in alarm
            for operation in OPERATIONS.values():
                with pytest.raises(PartitionOffline, match="has not responded"):
                    await operation(bus)
            if store == "two":
                await _limited_on_the_other_store(bus)
                waiting = asyncio.ensure_future(bus.receiver("q").receive(100, wait_ms=60_000))
                await asyncio.sleep(0)
                assert not waiting.done()
        finally:
            disk.go_on()
        if store == "two":
            assert len(await waiting) == 8, "those who wait are served when the disk answers"
        await until(lambda: not owner_of(bus, store).stalled)
        assert bus.queue("q").availability == "available"
        assert readiness(bus).ready
        assert owner_of(bus, store).loop is loop, "what memory knows was kept"
        assert not bus.broker.alarms._last
        await bus.delete_queue("q")


async def _limited_on_the_other_store(bus: Bus) -> None:
    """Sends without a key go to the store that answers; those with one are refused (P5)."""
    info = bus.queue("q")
    assert (info.availability, info.active_count) == ("limited", 16)
    for _ in range(16):
        sent = await bus.send("q", msg("more"))
        assert bus.broker.find("q").stores[sent.sequence_number >> 48] == "one"
    key = KEYS[index_in(bus, "q", "two")]
    with pytest.raises(PartitionOffline, match="has not responded"):
        await bus.send("q", msg("keyed", partition_key=key))
    received: list[Any] = []
    while found := await get(bus, "q", delete=True):
        received += found
    stores = {bus.broker.find("q").stores[one.sequence_number >> 48] for one in received}
    assert (len(received), stores) == (8 + 16, {"one"}), "a receiver gets what can be read"


@run
async def test_an_operation_waits_for_a_slow_disk_no_longer_than_for_a_hanging_one(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_disks(tmp_path, clock) as bus:
        disk = HangingDisk(monkeypatch, tmp_path / "two")
        try:
            clock.advance(FRESH_MS + 1)
            waiting = asyncio.ensure_future(bus.change_queue("q", max_delivery_count=5))
            await until(disk.waiting.is_set)
            for _ in range(2):
                await until(lambda: under_way(bus) == ["two"])
                assert not waiting.done()
                tick(bus, clock, PATIENCE_MS)
            with pytest.raises(PartitionOffline):
                await waiting
        finally:
            disk.go_on()
        await until(lambda: not owner_of(bus, "two").stalled)
        await bus.change_queue("q", max_delivery_count=5)
        assert bus.queue("q").settings.max_delivery_count == 5
