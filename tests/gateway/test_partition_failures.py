"""Partitions that fail while their store is up: who is told, who goes on, how they come back."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from onibus import Bus, Rule, Sent, SqlAction, SqlFilter
from onibus.core.commands import COMPLETE
from onibus.core.errors import Damaged, InvalidFilter, PartitionOffline, StoreFailed, Unknown
from onibus.core.records import BLOCKS, MARKS, Row, Table, WriteBatch
from onibus.core.rules.rule import from_plain, to_plain
from onibus.gateway import settling
from onibus.store.memory import MemoryStore, Tables
from tests.bus_helpers import (
    DAY,
    KEYS,
    SECOND,
    Disks,
    ManualClock,
    bodies,
    get,
    msg,
    partition_at,
    pass_ms,
    peek_everything,
    pull,
    run,
    send,
    settle,
)

#: A moment of which there is none in UTC.
TOO_FAR = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-1)))
SET_TOO_FAR = Rule("far", SqlFilter("far = 1"), SqlAction("SET until = @p", {"@p": TOO_FAR}))


class MissingReads(MemoryStore):
    """A store whose next read of a block, or of another row, fails on request."""

    def __init__(self, name: str, tables: Tables | None) -> None:
        super().__init__(name, tables)
        self.fail_read = False
        #: which one, and the partition in its key if it has one
        self.failing: tuple[Table, int | None] = BLOCKS, None

    def read(self, table: Table, key: Row) -> Row | None:
        failing, partition = self.failing
        if self.fail_read and table is failing and partition in (None, key[0]):
            self.fail_read = False
            raise StoreFailed("out of descriptors")
        return super().read(table, key)


class DisksMissingReads(Disks):
    def _store(self, name: str, _known: bool = False) -> MemoryStore:
        store = self.open[name] = MissingReads(name, self._tables.get(name))
        self._tables[name] = store.tables
        return store

    def fail_read(self, name: str, table: Table = BLOCKS, partition: int | None = None) -> None:
        store = self.open[name]
        assert isinstance(store, MissingReads)
        store.fail_read, store.failing = True, (table, partition)


@pytest.mark.promise("P10")
@run
async def test_a_read_that_failed_once_costs_a_moment(clock: ManualClock) -> None:
    disks = DisksMissingReads()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        await bus.create_queue("other")
        await send(bus, "q", "a", "b")
        await send(bus, "other", "c")
    async with disks.bus(clock) as bus:
        disks.fail_read("main")
        with pytest.raises(PartitionOffline, match="out of descriptors"):
            await get(bus, "q")
        await settle(bus)
        await pass_ms(bus, clock, SECOND)
        assert bus.queue("q").availability == "available"
        await send(bus, "q", "d")
        assert bodies(await get(bus, "q")) == ["a", "b", "d"]
        assert bodies(await get(bus, "other")) == ["c"]
        await bus.delete_queue("q")
        assert len(bus.alarms) == 1


class LateVerdict(Disks):
    """Disks whose next commit takes its time, and then finds its store damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged = False
        self.reached, self.on = threading.Event(), threading.Event()

    def _store(self, name: str, _known: bool = False) -> MemoryStore:
        disks = self

        class Store(MemoryStore):
            def commit(self, batch: WriteBatch) -> None:
                if disks.damaged and name == "main":
                    disks.reached.set()
                    disks.on.wait()
                    raise Damaged("a page fails its checksum")
                super().commit(batch)

        store = self.open[name] = Store(name, self._tables.get(name))
        self._tables[name] = store.tables
        return store


@run
async def test_a_store_found_damaged_after_it_was_taken_offline_stays_offline(
    clock: ManualClock,
) -> None:
    disks = LateVerdict()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        await settle(bus)
        disks.damaged = True
        waiting = asyncio.ensure_future(bus.send("q", msg("late")))
        while not disks.reached.is_set():
            await asyncio.sleep(0)
        pull(bus, "main")
        disks.on.set()
        with pytest.raises(Unknown):
            await waiting
        await settle(bus)
        disks.damaged = False
        await pass_ms(bus, clock, SECOND)
        assert not bus.broker.stores["main"].online
        assert "fails its checksum" in bus.alarms[-1]


