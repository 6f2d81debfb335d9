"""Claims (R5, R7) over partitions and stores, and stores that fail at each step."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest

from onibus import Bus
from onibus.core.commands import ListClaimOwners
from onibus.core.errors import ClaimNotFound, OnibusError, PartitionOffline, Unknown
from onibus.core.invariants import violations
from onibus.core.records import CLAIMS, WriteBatch
from onibus.store.memory import MemoryStore
from tests.bus_helpers import (
    MINUTE,
    Disks,
    ManualClock,
    bodies,
    crash,
    get,
    index_in,
    keys_of,
    msg,
    numbers,
    pass_ms,
    pull,
    reopen_store,
    run,
    settle,
)

STORES = ("a", "b")


async def fill(bus: Bus, count: int = 32) -> list[str]:
    """Make a partitioned queue with messages in every partition; return their texts."""
    await bus.create_queue("q", enable_partitioning=True)
    texts = [f"{n}" for n in range(count)]
    for text in texts:
        await bus.send("q", msg(text))
    return sorted(texts)


def claimed_anywhere(bus: Bus) -> set[str]:
    """Return the names of claims that hold anything, and check the core on the way."""
    found: set[str] = set()
    entity = bus.broker.find("q")
    for partition in entity.partitions:
        if partition.core is not None:
            assert violations(partition.core) == []
            found |= set(bus.broker.use(entity, partition, ListClaimOwners(entity.number)))
    return found


async def reopen(bus: Bus, *stores: str) -> None:
    for store in stores:
        await reopen_store(bus, store)


async def everything(bus: Bus) -> list[str]:
    """Take what is there for good, partition after partition."""
    found: list[str] = []
    while received := await get(bus, "q", delete=True):
        found += bodies(received)
    return sorted(found)


@pytest.mark.promise("R5", "P2")
@run
async def test_a_claim_is_spread_over_partitions(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        texts = await fill(bus, 64)
        claim = await bus.claim("q", "r", 32)
        assert claim is not None
        assert claim.partitions == tuple((index, 2) for index in range(16))
        messages = await bus.read_claim("q", "r", 1)
        assert numbers(messages) == sorted(numbers(messages))
        assert bodies(messages) == bodies(await bus.read_claim("q", "r", 1))
        one = await bus.read_claim("q", "r", 1, partition=3)
        assert numbers(one) == [n for n in numbers(messages) if n >> 48 == 3]
        batches = await bus.read_claim_arrow("q", "r", 1)
        assert [set(batch["partition"].to_pylist()) for batch in batches] == [
            {index} for index in range(16)
        ]
        (third,) = await bus.read_claim_arrow("q", "r", 1, partition=3)
        assert third["sequence_number"].to_pylist() == numbers(one)
        dead = {message.sequence_number: ("bad", None) for message in one}
        crash(bus)
    async with disks.bus(clock, *STORES) as bus:
        assert await bus.read_claim("q", "r", 1) == messages
        await bus.commit_claim("q", "r", 1, dead_letters=dead)
        assert claimed_anywhere(bus) == set()
        assert numbers(bus.peek("q", dead_letters=True)) == numbers(one)
        assert await everything(bus) == sorted(set(texts) - set(bodies(messages)))


@pytest.mark.promise("R5")
@run
async def test_a_claim_takes_all_it_may_wherever_it_lies(clock: ManualClock) -> None:
    (key,) = keys_of(5, 1)
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        await bus.send_batch("q", [msg(f"{n}", partition_key=key) for n in range(3_500)])
        claim = await bus.claim("q", "r", 3_000)
        assert claim is not None
        assert claim.partitions == ((5, 3_000),)
        messages = await bus.read_claim("q", "r", 1)
        assert bodies(messages) == [f"{n}" for n in range(3_000)]
        assert sum(b.num_rows for b in await bus.read_claim_arrow("q", "r", 1)) == 3_000
        await bus.release_claim("q", "r", 1)
        assert bus.queue("q").held_count == 0
        second = await bus.claim("q", "r", 100_000)
        assert second is not None
        assert second.count == 3_500
        await bus.commit_claim("q", "r", 2)
        assert bus.queue("q").active_count == 0
        claimed_anywhere(bus)


@pytest.mark.promise("R7")
@run
async def test_a_long_session_is_claimed_whole(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q", enable_partitioning=True, requires_session=True)
        await bus.send_batch("q", [msg(f"{n}", session_id="s") for n in range(2_500)])
        claim = await bus.claim("q", "r", 2_400)
        assert claim is not None
        assert claim.count == 2_400
        await bus.read_claim("q", "r", 1)
    async with disks.bus(clock) as bus:
        assert bodies(await bus.read_claim("q", "r", 1)) == [f"{n}" for n in range(2_400)]
        claimed_anywhere(bus)
        await bus.commit_claim("q", "r", 1)
        session = await bus.accept_session("q")
        assert bodies(await session.receive(9)) == [f"{n}" for n in range(2_400, 2_409)]


@pytest.mark.promise("P2", "R5")
@run
async def test_a_store_that_is_down_is_passed_over(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        await fill(bus)
        pull(bus, "b")
        claim = await bus.claim("q", "r", 100)
        assert claim is not None
        stores = bus.broker.find("q").stores
        assert {stores[index] for index, _ in claim.partitions} == {"a"}
        pull(bus, "a")
        with pytest.raises(PartitionOffline):
            await bus.claim("q", "r", 100)
        await reopen(bus, "a", "b")
        assert len(await bus.read_claim("q", "r", 1)) == claim.count


@pytest.mark.promise("R5")
@run
async def test_no_part_of_a_claim_is_read_while_another_is_offline(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        await fill(bus)
        await bus.claim("q", "r", 100)
        pull(bus, "b")
        for call in (bus.read_claim, bus.read_claim_arrow, bus.commit_claim):
            with pytest.raises(PartitionOffline):
                await call("q", "r", 1)
        assert not bus.claims("q")[0].read
        there = index_in(bus, "q", "a")
        assert len(await bus.read_claim("q", "r", 1, partition=there)) == 2
        with pytest.raises(PartitionOffline):
            await bus.read_claim("q", "r", 1, partition=index_in(bus, "q", "b"))
        await reopen(bus, "b")
        assert len(await bus.read_claim("q", "r", 1)) == 32
        await bus.commit_claim("q", "r", 1)
        assert await everything(bus) == []


@pytest.mark.promise("R5")
@pytest.mark.parametrize("kept", [False, True])
@run
async def test_a_store_fails_while_messages_are_set_aside(clock: ManualClock, kept: bool) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        texts = await fill(bus)
        disks.open["b"].fail_next(kept=kept)
        with pytest.raises(PartitionOffline):
            await bus.claim("q", "r", 100)
        assert bus.claims("q") == []
        assert claimed_anywhere(bus) == set(), "what could be reached is given back"
        again = await bus.claim("q", "r", 3)
        assert again is not None
        assert again.number == 1, "no number was used"
        await reopen(bus, "b")
        assert claimed_anywhere(bus) == {"claim/r/1"}
        assert len(await bus.read_claim("q", "r", 1)) == 3
        await bus.release_claim("q", "r", 1)
        assert await everything(bus) == texts


@pytest.mark.promise("R5")
@pytest.mark.parametrize("kept", [False, True])
@run
async def test_the_namespace_fails_while_a_claim_is_decided(clock: ManualClock, kept: bool) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        texts = await fill(bus)
        disks.open["namespace"].fail_next(kept=kept)
        with pytest.raises(Unknown):
            await bus.claim("q", "r", 10)
        with pytest.raises(PartitionOffline):
            await bus.claim("q", "r", 10)
        pull(bus, "b")
        await reopen(bus, "b")
        await settle(bus)
    async with disks.bus(clock, *STORES) as bus:
        assert [(c.number, c.count) for c in bus.claims("q")] == ([(1, 10)] if kept else [])
        assert claimed_anywhere(bus) == ({"claim/r/1"} if kept else set())
        if kept:
            assert len(await bus.read_claim("q", "r", 1)) == 10
            await bus.release_claim("q", "r", 1)
        assert await everything(bus) == texts


@pytest.mark.promise("R5")
@run
async def test_a_crash_before_the_decision_gives_all_back(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        texts = await fill(bus)
        crash_at(disks.open["namespace"], bus, lambda batch: CLAIMS in batch.tables)
        claiming = asyncio.create_task(bus.claim("q", "r", 100))
        await until_closed(bus)
        claiming.cancel()
    assert any(table.name == "holds" and rows for table, rows in disks.open["a"].tables.items())
    async with disks.bus(clock, *STORES) as bus:
        assert bus.claims("q") == []
        assert claimed_anywhere(bus) == set()
        assert await everything(bus) == texts


@pytest.mark.promise("R5")
@pytest.mark.parametrize("kept", [False, True])
@run
async def test_a_store_fails_after_a_commit_was_decided(clock: ManualClock, kept: bool) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        texts = await fill(bus)
        await bus.claim("q", "r", 20)
        messages = await bus.read_claim("q", "r", 1)
        dead = {messages[0].sequence_number: ("bad", None)}
        disks.open["b"].fail_next(kept=kept)
        with pytest.raises(Unknown, match="committed"):
            await bus.commit_claim("q", "r", 1, dead_letters=dead)
        assert [claim.committing for claim in bus.claims("q")] == [True]
        with pytest.raises(Unknown):
            await bus.commit_claim("q", "r", 1)
        for call in (bus.read_claim, bus.release_claim):
            with pytest.raises(ClaimNotFound):
                await call("q", "r", 1)
        await reopen(bus, "b")
        await settle(bus)
        assert bus.claims("q") == []
        await bus.commit_claim("q", "r", 1)
        assert claimed_anywhere(bus) == set()
        assert bodies(bus.peek("q", dead_letters=True)) == bodies(messages[:1])
        assert await everything(bus) == sorted(set(texts) - set(bodies(messages)))


@pytest.mark.promise("R5")
@pytest.mark.parametrize("store", ["a", "b", "namespace"])
@run
async def test_a_crash_after_a_commit_was_decided(clock: ManualClock, store: str) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        texts = await fill(bus)
        await bus.claim("q", "r", 20)
        messages = await bus.read_claim("q", "r", 1)
        await settle(bus)
        last = (1, "r", 1)
        crash_at(
            disks.open[store],
            bus,
            # Of the namespace: the last step, where the row goes.
            lambda batch: store != "namespace" or batch.tables.get(CLAIMS, {}).get(last, 1) is None,
        )
        committing = asyncio.create_task(bus.commit_claim("q", "r", 1))
        await until_closed(bus)
        committing.cancel()
    async with disks.bus(clock, *STORES) as bus:
        await settle(bus)
        await bus.commit_claim("q", "r", 1)
        assert bus.claims("q") == []
        assert claimed_anywhere(bus) == set()
        assert await everything(bus) == sorted(set(texts) - set(bodies(messages)))


@pytest.mark.promise("R5")
@pytest.mark.parametrize("kept", [False, True])
@run
async def test_the_namespace_fails_while_a_commit_is_decided(
    clock: ManualClock, kept: bool
) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        texts = await fill(bus)
        await bus.claim("q", "r", 20)
        messages = await bus.read_claim("q", "r", 1)
        disks.open["namespace"].fail_next(kept=kept)
        for error in (Unknown, PartitionOffline):
            with pytest.raises(error):
                await bus.commit_claim("q", "r", 1)
        assert claimed_anywhere(bus) == {"claim/r/1"}, "nothing is done that is not decided"
    async with disks.bus(clock, *STORES) as bus:
        await settle(bus)
        if not kept:
            assert await bus.read_claim("q", "r", 1) == messages
        await bus.commit_claim("q", "r", 1)
        assert claimed_anywhere(bus) == set()
        assert await everything(bus) == sorted(set(texts) - set(bodies(messages)))


@pytest.mark.promise("R5", "R7")
@pytest.mark.parametrize("how", ["asked", "lease"])
@run
async def test_a_store_that_was_down_gives_back_when_it_comes(clock: ManualClock, how: str) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        texts = await fill(bus)
        claim = await bus.claim("q", "r", 100)
        assert claim is not None
        pull(bus, "b")
        if how == "asked":
            await bus.release_claim("q", "r", 1)
        else:
            # The store comes back by itself before the lease ends, and goes down again.
            await pass_ms(bus, clock, MINUTE - 1)
            pull(bus, "b")
            await pass_ms(bus, clock, 1)
        assert bus.claims("q") == []
        assert bus.queue("q").held_count == 0
        assert bus.queue("q").availability == "limited"
        await reopen(bus, "b")
        assert claimed_anywhere(bus) == set()
        assert await everything(bus) == texts


@pytest.mark.promise("R5")
@pytest.mark.parametrize("call", ["read_claim", "release_claim"])
@pytest.mark.parametrize("kept", [False, True])
@run
async def test_the_namespace_fails_while_a_claim_is_read_or_given_back(
    clock: ManualClock, call: str, kept: bool
) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        texts = await fill(bus)
        await bus.claim("q", "r", 100)
        disks.open["namespace"].fail_next(kept=kept)
        with pytest.raises(Unknown):
            await getattr(bus, call)("q", "r", 1)
    async with disks.bus(clock, *STORES) as bus:
        gone = call == "release_claim" and kept
        assert [claim.read for claim in bus.claims("q")] == (
            [] if gone else [call == "read_claim" and kept]
        )
        await pass_ms(bus, clock, MINUTE)
        stays = call == "read_claim" and kept
        assert len(bus.claims("q")) == stays
        assert await everything(bus) == ([] if stays else texts)


@pytest.mark.promise("R5")
@pytest.mark.parametrize("slow", ["a", "namespace"])
@run
async def test_a_store_reopened_while_a_claim_is_made_keeps_its_part(
    clock: ManualClock, slow: str
) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        await fill(bus)
        await settle(bus)
        started, go_on = hold_up(disks.open[slow], bus)
        claiming = asyncio.create_task(bus.claim("q", "r", 100))
        await started.wait()
        while (loop := bus.broker.stores["b"].loop) is None or loop.busy or loop.waiting:
            await asyncio.sleep(0.001)
        pull(bus, "b")
        await reopen(bus, "b")
        go_on.set()
        claim = await claiming
        assert claim is not None
        assert len(await bus.read_claim("q", "r", 1)) == claim.count == 32


@pytest.mark.promise("R5")
@run
async def test_a_store_lost_between_two_slices_of_a_claim(clock: ManualClock) -> None:
    (key,) = keys_of(0, 1)
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        await bus.send_batch("q", [msg(f"{n}", partition_key=key) for n in range(3_000)])
        claiming = asyncio.create_task(bus.claim("q", "r", 3_000))
        while "claim/r/1" not in claimed_anywhere(bus):
            await asyncio.sleep(0)
        pull(bus, "main")
        await reopen(bus, "main")
        with pytest.raises(PartitionOffline):
            await claiming
        assert bus.claims("q") == []
        assert claimed_anywhere(bus) == set()
        assert len(await everything(bus)) == 3_000


@run
async def test_a_bus_that_closes_finishes_what_was_asked_of_claims(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    await bus.create_queue("q")
    await bus.send_batch("q", [msg("x" * 500)] * 5_000)
    await bus.claim("q", "r", 5_000)
    first = await bus.read_claim("q", "r", 1)
    await bus.close()
    bus = await disks.bus(clock)
    await settle(bus)
    again = asyncio.create_task(bus.read_claim("q", "r", 1))
    await asyncio.sleep(0)
    await bus.close()
    assert await again == first


def hold_up(store: MemoryStore, bus: Bus) -> tuple[asyncio.Event, asyncio.Event]:
    """Let a store's next commit wait; return what tells that it does, and what lets it go on."""
    started, go_on = asyncio.Event(), asyncio.Event()

    def commit(batch: WriteBatch) -> None:
        store.commit = real  # type: ignore[method-assign]
        bus._loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), bus._loop).result()
        real(batch)

    real = store.commit
    store.commit = commit  # type: ignore[method-assign]
    return started, go_on


