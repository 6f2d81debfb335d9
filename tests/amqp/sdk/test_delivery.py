"""Locks, settling, expiry and pauses (B1, B2, B7) through the official clients."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from azure.servicebus.management import EntityStatus

from tests.amqp.sdk.stage import scenario
from tests.amqp.sdk.world import (
    DAY,
    MINUTE,
    SECOND,
    WAIT_S,
    World,
    bodies,
    get,
    get_one,
    msg,
    numbers,
    peek_all,
)

DEAD_LETTER = ServiceBusSubQueue.DEAD_LETTER


@pytest.mark.promise("B1")
@scenario
async def test_a_message_arrives_as_it_was_sent(world: World) -> None:
    sender, receiver = await world.both(await world.queue())
    properties: Any = {"count": 3, "price": 0.5, "fresh": True, "kind": "apple"}
    await sender.send_messages(
        msg(
            b"3 apples",
            "m-1",
            subject="fruit",
            correlation_id="c",
            content_type="text/plain",
            to="you",
            reply_to="me",
            application_properties=properties,
        )
    )
    found = await get_one(receiver)
    assert b"".join(found.body) == b"3 apples"
    assert [found.message_id, found.subject, found.correlation_id] == ["m-1", "fruit", "c"]
    assert [found.content_type, found.to, found.reply_to] == ["text/plain", "you", "me"]
    assert found.application_properties == {
        **{b"count": 3, b"price": 0.5, b"fresh": True, b"kind": b"apple"}
    }
    assert isinstance(found.lock_token, UUID)
    assert found.delivery_count == 0


@pytest.mark.promise("B1")
@scenario
async def test_a_locked_message_is_nobody_elses_until_it_is_settled(world: World) -> None:
    queue = await world.queue(lock_duration=timedelta(minutes=1))
    sender, receiver, taker = await world.open(
        world.to(queue), world.of(queue), world.of(queue, delete=True)
    )
    await sender.send_messages([msg("1"), msg("2"), msg("3")])
    first = await get_one(receiver)
    left = first.locked_until_utc - await world.now()
    assert timedelta() < left <= timedelta(minutes=1)
    assert str(await get_one(taker)) == "2", "received and deleted in one"
    await receiver.complete_message(first)
    last = await get_one(receiver)
    await world.advance(30 * SECOND)
    assert await receiver.renew_message_lock(last) - await world.now() > timedelta(seconds=30)
    await world.advance(40 * SECOND)
    await sender.send_messages(msg("4"))
    assert str(await get_one(taker)) == "4", "it was renewed: nobody is given it"
    await world.advance(30 * SECOND)
    with pytest.raises(MessageLockLostError):
        await receiver.renew_message_lock(last)
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(last)
    again = await get_one(receiver)
    assert (str(again), again.delivery_count) == ("3", 1)
    await receiver.complete_message(again)
    assert await world.counts(queue) == (0, 0, 0)


@pytest.mark.promise("B1")
@scenario
async def test_what_is_said_of_a_lost_lock_is_refused(world: World) -> None:
    queue = await world.queue(lock_duration=timedelta(minutes=1))
    verbs = ("complete", "abandon", "defer", "dead_letter")
    # After such an error these clients use a receiver no more.
    sender, last, *receivers = await world.open(
        world.to(queue), *(world.of(queue) for _ in range(5))
    )
    await sender.send_messages([msg(verb) for verb in verbs])
    held = [await get_one(receiver) for receiver in receivers]
    await world.advance(MINUTE)
    for verb, receiver, message in zip(verbs, receivers, held, strict=True):
        with pytest.raises(MessageLockLostError):
            await getattr(receiver, f"{verb}_message")(message)
    assert await world.counts(queue) == (4, 0, 0)
    assert [(str(one), one.delivery_count) for one in await get(last, 4)] == [
        (verb, 1) for verb in verbs
    ]


@pytest.mark.promise("B1")
@scenario
async def test_the_last_delivery_allowed_dead_letters(world: World) -> None:
    ends = ("abandon", "expiry", "defer")
    queues = [await world.queue(lock_duration=timedelta(minutes=1)) for _ in ends]
    made = await world.admin.get_queue(queues[0])
    assert made.max_delivery_count == 10
    links = await world.open(
        *(world.to(queue) for queue in queues),
        *(world.of(queue) for queue in queues),
        *(world.of(queue, sub_queue=DEAD_LETTER) for queue in queues),
    )
    for place, (end, queue) in enumerate(zip(ends, queues, strict=True)):
        await dies_of(world, end, queue, *links[place::3])


async def dies_of(
    world: World, end: str, queue: str, sender: Any, receiver: Any, dead: Any
) -> None:
    """Deliver a message as often as it may be, with this end of each lock."""
    await sender.send_messages(msg("x"))
    for delivery in range(10):
        if end == "defer" and delivery:
            [message] = await receiver.receive_deferred_messages(1)
        else:
            message = await get_one(receiver)
        assert message.delivery_count == delivery
        if end == "expiry":
            await world.advance(MINUTE)
        elif end == "defer":
            await receiver.defer_message(message)
        else:
            await receiver.abandon_message(message)
    assert await world.counts(queue) == (0, 0, 1)
    letter = await get_one(dead)
    assert letter.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert letter.dead_letter_error_description
    assert (letter.sequence_number, letter.delivery_count) == (1, 10)


@pytest.mark.promise("B1", "B2")
@scenario
async def test_a_receiver_dead_letters_with_its_reason(world: World) -> None:
    queue = await world.queue()
    sender, receiver, dead, transfer = await world.open(
        world.to(queue),
        world.of(queue),
        world.of(queue, sub_queue=DEAD_LETTER),
        world.of(queue, sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER),
    )
    await sender.send_messages(msg("x"))
    message = await get_one(receiver)
    await receiver.dead_letter_message(message, reason="bad", error_description="worse")
    [peeked] = await dead.peek_messages(10)
    letter = await get_one(dead)
    assert peeked.sequence_number == letter.sequence_number == 1
    assert (letter.dead_letter_reason, letter.dead_letter_error_description) == ("bad", "worse")
    assert await transfer.peek_messages(10) == []
    await dead.abandon_message(letter)
    with pytest.raises(ServiceBusError, match="dead-lettered again"):
        await dead.dead_letter_message(await get_one(dead))
    assert await world.counts(queue) == (0, 0, 1)


@pytest.mark.promise("B1")
@scenario
async def test_a_receiver_waits_for_what_comes_and_is_walked_through(world: World) -> None:
    queue = await world.queue()
    sender, receiver, walked = await world.open(
        world.to(queue), world.of(queue), world.of(queue, delete=True, prefetch_count=10)
    )
    waiting = asyncio.ensure_future(receiver.receive_messages(1, max_wait_time=WAIT_S))
    await asyncio.sleep(0.1)
    await sender.send_messages(msg("x"))
    [message] = await waiting
    await receiver.complete_message(message)
    await sender.send_messages([msg(f"{n}") for n in range(5)])
    found = []
    async for message in walked:
        found.append(str(message))
        if len(found) == 5:
            break
    assert found == ["0", "1", "2", "3", "4"]
    assert await world.counts(queue) == (0, 0, 0)


@pytest.mark.promise("B2")
@scenario
async def test_the_smaller_time_to_live_counts(world: World) -> None:
    queue = await world.queue(default_message_time_to_live=timedelta(minutes=20))
    sender, receiver = await world.both(queue)
    await sender.send_messages(msg("own", time_to_live=timedelta(minutes=10)))
    await sender.send_messages(msg("queue's", time_to_live=timedelta(days=1)))
    await sender.send_messages(msg("default"))
    found = await peek_all(receiver)
    assert [one.expires_at_utc - one.enqueued_time_utc for one in found] == [
        timedelta(minutes=minutes) for minutes in (10, 20, 20)
    ]
    await world.advance(5 * MINUTE)
    assert await world.counts(queue) == (3, 0, 0)
    await world.advance(5 * MINUTE)
    assert bodies(await peek_all(receiver)) == ["queue's", "default"]
    await world.advance(10 * MINUTE)
    assert await world.counts(queue) == (0, 0, 0)


@pytest.mark.promise("B2")
@scenario
async def test_no_expiry_while_held_and_dead_letters_do_not_expire(world: World) -> None:
    queue = await world.queue(
        lock_duration=timedelta(minutes=5), dead_lettering_on_message_expiration=True
    )
    sender, receiver, dead = await world.open(
        world.to(queue), world.of(queue), world.of(queue, sub_queue=DEAD_LETTER)
    )
    life = timedelta(minutes=2)
    await sender.send_messages(
        [msg(body, time_to_live=life) for body in ("completed", "abandoned", "left")]
    )
    completed, abandoned, _ = await get(receiver, 3)
    await world.advance(2 * MINUTE)
    assert await world.counts(queue) == (3, 0, 0)
    await receiver.complete_message(completed)
    await receiver.abandon_message(abandoned)
    assert bodies(await peek_all(dead)) == ["abandoned"]
    await world.advance(5 * MINUTE)
    await world.advance(100 * DAY)
    letters = await get(dead, 2)
    assert (bodies(letters), numbers(letters)) == (["abandoned", "left"], [2, 3])
    assert {one.dead_letter_reason for one in letters} == {"TTLExpiredException"}


@pytest.mark.promise("B7")
@scenario
async def test_an_idle_entity_is_deleted(world: World) -> None:
    queue = await world.queue(auto_delete_on_idle=timedelta(minutes=10))
    sender, receiver = await world.both(queue)
    for use in (sender.send_messages(msg("x")), get_one(receiver)):
        await world.advance(6 * MINUTE)
        await use
    await world.advance(6 * MINUTE)
    assert (await world.admin.get_queue(queue)).name == queue
    await asyncio.gather(sender.close(), receiver.close())
    await world.advance(10 * MINUTE)
    with pytest.raises(ResourceNotFoundError):
        await world.admin.get_queue(queue)
    with pytest.raises(ServiceBusAuthenticationError):
        await world.sender(queue)


@pytest.mark.promise("B7")
@scenario
async def test_quotas_and_sizes(world: World) -> None:
    queue = await world.queue()
    await world.owner.change_queue(queue, max_size_bytes=5_000, max_message_bytes=2_000)
    sender, receiver = await world.both(queue)
    for _ in range(4):
        await sender.send_messages(msg("x" * 1_000))
    with pytest.raises(ServiceBusQuotaExceededError):
        await sender.send_messages([msg("small"), msg("x" * 1_000)])
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(msg("x" * 3_000))
    assert await world.counts(queue) == (4, 0, 0)
    await receiver.complete_message(await get_one(receiver))
    await sender.send_messages(msg("x" * 1_000))


@pytest.mark.promise("B7")
@scenario
async def test_a_paused_entity(world: World) -> None:
    statuses = (EntityStatus.SEND_DISABLED, EntityStatus.RECEIVE_DISABLED, EntityStatus.DISABLED)
    queues = [await world.queue() for _ in statuses]
    links = await world.open(*map(world.to, queues), *map(world.of, queues))
    await asyncio.gather(
        *(
            is_paused(world, status, queue, *links[place::3])
            for place, (status, queue) in enumerate(zip(statuses, queues, strict=True))
        )
    )


async def is_paused(
    world: World, status: EntityStatus, queue: str, sender: Any, receiver: Any
) -> None:
    await sender.send_messages([msg("held"), msg("waiting")])
    held = await get_one(receiver)
    await change_status(world, queue, status)
    if status is EntityStatus.RECEIVE_DISABLED:
        await sender.send_messages(msg("new"))
    else:
        with pytest.raises(MessagingEntityDisabledError):
            await sender.send_messages(msg("new"))
    assert str((await receiver.peek_messages(9, sequence_number=2))[0]) == "waiting"
    await receiver.complete_message(held)
    if status is EntityStatus.SEND_DISABLED:
        assert str(await get_one(receiver)) == "waiting"
    else:
        with pytest.raises(MessagingEntityDisabledError):
            await receiver.receive_messages(1, max_wait_time=WAIT_S)
    await change_status(world, queue, EntityStatus.ACTIVE)
    again = await world.sender(queue)
    await again.send_messages(msg("again"))


@pytest.mark.promise("B7")
@scenario
async def test_a_paused_topic_and_a_paused_subscription(world: World) -> None:
    topic = await world.topic("some")
    sender, receiver = await world.open(world.to(topic), world.of(f"{topic}/some"))
    await sender.send_messages(msg("1"))
    found = await world.admin.get_topic(topic)
    found.status = EntityStatus.SEND_DISABLED
    await world.admin.update_topic(found)
    with pytest.raises(MessagingEntityDisabledError):
        await sender.send_messages(msg("never"))
    found.status = EntityStatus.ACTIVE
    await world.admin.update_topic(found)
    chosen = await world.admin.get_subscription(topic, "some")
    chosen.status = EntityStatus.RECEIVE_DISABLED
    await world.admin.update_subscription(topic, chosen)
    again = await world.sender(topic)
    await again.send_messages(msg("2"))
    with pytest.raises(MessagingEntityDisabledError):
        await receiver.receive_messages(1, max_wait_time=WAIT_S)
    chosen.status = EntityStatus.ACTIVE
    await world.admin.update_subscription(topic, chosen)
    last = await world.receiver(f"{topic}/some")
    assert bodies(await get(last, 2)) == ["1", "2"]


async def change_status(world: World, queue: str, status: EntityStatus) -> None:
    found = await world.admin.get_queue(queue)
    found.status = status
    await world.admin.update_queue(found)


@pytest.mark.promise("B10")
@scenario
async def test_messages_of_a_noisy_partition_key_come_after_others(world: World) -> None:
    queue = await world.queue()
    await world.owner.change_queue(queue, fair_delivery=True)
    sender, receiver = await world.both(queue)
    await sender.send_messages([msg(b"noisy", f"n{n}", partition_key="noisy") for n in range(40)])
    held = await get(receiver, 30)
    assert bodies(held) == ["noisy"] * 30
    await sender.send_messages(msg(b"quiet", "q", partition_key="quiet"))
    assert bodies([await get_one(receiver)]) == ["quiet"]
    assert bodies(await get(receiver, 10)) == ["noisy"] * 10
    # The administration client does not know the setting, and keeps it.
    await world.admin.update_queue(await world.admin.get_queue(queue), lock_duration="PT30S")
    assert (await world.owner.queue(queue)).settings.fair_delivery