class DisksWithABadSector(Disks):
    """Disks that fail to read blocks, and do everything else, while they are bad."""

    bad = False

    def _store(self, name: str, _known: bool = False) -> MemoryStore:
        disks = self

        class Store(MemoryStore):
            def read(self, table: Table, key: Row) -> Row | None:
                if disks.bad and table is BLOCKS:
                    raise StoreFailed("the disk failed a read")
                return super().read(table, key)

        store = self.open[name] = Store(name, self._tables.get(name))
        self._tables[name] = store.tables
        return store


@pytest.mark.promise("P2", "P10")
@run
async def test_a_place_that_cannot_be_read_leaves_the_other_partitions_alone(
    clock: ManualClock,
) -> None:
    disks = DisksWithABadSector()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        await bus.create_queue("other")
        await send(bus, "q", "a")
    async with disks.bus(clock) as bus:
        disks.bad = True
        for wait_ms in (SECOND, 2 * SECOND, 4 * SECOND):
            with pytest.raises(PartitionOffline, match="the disk failed a read"):
                await get(bus, "q")
            await settle(bus)
            # The first time the store is opened again at once, later after a while.
            assert bus.broker.stores["main"].online == (wait_ms > SECOND)
            assert bus.queue("q").availability == "limited"
            if wait_ms > SECOND:
                await send(bus, "other", "works")
                await pass_ms(bus, clock, wait_ms)
                assert not bus.broker.stores["main"].online
            await pass_ms(bus, clock, SECOND)
            assert bus.queue("q").availability == "available"
        disks.bad = False
        assert bodies(await get(bus, "q")) == ["a"]
        assert bodies(await get(bus, "other")) == ["works", "works"]


@run
async def test_who_waits_for_a_commit_is_answered_when_a_read_fails(clock: ManualClock) -> None:
    disks = DisksMissingReads()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        await bus.create_queue("other")
        await send(bus, "q", "a")
    async with disks.bus(clock) as bus:
        disks.fail_read("main")
        together: Any = [bus.send("other", msg("b")), get(bus, "q"), bus.send("other", msg("c"))]
        found = await asyncio.gather(*together, return_exceptions=True)
        assert isinstance(found[1], PartitionOffline)
        await settle(bus)
        await pass_ms(bus, clock, SECOND)
        there = bodies(await get(bus, "other"))
        for body, outcome in (("b", found[0]), ("c", found[2])):
            assert body in there or not isinstance(outcome, Sent)
        assert bodies(await get(bus, "q")) == ["a"]


def break_rules(bus: Bus, topic: str) -> None:
    """Let the rules of a topic's subscriptions meet a fault of our own code."""

    def fault(_: Any) -> bool:
        raise ZeroDivisionError("a fault of ours")

    for subscription in partition_at(bus, topic).subscriptions.values():
        for rule in getattr(subscription, "rules", None) or ():
            rule.condition = fault


@pytest.mark.promise("S3")
@run
async def test_a_send_that_fails_inside_leaves_the_others_of_its_moment_alone(
    clock: ManualClock,
) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_topic("t")
        await bus.create_subscription("t", "s", rules=[Rule("r", SqlFilter("far = 1"))])
        await bus.create_queue("q")
        assert [sent.sequence_number for sent in await send(bus, "t", "first")] == [1]
        break_rules(bus, "t")
        sends = [bus.send("t", msg("fails"))] + [bus.send("q", msg(f"{n}")) for n in range(3)]
        failed, *others = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(failed, PartitionOffline)
        assert [one.sequence_number for one in others if isinstance(one, Sent)] == [1, 2, 3]
        assert any("a fault of ours" in alarm for alarm in bus.alarms)
        assert bodies(await get(bus, "q")) == ["0", "1", "2"]
    async with disks.bus(clock) as bus:
        assert [sent.sequence_number for sent in await send(bus, "t", "second")] == [2]