def crash_at(store: MemoryStore, bus: Bus, when: Callable[[WriteBatch], bool]) -> None:
    """Let the process die in the first commit of a store for which `when` is true."""

    def commit(batch: WriteBatch) -> None:
        if not bus.broker.closed and when(batch):
            store.close()
            bus._loop.call_soon_threadsafe(crash, bus)
        real(batch)

    real = store.commit
    store.commit = commit  # type: ignore[method-assign]


async def until_closed(bus: Bus) -> None:
    while not bus.broker.closed:
        await asyncio.sleep(0.001)


@pytest.mark.promise("R5")
@pytest.mark.parametrize("seed", range(5))
@run
async def test_whatever_fails_each_message_is_committed_once(clock: ManualClock, seed: int) -> None:
    chance = random.Random(seed)
    disks = Disks()
    seen: dict[int, list[str]] = {}
    async with disks.bus(clock, *STORES) as bus:
        texts = await fill(bus, 64)

        def perhaps_fail() -> None:
            if chance.random() < 0.3:
                disks.open[chance.choice(STORES)].fail_next(kept=chance.random() < 0.5)

        for _ in range(30):
            with contextlib.suppress(OnibusError):
                perhaps_fail()
                claim = await bus.claim("q", "r", 5)
                if claim is not None:
                    seen[claim.number] = bodies(await bus.read_claim("q", "r", claim.number))
                    perhaps_fail()
                    await bus.commit_claim("q", "r", claim.number)
            await reopen(bus, *[name for name in STORES if not bus.broker.stores[name].online])
            await settle(bus)
            for left in bus.claims("q"):
                # Made, and its part of a store was gone before it could be read or committed.
                assert not left.committing
                await bus.release_claim("q", "r", left.number)
                seen.pop(left.number, None)
            assert claimed_anywhere(bus) == set()
        committed = [text for claimed in seen.values() for text in claimed]
        assert len(committed) > 20
        assert sorted(committed + await everything(bus)) == texts
