"""Bad arguments of calls, calls at the wrong time: a typed error, and nothing is changed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onibus import Bus, Filter
from onibus.core.errors import (
    BusClosed,
    EntityExists,
    InvalidArgument,
    InvalidOperation,
    NoSession,
)
from tests.bus_helpers import HOUR, ManualClock, bodies, get, msg, one_held, picture, run, send


@pytest.mark.parametrize(
    "arguments",
    [
        {"delay_ms": -1},
        {"delay_ms": "1"},
        {"delay_ms": 1.5},
        {"delay_ms": None},
        {"delay_ms": 2**60},
        {"properties": ["a"]},
        {"properties": {5: 1}},
        {"properties": {"a": Ellipsis}},
        {"properties": {"a": [1]}},
        {"properties": "text"},
        {"properties": {"a": "\ud800"}},
        {"properties": {"a": 2**64}},
        {"reason": 5},
        {"reason": b"bytes"},
        {"reason": "x" * 4_097},
        {"reason": "\ud800"},
        {"description": ["x"]},
        {"description": "x" * 4_097},
    ],
    ids=str,
)
@run
async def test_arguments_of_settling(clock: ManualClock, arguments: dict[str, Any]) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        held = await one_held(bus)
        before = picture(bus, "q")
        receiver = bus.receiver("q")
        names = set(arguments)
        if names & {"reason", "description", "properties"}:
            with pytest.raises(InvalidArgument):
                await receiver.dead_letter(held, **arguments)
        if names & {"delay_ms", "properties"}:
            for settle in (receiver.abandon, receiver.defer):
                with pytest.raises(InvalidArgument):
                    await settle(held, **arguments)
        assert picture(bus, "q") == before
        await receiver.complete(held)


@pytest.mark.parametrize("limit", [0, -1, 10_001, "1", None, 1.5])
@run
async def test_how_many(clock: ManualClock, limit: Any) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "x")
        with pytest.raises(InvalidArgument):
            await bus.receiver("q").receive(limit)
        with pytest.raises(InvalidArgument):
            bus.peek("q", limit=limit)
        assert bus.queue("q").held_count == 0


@pytest.mark.parametrize("bad", ["1", None, -1, 1.5])
@run
async def test_waits_and_starts(clock: ManualClock, bad: Any) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await bus.create_queue("s", requires_session=True)
        await bus.create_queue("f", fifo=True)
        await send(bus, "q", "x")
        for call in (
            lambda: bus.receiver("q").receive(wait_ms=bad),
            lambda: bus.accept_session("s", wait_ms=bad),
            lambda: bus.fifo_receiver("f").receive(wait_ms=bad),
        ):
            with pytest.raises(InvalidArgument):
                await call()
        with pytest.raises(InvalidArgument):
            bus.peek("q", start=bad)
        assert bus.queue("q").held_count == 0


@pytest.mark.parametrize(
    "where",
    [
        Filter(state="asleep"),
        Filter(body_contains="text"),  # type: ignore[arg-type]
        Filter(session_id=5),  # type: ignore[arg-type]
        Filter(enqueued_from_ms="noon"),  # type: ignore[arg-type]
        Filter(state=["active"]),  # type: ignore[arg-type]
        "active",
        {"state": "active"},
    ],
    ids=str,
)
@run
async def test_filters(clock: ManualClock, where: Any) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "x", session_id="s")
        before = picture(bus, "q")
        with pytest.raises(InvalidArgument):
            bus.peek("q", where=where)
        with pytest.raises(InvalidArgument):
            await bus.purge("q", where)
        assert picture(bus, "q") == before


@pytest.mark.parametrize("session_id", ["x" * 129, 5, b"s", "\ud800"])
@run
async def test_sessions(clock: ManualClock, session_id: Any) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_session=True)
        with pytest.raises(InvalidArgument):
            await bus.accept_session("q", session_id)
        with pytest.raises(NoSession):
            await bus.accept_session("q")
        assert bus.sessions("q") == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"attempt_id": ""},
        {"attempt_id": "x" * 129},
        {"attempt_id": 5},
        {"attempt_id": "\ud800"},
        {"visibility_ms": -1},
        {"visibility_ms": 12 * HOUR + 1},
        {"visibility_ms": "1"},
    ],
    ids=str,
)
@run
async def test_receiving_from_fifo_queues(clock: ManualClock, arguments: dict[str, Any]) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", fifo=True)
        await bus.create_queue("plain")
        await send(bus, "q", "x", message_id="1", session_id="g")
        receiver = bus.fifo_receiver("q")
        with pytest.raises(InvalidArgument):
            await receiver.receive(**arguments)
        with pytest.raises(InvalidOperation):
            await bus.fifo_receiver("plain").receive()
        (message,) = await receiver.receive()
        for visibility in (-1, 12 * HOUR + 1, "1", None):
            with pytest.raises(InvalidArgument):
                await receiver.change_visibility(message, visibility)  # type: ignore[arg-type]
        await receiver.complete(message)


@run
async def test_use_after_close(clock: ManualClock) -> None:
    bus = await Bus.ephemeral(clock=clock)
    await bus.create_queue("q")
    await send(bus, "q", "x", "y")
    receiver = bus.receiver("q")
    (held,) = await receiver.receive()
    await receiver.receive()
    waiting = asyncio.ensure_future(receiver.receive(wait_ms=HOUR))
    await asyncio.sleep(0)
    await bus.close()
    with pytest.raises(BusClosed):
        await waiting
    await bus.close()
    for call in (
        lambda: bus.send("q", msg()),
        lambda: bus.send_batch("q", [msg()]),
        lambda: bus.create_queue("new"),
        lambda: bus.delete_queue("q"),
        lambda: receiver.receive(),
        lambda: receiver.complete(held),
        lambda: bus.purge("q"),
        lambda: bus.accept_session("q"),
        lambda: bus.schedule("q", msg(), 1),
    ):
        with pytest.raises(BusClosed):
            await call()
    for look in (bus.queue, bus.peek, bus.receiver, bus.sessions, bus.duplicates):
        with pytest.raises(BusClosed):
            look("q")
    with pytest.raises(BusClosed):
        bus.queues()


@run
async def test_one_entity_decided_twice_at_once(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        outcomes = await asyncio.gather(
            bus.create_queue("q"), bus.create_queue("q"), return_exceptions=True
        )
        assert [type(one) for one in outcomes] == [type(None), EntityExists]
        with pytest.raises(EntityExists):
            await bus.create_queue("Q")
        await send(bus, "q", "x")
        assert bodies(await get(bus, "q")) == ["x"]