@pytest.mark.promise("B3")
@run
async def test_an_action_cannot_set_a_time_that_no_message_can_have(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_topic("t")
        with pytest.raises(InvalidFilter, match="@p"):
            await bus.create_subscription("t", "s", rules=[SET_TOO_FAR])
        late = datetime.max.replace(tzinfo=UTC)
        rule = Rule("far", SqlFilter("far = 1"), SqlAction("SET until = @p", {"@p": late}))
        await bus.create_subscription("t", "s", rules=[rule])
        await bus.send("t", msg("x", properties={"far": 1}))
        (found,) = await get(bus, "t/subscriptions/s")
        assert found.properties["until"] == late


@run
async def test_such_a_rule_that_was_stored_before_lets_no_send_fail(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_topic("t")
        await bus.create_subscription("t", "s", rules=[])
        entity = bus.broker.find("t/subscriptions/s")
        bus.broker.namespace.take_rules(entity, [from_plain(to_plain(SET_TOO_FAR))])
        await bus.send("t", msg("x", properties={"far": 1}))
        await bus.send("t", msg("y"))
        (dead,) = await get(bus, "t/subscriptions/s", dead_letters=True)
        assert dead.body == b"x"


@pytest.mark.parametrize("down", [["b"], ["a", "b"]])
@run
async def test_messages_of_other_partitions_are_settled(
    clock: ManualClock, down: list[str]
) -> None:
    async with Disks().bus(clock, "a", "b", "c") as bus:
        await bus.create_queue("p", enable_partitioning=True)
        await bus.send_batch("p", [msg(key, partition_key=key) for key in KEYS])
        held = {one.body.decode(): one for one in await get(bus, "p")}
        await settle(bus)
        places = bus.broker.find("p").stores
        for store in down:
            pull(bus, store)

        async def complete(chosen: list[str]) -> Any:
            tokens: Any = [held[key].token for key in chosen]
            return await bus.ask(
                lambda reply: settling.settle_each(bus.broker, "p", tokens, COMPLETE, reply)
            )

        results = await complete(KEYS)
        for place, result in zip(places, results, strict=True):
            assert isinstance(result, PartitionOffline) if place in down else result is None
        with pytest.raises(PartitionOffline):
            await complete([key for key, place in zip(KEYS, places, strict=True) if place in down])
        await pass_ms(bus, clock, SECOND)
        left = [key for key, place in zip(KEYS, places, strict=True) if place in down]
        assert bodies(peek_everything(bus, "p")) == left


@pytest.mark.parametrize("stores", [("a",), ("a", "b")])
@run
async def test_a_read_that_fails_between_two_partitions_is_not_called_a_rejection(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    disks = DisksMissingReads()
    async with disks.bus(clock, *stores) as bus:
        await bus.create_queue("p", enable_partitioning=True)
        later = clock.wall() + DAY
        sent = [
            await bus.send("p", msg(key, partition_key=key, scheduled_enqueue_time_ms=later))
            for key in KEYS[:2]
        ]
    async with disks.bus(clock, *stores) as bus:
        place = bus.broker.find("p").partitions[1]
        disks.fail_read(place.store.name, MARKS, place.id)
        # In one store it is one commit. Otherwise one of them is cancelled, and stays so.
        with pytest.raises(PartitionOffline if len(stores) == 1 else Unknown):
            await bus.cancel_scheduled("p", [one.sequence_number for one in sent])
        for _ in range(3):
            await pass_ms(bus, clock, SECOND)
        left = KEYS[:2] if len(stores) == 1 else KEYS[1:2]
        assert bodies(peek_everything(bus, "p")) == left
    async with disks.bus(clock, *stores) as bus:
        assert bodies(peek_everything(bus, "p")) == left
