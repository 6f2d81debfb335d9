"""Quotas, sizes, paused and idle entities, a full disk (B7); memory that stays small (D7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onibus import Bus
from onibus.core.errors import (
    DiskNearlyFull,
    EntityDisabled,
    EntityNotFound,
    InvalidArgument,
    MessageTooLarge,
    QuotaExceeded,
)
from onibus.directory import turns
from onibus.shard.tidying import tidy
from tests.bus_helpers import (
    HOUR,
    KEYS,
    MINUTE,
    Disks,
    ManualClock,
    bodies,
    get,
    get_one,
    msg,
    partition_at,
    pass_ms,
    picture,
    run,
    send,
    settle,
)
from tests.gateway.topic_helpers import sql


@pytest.mark.promise("B7")
@run
async def test_an_idle_entity_is_deleted(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", auto_delete_on_idle_ms=5 * MINUTE)
        await bus.create_queue("kept")
        for use in (send(bus, "q", "x"), get(bus, "q"), get(bus, "q")):
            await pass_ms(bus, clock, 5 * MINUTE - 1)
            await use
        await pass_ms(bus, clock, 5 * MINUTE - 1)
        assert bus.queues() == ["kept", "q"]
        await pass_ms(bus, clock, 1)
        assert bus.queues() == ["kept"]
        with pytest.raises(EntityNotFound):
            await send(bus, "q", "x")
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bus.queues() == ["kept"]


@pytest.mark.promise("B7")
@run
async def test_somebody_who_waits_keeps_an_entity(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", auto_delete_on_idle_ms=5 * MINUTE)
        waiting = asyncio.ensure_future(bus.receiver("q").receive(wait_ms=HOUR))
        await asyncio.sleep(0)
        await pass_ms(bus, clock, 20 * MINUTE)
        assert bus.queues() == ["q"]
        await send(bus, "q", "x")
        assert bodies(await waiting) == ["x"]
        await bus.change_queue("q", auto_delete_on_idle_ms=None)
        await pass_ms(bus, clock, 100 * HOUR)
        assert bus.queues() == ["q"]


@pytest.mark.promise("B7")
@run
async def test_a_full_queue_takes_more_once_it_was_emptied(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", max_size_bytes=5_000)
        await send(bus, "q", *["x" * 1_000] * 4)
        before = picture(bus, "q")
        with pytest.raises(QuotaExceeded) as raised:
            await send(bus, "q", "x" * 1_000)
        assert raised.value.retryable
        with pytest.raises(QuotaExceeded):
            await bus.send_batch("q", [msg("small"), msg("x" * 1_000)])
        assert picture(bus, "q") == before
    async with Bus.open(tmp_path, clock=clock) as bus:
        with pytest.raises(QuotaExceeded):
            await send(bus, "q", "x" * 1_000)
        await get_one(bus, "q", delete=True)
        await send(bus, "q", "x" * 1_000)
        await bus.change_queue("q", max_size_bytes=50_000)
        await send(bus, "q", "x" * 10_000)


@pytest.mark.promise("B7")
@run
async def test_sends_on_their_way_count_towards_the_quota(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", max_size_bytes=5_000)
        sends = [bus.send("q", msg("x" * 1_000)) for _ in range(20)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        refused = [one for one in outcomes if isinstance(one, QuotaExceeded)]
        assert len(refused) == 16
        assert bus.queue("q").active_count == 4
        assert bus.queue("q").size_bytes <= 5_000


@pytest.mark.parametrize("stores", [("a",), ("a", "b")])
@pytest.mark.parametrize("steps", [20, turns.SLICE_STEPS])
@run
async def test_batches_on_their_way_count_towards_the_quota(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, stores: tuple[str, ...], steps: int
) -> None:
    # With few steps a slice, each batch waits in its lane.
    monkeypatch.setattr(turns, "SLICE_STEPS", steps)
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_topic("t", enable_partitioning=True, max_size_bytes=5_000)
        await bus.create_subscription("t", "s", rules=[sql("some", "n > 1 AND n < 9 OR n = 0")])
        batch = [msg("x" * 1_000, partition_key=key, properties={"n": 5}) for key in KEYS[:2]]
        sends = [bus.send_batch("t", batch) for _ in range(20)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        refused = [one for one in outcomes if isinstance(one, QuotaExceeded)]
        assert len(refused) == 16
        assert bus.topic("t").size_bytes <= 10_000
        await settle(bus)
        assert not any(one.pending_bytes for one in bus.broker.find("t").partitions)


@pytest.mark.promise("B7")
@run
async def test_a_message_has_at_most_the_size_its_entity_takes(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        with pytest.raises(MessageTooLarge):
            await send(bus, "q", "x" * (1 << 20))
        await send(bus, "q", "x" * ((1 << 20) - 100))
        await bus.change_queue("q", max_message_bytes=2 << 20)
        await send(bus, "q", "x" * (1 << 20))
        with pytest.raises(InvalidArgument):
            await bus.change_queue("q", max_message_bytes=(100 << 20) + 1)
        assert bus.queue("q").active_count == 2


@pytest.mark.promise("B7")
@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [
        ("active", True, True),
        ("send-disabled", False, True),
        ("receive-disabled", True, False),
        ("disabled", False, False),
    ],
)
@run
async def test_a_paused_entity(
    clock: ManualClock, status: str, sends: bool, receives: bool
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "held", "waiting")
        held = await get_one(bus, "q")
        await bus.change_queue("q", status=status)
        if sends:
            await send(bus, "q", "new")
        else:
            with pytest.raises(EntityDisabled):
                await send(bus, "q", "new")
        if receives:
            assert bodies(await get(bus, "q", 1)) == ["waiting"]
        else:
            with pytest.raises(EntityDisabled):
                await get(bus, "q", 1)
        await bus.receiver("q").complete(held)
        assert bus.queue("q").active_count == 1 + sends, "settling and looking always work"
        assert next(m.body for m in bus.peek("q")) == b"waiting"
        await bus.change_queue("q", status="active")
        await send(bus, "q", "again")


@pytest.mark.promise("B7")
@run
async def test_pausing_reaches_those_who_wait(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        waiting = asyncio.ensure_future(bus.receiver("q").receive(wait_ms=HOUR))
        await asyncio.sleep(0)
        await bus.change_queue("q", status="receive-disabled")
        await send(bus, "q", "x")
        with pytest.raises(EntityDisabled):
            await waiting
        assert bus.queue("q").held_count == 0


@pytest.mark.promise("B7")
@run
async def test_a_nearly_full_disk_refuses_sends_and_lets_settling_go_on(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", requires_duplicate_detection=True)
        await send(bus, "q", "1", message_id="1")
        await send(bus, "q", "2", message_id="2")
    async with Bus.open(tmp_path, clock=clock, reserve_bytes=1 << 60) as bus:
        with pytest.raises(DiskNearlyFull) as raised:
            await send(bus, "q", "3", message_id="3")
        assert raised.value.retryable
        first, second = await get(bus, "q")
        await bus.receiver("q").complete(first)
        await bus.receiver("q").defer(second)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert [m.state for m in bus.peek("q")] == ["deferred"]
        (sent,) = await send(bus, "q", "3", message_id="3")
        assert sent.duplicate_of is None, "the refused one was not remembered"


@pytest.mark.promise("D7")
@run
async def test_a_send_reads_nothing_however_many_ids_are_remembered(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 40_000
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", requires_duplicate_detection=True)
        for start in range(0, count, 5_000):
            batch = [msg(message_id=f"{n}") for n in range(start, start + 5_000)]
            await bus.send_batch("q", batch)
            partition = bus.broker.find("q").partitions[0]
            while tidy(partition):
                await pass_ms(bus, clock, 0)
            await get(bus, "q", 5_000, delete=True)
    async with Bus.open(tmp_path, clock=clock) as bus:
        core = partition_at(bus, "q")
        reads: list[int] = []
        pages = core.log.pages
        read_ids = pages.read_ids

        def counted(chunk: int) -> bytes:
            reads.append(chunk)
            return read_ids(chunk)

        monkeypatch.setattr(pages, "read_ids", counted)
        fresh = [msg(message_id=f"new {n}") for n in range(2_000)]
        assert all(s.duplicate_of is None for s in await bus.send_batch("q", fresh))
        assert len(reads) <= 20, "the filters answer for almost all of them"
        assert (await bus.send("q", msg(message_id="17"))).duplicate_of == 18
        assert bus.queue("q").remembered_ids == count + 2_000
        assert core.ids.memory_bytes() < 32 * count + 500_000
