"""Compaction as an owner meets it: what little lives takes little disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from onibus import Bus, Filter
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
        seat = bus.broker.find("q").seats[0]
        while bus.broker.tidy(seat):
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
