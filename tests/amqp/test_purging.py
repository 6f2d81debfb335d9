"""Deleting in batches until none is left, with a fixed time, as the .NET client purges (X2)."""

from __future__ import annotations

from typing import Any

import pytest

from onibus import Bus
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.service_bus.session_receiver import SESSION_FILTER
from tests.amqp.peer import Peer
from tests.bus_helpers import SECOND, ManualClock, bodies, get, msg, pass_ms, peek_everything, run

#: How many the client asks for in each request.
BATCH = 500


async def purge(peer: Peer, before_ms: int, **more: bytes) -> list[int]:
    """Ask again and again until nothing is deleted; return the counts."""
    counts: list[int] = []
    while not counts or counts[-1]:
        body = {
            "message-count": to.int_(BATCH),
            "enqueued-time-utc": to.timestamp(before_ms),
            **more,
        }
        status, told = await peer.request("batch-delete-messages", body)
        assert status == 200
        counts.append(told["message-count"])
    return counts


async def peer_of(bus: Bus, path: str) -> Peer:
    peer = Peer(bus)
    peer.greet()
    peer.open_requests(f"{path}/$management")
    return peer


async def fill(bus: Bus, count: int, **fields: Any) -> None:
    """Send messages to "q", in batches of one key each."""
    for start in range(0, count, 100):
        batch = [msg(str(start + n), **fields) for n in range(min(100, count - start))]
        if "session_id" not in fields:
            for one in batch:
                one.partition_key = f"k{start}"
        await bus.send_batch("q", batch)


@pytest.mark.promise("X2")
@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_messages_after_the_fixed_time_stay(partitioned: bool) -> None:
    clock = ManualClock()
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=partitioned)
        await fill(bus, 1_200)
        [held] = await get(bus, "q", 1)
        await pass_ms(bus, clock, SECOND)
        cutoff = clock.wall()
        await bus.send("q", msg("late", partition_key="k0"))
        peer = await peer_of(bus, "q")
        assert await purge(peer, cutoff) == [500, 500, 199, 0]
        assert sorted(bodies(peek_everything(bus, "q"))) == sorted([held.body.decode(), "late"])


@pytest.mark.promise("X2")
@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_dead_lettered_messages_and_deferred_ones(partitioned: bool) -> None:
    clock = ManualClock()
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=partitioned)
        await fill(bus, 30)
        async with bus.receiver("q") as receiver:
            for at, one in enumerate(await receiver.receive(20)):
                await (receiver.defer(one) if at < 5 else receiver.dead_letter(one))
        await pass_ms(bus, clock, SECOND)
        dead = await peer_of(bus, "q/$DeadLetterQueue")
        assert await purge(dead, clock.wall()) == [15, 0]
        alive = await peer_of(bus, "q")
        assert await purge(alive, clock.wall()) == [10, 0]
        assert {one.state for one in peek_everything(bus, "q")} == {"deferred"}
        assert peek_everything(bus, "q", dead_letters=True) == []


@pytest.mark.promise("X2", "B4")
@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_a_session_is_purged_by_its_receiver(partitioned: bool) -> None:
    clock = ManualClock()
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_session=True, enable_partitioning=partitioned)
        await fill(bus, 700, session_id="mine")
        await fill(bus, 20, session_id="other")
        await pass_ms(bus, clock, SECOND)
        peer = await peer_of(bus, "q")
        filters = to.fields({SESSION_FILTER: to.string("mine")})
        source = say.performative(say.SOURCE, [to.string("q"), *[to.NULL] * 6, filters])
        peer.attach(0, say.RECEIVER, "q", from_=source, rcv=1)
        await peer.hear(say.ATTACH)
        mine = {"session-id": to.string("mine")}
        assert await purge(peer, clock.wall(), **mine) == [500, 200, 0]
        body = {"message-count": to.int_(5), "enqueued-time-utc": to.timestamp(clock.wall())}
        other = body | {"session-id": to.string("other")}
        told, _ = await peer.ask("batch-delete-messages", other)
        assert told["errorCondition"] == "com.microsoft:session-lock-lost"
        assert {one.session_id for one in peek_everything(bus, "q")} == {"other"}


@pytest.mark.promise("X2")
@run
async def test_a_subscription_is_purged_alone() -> None:
    clock = ManualClock()
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_topic("q")
        names = [await bus.create_subscription("q", name) for name in ("one", "two")]
        await fill(bus, 10)
        await pass_ms(bus, clock, SECOND)
        peer = await peer_of(bus, "q/Subscriptions/one")
        assert await purge(peer, clock.wall()) == [10, 0]
        assert [len(peek_everything(bus, name)) for name in names] == [0, 10]
