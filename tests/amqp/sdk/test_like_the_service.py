"""Details that clients see of the real service: what they echo, keep and read."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusAuthenticationError
from azure.servicebus.management import EntityStatus

from tests.amqp.sdk.stage import scenario
from tests.amqp.sdk.world import SECOND, World, get, get_one, msg

DEAD_LETTER = ServiceBusSubQueue.DEAD_LETTER


@pytest.mark.promise("B1")
@scenario
async def test_a_dead_lettered_message_is_resent_with_its_partition_key(world: World) -> None:
    queue = await world.queue()
    sender, receiver = await world.both(queue)
    dead = await world.receiver(queue, sub_queue=DEAD_LETTER)
    await sender.send_messages(msg("1", "id", partition_key="kéy"))
    await receiver.dead_letter_message(await get_one(receiver))
    found = await get_one(dead)
    await sender.send_messages(found)
    await dead.complete_message(found)
    again = await get_one(receiver)
    assert (again.message_id, again.partition_key) == ("id", "kéy")


@pytest.mark.promise("B1")
@scenario
async def test_delivery_annotations_are_kept_and_the_lock_token_is_added(world: World) -> None:
    queue = await world.queue()
    sender, receiver = await world.both(queue)
    taker = await world.receiver(queue, delete=True)

    async def sent() -> None:
        await sender.send_messages(
            AmqpAnnotatedMessage(data_body=b"1", delivery_annotations={"hop": "first"})
        )

    await sent()
    found = await get_one(receiver)
    kept = found.raw_amqp_message.delivery_annotations
    assert kept[b"hop"] == b"first"
    assert kept[b"x-opt-lock-token"] == UUID(str(found.lock_token))
    # Sent back with the token of the lock: the next delivery has its own.
    await sender.send_messages(found)
    await receiver.complete_message(found)
    again = await get_one(receiver)
    kept = again.raw_amqp_message.delivery_annotations
    assert kept[b"hop"] == b"first"
    assert kept[b"x-opt-lock-token"] == UUID(str(again.lock_token))
    assert again.lock_token != found.lock_token
    (peeked,) = await receiver.peek_messages(sequence_number=1)
    assert peeked.raw_amqp_message.delivery_annotations == {b"hop": b"first"}
    await receiver.complete_message(again)

    await sent()
    taken = await get_one(taker)
    assert taken.raw_amqp_message.delivery_annotations == {b"hop": b"first"}
    assert set(taken.raw_amqp_message.annotations) == {
        b"x-opt-sequence-number",
        b"x-opt-enqueued-time",
        b"x-opt-enqueue-sequence-number",
        b"x-opt-message-state",
    }
    assert taken._delivery_tag == b""  # no public name; JavaScript's is checked by its scenarios


@pytest.mark.promise("B1")
@scenario
async def test_decimals_arrive_as_they_were_sent(world: World) -> None:
    queue = await world.queue()
    sender, taker = await world.both(queue, delete=True)
    texts = ("1.5", "-0.001", "0", "4294967296", "99999999999999.99", "1E+5", "12345678901234567.8")
    properties: Any = {text: Decimal(text) for text in texts}
    await sender.send_messages(msg("1", application_properties=properties))
    await sender.send_messages(AmqpAnnotatedMessage(value_body={"price": [Decimal("1.5")]}))
    first, second = await get(taker, 2)
    assert {name.decode(): value for name, value in first.application_properties.items()} == (
        properties
    )
    assert second.body == {b"price": [Decimal("1.5")]}
    # More digits than this client can read: it gets them all, as a string.
    long = "1.234567890123456789012345678901234"
    await sender.send_messages(msg("1", application_properties={"long": Decimal(long)}))
    assert (await get_one(taker)).application_properties == {b"long": long.encode()}


@pytest.mark.promise("B1")
@scenario
async def test_a_message_without_a_body_stays_so_and_keeps_its_header(world: World) -> None:
    queue = await world.queue()
    sender, receiver = await world.both(queue)
    header = AmqpMessageHeader(durable=True, priority=7, first_acquirer=True)
    await sender.send_messages(AmqpAnnotatedMessage(data_body=[], header=header))
    await sender.send_messages(AmqpAnnotatedMessage(data_body=[b""]))
    first, second = await get(receiver, 2)
    found = first.raw_amqp_message.header
    assert (found.durable, found.priority, found.first_acquirer) == (True, 7, True)
    # What this client decoded: no data section, and an empty one.
    assert (first._message.data, second._message.data) == (None, [b""])


@pytest.mark.promise("B1")
@scenario
async def test_the_delivery_count_does_not_rise_in_the_dead_letter_queue(world: World) -> None:
    queue = await world.queue()
    sender, receiver = await world.both(queue)
    dead = await world.receiver(queue, sub_queue=DEAD_LETTER)
    await sender.send_messages(msg("1"))
    await receiver.abandon_message(await get_one(receiver))
    await receiver.dead_letter_message(await get_one(receiver))
    counts = []
    for _ in range(3):
        found = await get_one(dead)
        counts.append(found.delivery_count)
        await dead.abandon_message(found)
    assert counts == [1, 1, 1]


#: How the service ends every description of an error.
TRACKED = r" TrackingId:[0-9a-f-]{36}_G\d+, SystemTracker:\S+, Timestamp:[0-9T:-]{19}"


@pytest.mark.promise("B7")
@scenario
async def test_errors_have_the_words_of_the_service(world: World) -> None:
    queue = await world.queue()
    address = rf"sb://localhost(:\d+)?/{queue}"
    with pytest.raises(ResourceExistsError, match=f"'{address}' already exists.{TRACKED}"):
        await world.admin.create_queue(queue)
    gone = f"'{address}-none' could not be found.{TRACKED}"
    with pytest.raises(ResourceNotFoundError, match=gone):
        await world.admin.delete_queue(f"{queue}-none")
    settings = await world.admin.get_queue(queue)
    settings.status = EntityStatus.DISABLED
    await world.admin.update_queue(settings)
    disabled = f"Messaging entity '{address}' is currently disabled.{TRACKED}"
    await world.refused(MessagingEntityDisabledError, world.to(queue), match=disabled)


@pytest.mark.promise("B7")
@scenario
async def test_a_token_for_a_missing_entity_is_refused(world: World) -> None:
    await world.refused(ServiceBusAuthenticationError, world.to(world.name()))
    await world.refused(ServiceBusAuthenticationError, world.of(world.name()))
    topic = await world.topic("s")
    await world.refused(ServiceBusAuthenticationError, world.of(f"{topic}/none"))
    await world.sender(topic)


@pytest.mark.promise("B7")
@scenario
async def test_a_sender_learns_how_large_a_batch_may_be(world: World) -> None:
    sender = await world.sender(await world.queue(max_message_size_in_kilobytes=512))
    batch = await sender.create_message_batch()
    assert batch.max_size_in_bytes == 512 << 10


@pytest.mark.promise("B4")
@scenario
async def test_sessions_are_listed_whose_state_was_set_after_a_time(world: World) -> None:
    queue = await world.queue(requires_session=True)
    one, other = await world.open(*(world.of(queue, session_id=name) for name in ("a", "b")))
    await one.session.set_state(b"1")
    await world.advance(10 * SECOND)
    since = await world.now()
    await world.advance(10 * SECOND)
    await other.session.set_state(b"2")
    listed = world.client.list_queue_sessions
    assert [name async for name in listed(queue, state_updated_after=since)] == ["b"]
    assert [name async for name in listed(queue)] == ["a", "b"]
