"""Those who wait: whoever comes first is served first, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onibus import Bus, ReceivedMessage
from tests.bus_helpers import MINUTE, SECOND, ManualClock, bodies, msg, run, settle

WAITING = 50


async def waiting(bus: Bus, how_many: int, limit: int = 1) -> list[asyncio.Task[list[str]]]:
    """Start receivers that wait, one after the other."""

    async def one() -> list[str]:
        return bodies(await bus.fifo_receiver("q").receive(limit, wait_ms=MINUTE))

    tasks = []
    for _ in range(how_many):
        tasks.append(asyncio.create_task(one()))
        await settle(bus)
    return tasks


def served(tasks: list[asyncio.Task[list[str]]]) -> list[list[str]]:
    return [task.result() for task in tasks if task.done()]


@run
async def test_a_send_of_two_groups_serves_the_two_who_came_first(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", fifo=True)
        tasks = await waiting(bus, WAITING)
        await bus.send_batch("q", [msg(n, message_id=n, session_id=n) for n in ("a", "b")])
        await settle(bus)
        assert served(tasks) == [["a"], ["b"]]
        assert tasks[0].done()
        assert tasks[1].done()
        await bus.send("q", msg("c", message_id="c", session_id="c"))
        await settle(bus)
        assert served(tasks) == [["a"], ["b"], ["c"]]
        assert tasks[2].done()
        for task in tasks[3:]:
            task.cancel()


@run
async def test_who_waits_for_something_else_is_tried_though_others_find_nothing(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        active = [
            asyncio.create_task(bus.receiver("q").receive(wait_ms=MINUTE)) for _ in range(WAITING)
        ]
        await settle(bus)
        dead = asyncio.create_task(bus.receiver("q", dead_letters=True).receive(wait_ms=MINUTE))
        await settle(bus)
        await bus.send("q", msg("a"))
        await settle(bus)
        (message,) = await active[0]
        await bus.receiver("q").dead_letter(message)
        await settle(bus)
        assert bodies(await dead) == ["a"]
        assert not any(task.done() for task in active[1:])
        for task in active[1:]:
            task.cancel()


@pytest.mark.promise("F9")
@run
async def test_who_waits_gets_what_the_same_attempt_got_meanwhile(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", fifo=True)
        await bus.send("q", msg("a", message_id="a", session_id="g"))
        await bus.fifo_receiver("q").receive(visibility_ms=SECOND)
        others = await waiting(bus, 3)

        async def attempt(wait_ms: int) -> list[ReceivedMessage]:
            return await bus.fifo_receiver("q").receive(attempt_id="x", wait_ms=wait_ms)

        waits = asyncio.create_task(attempt(MINUTE))
        await settle(bus)
        clock.advance(SECOND)
        (got,) = await attempt(0)
        await settle(bus)
        assert [one.token for one in await waits] == [got.token]
        assert served(others) == []
        for task in others:
            task.cancel()


@pytest.mark.promise("F10")
@run
async def test_one_receive_over_several_groups_survives_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", fifo=True)
        for n in ("a1", "b1", "a2", "b2", "c1"):
            await bus.send("q", msg(n, message_id=n, session_id=n[0]))
        receiver = bus.fifo_receiver("q")
        held = await receiver.receive(5, visibility_ms=MINUTE, attempt_id="x")
        assert bodies(held) == ["a1", "a2", "b1", "b2", "c1"]
        await receiver.complete(held[0])
        await bus.send("q", msg("c2", message_id="c2", session_id="c"))
    async with Bus.open(tmp_path, clock=clock) as bus:
        receiver = bus.fifo_receiver("q")
        assert await receiver.receive(5) == []
        await receiver.complete(held[1], held[2])
        # b2 still blocks its group, c1 its own.
        await bus.send_batch("q", [msg(n, message_id=n, session_id=n[0]) for n in ("a3", "b3")])
        assert bodies(await receiver.receive(5, visibility_ms=5 * MINUTE)) == ["a3"]
        await receiver.change_visibility(held[3], 0)
        assert bodies(await receiver.receive(5, visibility_ms=5 * MINUTE)) == ["b2", "b3"]
        clock.advance(MINUTE + SECOND)
        assert bodies(await receiver.receive(2)) == ["c1", "c2"]


@run
async def test_receivers_that_were_cancelled_are_forgotten(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        receiver = bus.receiver("q")
        for _ in range(200):
            waiting = asyncio.create_task(receiver.receive(wait_ms=60 * MINUTE))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert len(bus.broker.find("q").waiters) <= 32
