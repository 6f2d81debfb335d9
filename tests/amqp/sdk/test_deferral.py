"""Deferral (L) through the official clients."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessageState, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusError

from tests.amqp.sdk.stage import scenario
from tests.amqp.sdk.world import (
    MINUTE,
    World,
    bodies,
    get,
    get_one,
    msg,
    numbers,
    peek_all,
)

DEFERRED, ACTIVE = ServiceBusMessageState.DEFERRED, ServiceBusMessageState.ACTIVE


async def deferred(sender: Any, receiver: Any, *texts: str, **fields: Any) -> list[int]:
    """Send messages and defer them; return their numbers."""
    found = []
    for text in texts:
        await sender.send_messages(msg(text, **fields))
        message = await get_one(receiver)
        await receiver.defer_message(message)
        found.append(message.sequence_number)
    return found


async def states(receiver: Any) -> list[tuple[str, ServiceBusMessageState]]:
    return [(str(one), one.state) for one in await peek_all(receiver)]


@pytest.mark.promise("L1", "L3")
@scenario
async def test_a_deferred_message_is_set_aside(world: World) -> None:
    queue = await world.queue()
    sender, receiver, other = await world.open(
        world.to(queue), world.of(queue), world.of(queue, delete=True)
    )
    [number] = await deferred(sender, receiver, "1")
    await sender.send_messages(msg("2"))
    assert await states(receiver) == [("1", DEFERRED), ("2", ACTIVE)]
    assert str(await get_one(other)) == "2", "no ordinary receive returns it"
    await sender.send_messages(msg("3"))
    assert str(await get_one(receiver)) == "3"
    [again] = await other.receive_deferred_messages(number)
    assert (str(again), again.state) == ("1", DEFERRED)


@pytest.mark.promise("L2", "P12")
@scenario
async def test_they_are_received_by_number_all_or_none(world: World) -> None:
    plain, parts = await world.queue(), await world.queue(enable_partitioning=True)
    links = await world.open(
        *(world.to(plain), world.of(plain), world.of(plain)),
        *(world.to(parts), world.of(parts), world.of(parts)),
    )
    await by_number(world, *links[:3])
    await by_number(world, *links[3:])


async def by_number(world: World, sender: Any, receiver: Any, other: Any) -> None:
    known = await deferred(sender, receiver, "1", "2", "3")
    await sender.send_messages(msg("active"))
    [active] = [one for one in await peek_all(receiver) if str(one) == "active"]
    for wrong in (active.sequence_number, 10**6, 1 << 62):
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages([*known, wrong])
    # Any receiver that knows the numbers.
    received = await other.receive_deferred_messages([known[2], known[0]])
    assert sorted(bodies(received)) == ["1", "3"]
    with pytest.raises(MessageNotFoundError):
        await receiver.receive_deferred_messages([known[1], known[0]])  # that one is locked
    for message in received:
        until = message.locked_until_utc
        await world.advance(10)
        assert await other.renew_message_lock(message) > until
        await other.complete_message(message)
    assert sorted(bodies(await peek_all(receiver))) == ["2", "active"]


@pytest.mark.promise("L2", "B1")
@scenario
async def test_given_back_in_any_way_it_stays_deferred(world: World) -> None:
    queue = await world.queue(lock_duration=timedelta(minutes=1))
    sender, receiver = await world.both(queue)
    [number] = await deferred(sender, receiver, "x")
    for give_back in (receiver.abandon_message, receiver.defer_message):
        [message] = await receiver.receive_deferred_messages(number)
        await give_back(message)
    await receiver.receive_deferred_messages(number)
    await world.advance(MINUTE)
    await sender.send_messages(msg("active"))
    assert str(await get_one(receiver)) == "active"
    [again] = await receiver.receive_deferred_messages(number)
    assert again.delivery_count == 4
    await receiver.complete_message(again)
    with pytest.raises(MessageNotFoundError):
        await receiver.receive_deferred_messages(number)
    [other] = await deferred(sender, receiver, "other")
    [held] = await receiver.receive_deferred_messages(other)
    await receiver.dead_letter_message(held, reason="bad", error_description="worse")
    [letter] = await world.owner.peek(queue, dead_letters=True)
    assert (letter.dead_letter_reason, letter.dead_letter_description) == ("bad", "worse")


@pytest.mark.promise("L2", "B4")
@scenario
async def test_in_a_session_its_holder_receives_deferred_messages(world: World) -> None:
    queue = await world.queue(requires_session=True)
    sender, holder, stranger = await world.open(
        world.to(queue), world.of(queue, session_id="s"), world.of(queue, session_id="t")
    )
    await sender.send_messages([msg("1", session_id="s"), msg("2", session_id="s")])
    first, second = await get(holder, 2)
    await holder.defer_message(first)
    await holder.complete_message(second)
    with pytest.raises(ServiceBusError):
        await stranger.receive_deferred_messages(first.sequence_number)
    [again] = await holder.receive_deferred_messages(first.sequence_number)
    assert (str(again), again.session_id) == ("1", "s")
    await holder.complete_message(again)
    assert (await world.admin.get_queue_runtime_properties(queue)).total_message_count == 0


@pytest.mark.promise("L4", "B2")
@scenario
async def test_deferral_does_not_touch_expiry(world: World) -> None:
    lock = {"lock_duration": timedelta(minutes=5)}
    buried = await world.queue(dead_lettering_on_message_expiration=True, **lock)
    gone = await world.queue(**lock)
    to_buried, of_buried, to_gone, of_gone, dead = await world.open(
        *(world.to(buried), world.of(buried), world.to(gone), world.of(gone)),
        world.of(buried, sub_queue=ServiceBusSubQueue.DEAD_LETTER),
    )
    assert await expires(world, to_gone, of_gone) != []
    assert await world.counts(gone) == (0, 0, 0)
    known = await expires(world, to_buried, of_buried)
    letters = await get(dead, 2)
    assert numbers(letters) == known
    assert {one.dead_letter_reason for one in letters} == {"TTLExpiredException"}


async def expires(world: World, sender: Any, receiver: Any) -> list[int]:
    """Defer two messages, one of which is locked when they expire; return their numbers."""
    life = {"time_to_live": timedelta(minutes=4)}
    loose, locked = await deferred(sender, receiver, "loose", "locked", **life)
    [held] = await receiver.receive_deferred_messages(locked)
    await world.advance(2 * MINUTE)
    assert len(await peek_all(receiver)) == 2
    await world.advance(2 * MINUTE)
    assert bodies(await peek_all(receiver)) == ["locked"], "the loose one has expired"
    await receiver.abandon_message(held)
    assert await peek_all(receiver) == [], "as soon as it was let go"
    with pytest.raises(MessageNotFoundError):
        await receiver.receive_deferred_messages(locked)
    return [loose, locked]


@pytest.mark.promise("L5")
@scenario
async def test_deferred_for_a_while_it_comes_back_at_its_place(world: World) -> None:
    """These clients have no call for it: a client of ours defers, and they see what comes back."""
    queue = await world.queue()
    sender, receiver = await world.both(queue, delete=True)
    await sender.send_messages([msg("1"), msg("2")])
    ours = world.owner.receiver(queue, renew_ms=0)
    [first] = await ours.receive(1)
    await ours.defer(first, delay_ms=10 * MINUTE)
    await world.advance(5 * MINUTE)
    assert await states(receiver) == [("1", DEFERRED), ("2", ACTIVE)]
    await world.advance(5 * MINUTE)
    received = await get(receiver, 2)
    assert (bodies(received), numbers(received)) == (["1", "2"], [1, 2])


@pytest.mark.promise("L5", "S5")
@scenario
async def test_a_scheduled_message_that_carries_the_number_works_as_well(world: World) -> None:
    sender, receiver = await world.both(await world.queue())
    [number] = await deferred(sender, receiver, "work")
    reminder = msg("reminder", application_properties={"number": number})
    await sender.schedule_messages(reminder, await world.now() + timedelta(minutes=5))
    await world.advance(5 * MINUTE)
    message = await get_one(receiver)
    [work] = await receiver.receive_deferred_messages(message.application_properties[b"number"])
    assert str(work) == "work"
    await receiver.complete_message(work)
    await receiver.complete_message(message)
    assert await peek_all(receiver) == []
