"""Thousands of waiting receivers get messages, or an empty result, in slices (P6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onibus.gateway import broker as broker_module
from onibus.gateway import receiving
from tests.bus_helpers import Disks, ManualClock, msg, run, tick, until


@pytest.mark.promise("P6")
@run
async def test_many_that_wait_are_served_in_slices_and_in_order(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "TRIED_A_SLICE", 3)
    left: list[int] = []

    async with Disks().bus(clock) as bus:
        await bus.create_queue("q")
        entity = bus.broker.find("q")

        serve = receiving.serve

        def counted(*given: Any) -> None:
            serve(*given)
            left.append(len(entity.waiters))

        tasks = [
            asyncio.create_task(bus.receiver("q").receive(1, wait_ms=60_000)) for _ in range(10)
        ]
        await until(lambda: len(entity.waiters) == 10)
        for module in (broker_module, receiving):
            monkeypatch.setattr(module, "serve", counted)
        await bus.send_batch("q", [msg(str(at)) for at in range(10)])
        received = await asyncio.gather(*tasks)
        assert [one.body for (one,) in received] == [b"%d" % at for at in range(10)]
        counts = [10, *left]
        assert max(one - after for one, after in zip(counts, left, strict=False)) <= 3
        assert left[-1] == 0


@pytest.mark.promise("P6")
@run
async def test_many_that_wait_in_vain_are_told_in_slices(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "TIMERS_A_SLICE", 4)
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q")
        entity = bus.broker.find("q")
        tasks = [
            asyncio.create_task(bus.receiver("q").receive(1, wait_ms=60_000)) for _ in range(10)
        ]
        await until(lambda: len(entity.waiters) == 10)
        tick(bus)
        clock.advance(60_000)
        left = []
        while bus.broker.next_wake() <= bus.broker.clock.now():
            bus.broker.tick()
            left.append(len(entity.waiters))
        assert max(before - after for before, after in zip([10, *left], left, strict=False)) <= 4
        assert left[-1] == 0
        assert await asyncio.gather(*tasks) == [[]] * 10


@pytest.mark.promise("P6")
@run
async def test_many_that_wait_for_different_sessions_are_all_tried(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "TRIED_A_SLICE", 3)
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", requires_session=True)
        entity = bus.broker.find("q")
        sessions = [await bus.accept_session("q", str(at)) for at in range(10)]
        tasks = [asyncio.create_task(one.receive(1, wait_ms=60_000)) for one in sessions]
        await until(lambda: len(entity.waiters) == 10)
        await bus.send("q", msg("for the last", session_id="9"))
        [received] = await tasks[-1]
        assert received.body == b"for the last"
        await bus.send_batch("q", [msg(str(at), session_id=str(at)) for at in range(9)])
        assert [one.body for (one,) in await asyncio.gather(*tasks[:-1])] == [
            b"%d" % at for at in range(9)
        ]
