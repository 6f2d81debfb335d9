"""Claims that wait for messages (R5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onibus import Bus, errors
from tests.bus_helpers import Disks, ManualClock, get, msg, run, tick, until


async def waiting(bus: Bus, reader: str = "r") -> asyncio.Task[Any]:
    """Return a claim that waits."""
    task = asyncio.create_task(bus.claim("q", reader, 10, wait_ms=5_000))
    entity = bus.broker.find("q")
    count = len(entity.waiters)
    await until(lambda: task.done() or len(entity.waiters) > count)
    assert not task.done()
    return task


@pytest.mark.promise("R5")
@pytest.mark.parametrize("settings", [{}, {"requires_session": True}])
@run
async def test_a_claim_waits_for_the_first_message(
    clock: ManualClock, settings: dict[str, Any]
) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", enable_partitioning=True, **settings)
        for number in range(1, 4):
            task = await waiting(bus)
            session = str(number) if settings else None
            await bus.send("q", msg("a", session_id=session))
            made = await task
            assert (made.number, made.count) == (number, 1)
        assert [one.count for one in bus.claims("q")] == [1, 1, 1]


@pytest.mark.promise("R5")
@run
async def test_a_wait_ends_without_a_claim(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q")
        late = await waiting(bus)
        clock.advance(5_000)
        tick(bus)
        assert await late is None
        left = await waiting(bus)
        left.cancel()
        await bus.send("q", msg("a"))
        assert [one.body for one in await get(bus, "q")] == [b"a"], "no claim has it"
        assert bus.claims("q") == []
        gone = await waiting(bus)
        await bus.delete_queue("q")
        with pytest.raises(errors.EntityNotFound):
            await gone
        with pytest.raises(errors.EntityNotFound):
            await bus.claim("q", "r", 10, wait_ms=5_000)


@pytest.mark.promise("R5")
@run
async def test_a_claim_whose_client_left_while_it_was_made_is_released(
    clock: ManualClock,
) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q")
        await bus.send("q", msg("a"))
        task = asyncio.create_task(bus.claim("q", "r", 10, wait_ms=5_000))
        await asyncio.sleep(0)
        assert not task.done(), "it has found the message, and waits for its commit"
        task.cancel()
        [received] = await bus.receiver("q").receive(1, wait_ms=60_000)
        assert received.body == b"a"
        assert bus.claims("q") == []
