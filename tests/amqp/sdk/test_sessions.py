"""Sessions (B4) through the official clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from onibus import Message
from onibus.protocols.amqp import encode as to
from tests.amqp.sdk.raw_transaction import RawTransactions
from tests.amqp.sdk.stage import scenario
from tests.amqp.sdk.world import (
    MINUTE,
    SECOND,
    WAIT_S,
    World,
    bodies,
    get,
    get_one,
    msg,
)


@pytest.mark.promise("B4")
@scenario
async def test_a_session_has_one_holder_and_gives_its_messages_in_order(world: World) -> None:
    queue = await world.queue(requires_session=True, lock_duration=timedelta(minutes=1))
    sender, receiver = await world.both(queue, session_id="a")
    await sender.send_messages([msg(f"{n}", session_id="ab"[n % 2]) for n in range(6)])
    with pytest.raises(ServiceBusError, match="session_id"):
        await sender.send_messages(msg("without"))
    first, *_ = held = await get(receiver, 3)
    assert bodies(held) == ["0", "2", "4"]
    assert {one.session_id for one in held} == {"a"}
    other = world.of(queue, session_id=NEXT_AVAILABLE_SESSION)
    await asyncio.gather(
        world.open(other),
        world.refused(SessionCannotBeLockedError, world.of(queue, session_id="a")),
    )
    assert other.session.session_id == "b"
    for message in await get(other, 3):
        await other.complete_message(message)
    assert await other.session.get_state() is None
    await other.session.set_state(b"\x00 half way \xff")
    await receiver.complete_message(first)
    await world.advance(30 * SECOND)
    renewed = await receiver.session.renew_lock()
    assert renewed - await world.now() > timedelta(seconds=30)
    await asyncio.gather(receiver.close(), other.close())
    # Closing gave the session back, and what it held, without counting a delivery.
    receiver, other = await world.open(
        world.of(queue, session_id="a"), world.of(queue, session_id="b")
    )
    found = await get(receiver, 2)
    assert [(str(one), one.delivery_count) for one in found] == [("2", 0), ("4", 0)]
    assert await other.session.get_state() == b"\x00 half way \xff", "kept without messages"
    await other.session.set_state(None)
    assert await other.session.get_state() is None
    with pytest.raises(ServiceBusError):
        await other.session.set_state(b"x" * (256 * 1024 + 1))


@pytest.mark.promise("B4", "B1")
@scenario
async def test_who_lost_a_session_is_told_whatever_it_asks(world: World) -> None:
    queue = await world.queue(requires_session=True, lock_duration=timedelta(minutes=1))
    sender, receiver, asking, waiting = await world.open(
        world.to(queue), *(world.of(queue, session_id=session) for session in "stu")
    )
    await sender.send_messages(msg("x", session_id="s"))
    message = await get_one(receiver)
    session = asking.session
    await session.set_state(b"mine")
    comes = asyncio.ensure_future(waiting.receive_messages(1, max_wait_time=WAIT_S))
    await asyncio.sleep(0.05)
    await world.advance(MINUTE)
    with pytest.raises(SessionLockLostError):
        await comes
    with pytest.raises(SessionLockLostError):
        await receiver.complete_message(message)
    for ask in (session.renew_lock, session.get_state):
        with pytest.raises(SessionLockLostError):
            await ask()
    with pytest.raises(SessionLockLostError):
        await session.set_state(b"never")
    again, other = await world.open(
        world.of(queue, session_id="s", delete=True), world.of(queue, session_id="t")
    )
    assert (await get_one(again)).delivery_count == 1, "a lock that runs out counts"
    assert await other.session.get_state() == b"mine"


@pytest.mark.promise("B4")
@scenario
async def test_a_receiver_waits_for_a_session(world: World) -> None:
    queue, plain = await world.queue(requires_session=True), await world.queue()
    none_there = world.of(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.2)
    await asyncio.gather(
        world.refused(OperationTimeoutError, none_there),
        world.refused(ServiceBusError, world.of(queue), "requires sessions"),
        world.refused(ServiceBusError, world.of(plain, session_id="s"), "has no sessions"),
    )
    next_one = world.of(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT_S)
    sender = await world.sender(queue)
    waiting = asyncio.ensure_future(world.open(next_one))
    await asyncio.sleep(0.3)
    await sender.send_messages(msg("1", session_id="came later"))
    await waiting
    assert next_one.session.session_id == "came later"
    assert str(await get_one(next_one)) == "1"


@pytest.mark.promise("B4", "X8")
@scenario
async def test_sessions_are_listed(world: World) -> None:
    queue = await world.queue(requires_session=True, enable_partitioning=True)
    topic = await world.topic()
    await world.admin.create_subscription(topic, "s", requires_session=True)
    # Clients ask for a hundred at a time.
    wanted = [f"s-{n:03}" for n in range(230)]
    await world.owner.send_batch(queue, [Message(body=b"x", session_id=one) for one in wanted])
    await world.owner.send(topic, Message(body=b"x", session_id="of the topic"))
    with_state, _ = await world.open(
        world.of(queue, session_id="empty, with a state"),
        world.of(queue, session_id="empty, and held"),
    )
    await with_state.session.set_state(b"kept")
    client, yesterday = world.client, await world.now() - timedelta(days=1)
    found, of_topic, changed = await asyncio.gather(
        listed(client.list_queue_sessions(queue)),
        listed(client.list_subscription_sessions(topic, "s")),
        listed(client.list_queue_sessions(queue, state_updated_after=yesterday)),
    )
    assert sorted(found) == ["empty, with a state", *wanted]
    assert of_topic == ["of the topic"]
    assert changed == ["empty, with a state"]


async def listed(sessions: AsyncIterator[str]) -> list[str]:
    return [one async for one in sessions]


@pytest.mark.promise("B4", "B9")
@scenario
async def test_a_session_that_is_held_non_exclusively_is_locked_for_these_clients(
    world: World,
) -> None:
    """The receiver that holds it is a raw one: these clients accept exclusively only."""
    queue = await world.queue(requires_session=True)
    sender = await world.sender(queue)
    await sender.send_messages(msg("1", session_id="a"))
    with RawTransactions(world.server) as raw:
        name = "com.microsoft:non-exclusive-session-filter"
        wanted = to.described(0x137000000E, to.list_([to.string("a"), to.NULL]))
        handle = await asyncio.to_thread(raw.accept, queue, wanted, name)
        await world.refused(SessionCannotBeLockedError, world.of(queue, session_id="a"))
        await asyncio.to_thread(raw.detach, handle)
        receiver = world.of(queue, session_id="a")
        await world.open(receiver)
        assert bodies(await get(receiver, 1)) == ["1"]
