"""Compaction as an owner meets it: what little lives takes little disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from onibus import Bus, Filter
from onibus.core.path import compact
from onibus.shard import pages
from onibus.shard.tidying import tidy
from tests import bus_helpers
from tests.bus_helpers import (
    ManualClock,
    get,
    msg,
    partition_at,
    pass_ms,
    peek_everything,
    settle,
)
from tests.gateway.topic_helpers import sound, topic_with

#: Thousands of syncs of a real disk, which others may be using.
run = partial(bus_helpers.run, patience_s=180)


@pytest.mark.promise("B8")
@run
async def test_one_deferred_message_in_each_of_a_thousand_large_blocks(
    tmp_path: Path, clock: ManualClock
) -> None:
    blocks, rows, size = 1_000, 50, 4_000
    async with Bus.open(tmp_path, clock=clock, reserve_bytes=0) as bus:
        await bus.create_queue("q")
        receiver = bus.receiver("q")
        body = "x" * size
        for n in range(blocks):
            await bus.send_batch("q", [msg(f"{n}/{at} {body}") for at in range(rows)])
        for _ in range(blocks):
            held = await receiver.receive(rows)
            await receiver.defer(held[7])
            await receiver.complete(*held[:7], *held[8:])
        before = peek_everything(bus, "q", where=Filter(state="deferred"))
        assert len(before) == blocks
        partition = bus.broker.find("q").partitions[0]
        while tidy(partition):
            await settle(bus)
        lives = sum(len(message.body) for message in before)
        assert partition_at(bus, "q").log.total_bytes <= 2 * lives
        loop = bus.broker.stores["main"].loop
        assert loop is not None
        loop.store.maintain()
        loop.store.maintain()
        assert loop.store.size() <= 2 * lives, "what is free goes back to the disk"
        assert peek_everything(bus, "q", where=Filter(state="deferred")) == before
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert peek_everything(bus, "q") == before
        assert await get(bus, "q") == []


@run
async def test_what_is_mostly_dead_is_rewritten_when_nobody_works_with_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock, reserve_bytes=0) as bus:
        await bus.create_queue("q")
        for _ in range(4):
            await bus.send_batch("q", [msg("x" * 4_000) for _ in range(50)])
        log = partition_at(bus, "q").log
        whole = log.total_bytes
        receiver = bus.receiver("q")
        for _ in range(4):
            held = await receiver.receive(50)
            await receiver.complete(*held[:40])
            for message in held[40:]:
                await receiver.defer(message)
            await pass_ms(bus, clock, 999)
            assert log.total_bytes == whole, "somebody is at work"
        await pass_ms(bus, clock, 1_001)
        assert log.total_bytes < whole // 4


async def _topic_of_small_blocks(bus: Bus, subscriptions: int, messages: int) -> list[str]:
    """Send messages one by one to a topic; return the names of its subscriptions."""
    names = await topic_with(bus, *[f"s{n}" for n in range(subscriptions)])
    for n in range(messages):
        await bus.send("t", msg(f"{n}"))
    return names


@run
async def test_a_rewrite_for_many_subscriptions_takes_slices_of_counted_work(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        names = await _topic_of_small_blocks(bus, 300, 300)
        partition = bus.broker.find("t").partitions[0]
        slices = 0
        while tidy(partition):
            slices += 1
            await settle(bus)
        assert len(partition_at(bus, "t").log.places) < 50
        # 268 blocks of 300 steps, and 300 subscriptions of 100; a slice has 50,000.
        assert slices >= 3
        assert len(await get(bus, names[-1], 300)) == 300


@pytest.mark.promise("B8")
@pytest.mark.parametrize("slices", [10, 56, 58, 60])
@run
async def test_messages_settled_between_two_slices_of_a_rewrite_stay_settled(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    # Each bit is a slice: two for each of 28 blocks, then one for each subscription.
    monkeypatch.setattr(compact, "SLICE_STEPS", 1)
    monkeypatch.setattr(pages, "CACHE_BYTES_MAX", 0)
    async with Bus.open(tmp_path, clock=clock) as bus:
        names = await _topic_of_small_blocks(bus, 4, 60)
        core, partition = partition_at(bus, "t"), bus.broker.find("t").partitions[0]
        for _ in range(slices):
            assert tidy(partition)
        assert core.rewrite is not None
        # In all subscriptions, in one, and a block of the group as a whole.
        for name, count in zip(names, (40, 40, 45, 40), strict=True):
            receiver = bus.receiver(name)
            await receiver.complete(await receiver.receive(count))
        await bus.delete_subscription(names[1])
        await bus.create_subscription("t", "late")
        while tidy(partition):
            await settle(bus)
        assert len(core.log.places) < 40
        sound(bus)
    async with Bus.open(tmp_path, clock=clock) as bus:
        sound(bus)
        names[1] = "t/subscriptions/late"
        assert [len(await get(bus, name)) for name in names] == [20, 0, 15, 20]
