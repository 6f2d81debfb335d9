"""Duplicate detection (D) through the official clients: what is one, and for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from onibus import Message
from tests.amqp.sdk.raw_transaction import RawTransactions
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
from tests.bus_helpers import keys_of

WINDOW = 10 * MINUTE


async def sent(sender: Any, receiver: Any, message_id: str, **fields: Any) -> bool:
    """Send under an id and look whether it was stored: of itself the client cannot tell (D1)."""
    before = len(await peek_all(receiver))
    await sender.send_messages(msg("again", message_id, **fields))
    return len(await peek_all(receiver)) > before


@pytest.mark.promise("D1", "D2")
@scenario
async def test_a_duplicate_is_accepted_and_dropped(world: World) -> None:
    queue = await world.queue(requires_duplicate_detection=True)
    sender, receiver = await world.both(queue)
    await sender.send_messages(msg("first", "m", subject="a", application_properties={"n": 1}))
    before = await world.owner.queue(queue)
    await sender.send_messages(msg("second", "m", subject="b", application_properties={"n": 2}))
    await sender.send_messages([msg("third", "m"), msg("another", "m2")])
    after = await world.owner.queue(queue)
    assert (before.duplicates_dropped, after.duplicates_dropped) == (0, 2)
    assert await world.counts(queue) == (2, 0, 0)
    # Opaque: neither case, nor spaces, nor how a letter is composed is smoothed over.
    ids = ["M", "m ", " m", "\u00e4", "a\u0308", "x" * 128, "1/p?q#r"]
    await sender.send_messages([msg(one, one) for one in ids + ids])
    found = await get(receiver, 2 + len(ids))
    assert bodies(found) == ["first", "another", *ids]
    assert [one.message_id for one in found[2:]] == ids
    assert numbers(found) == list(range(1, 3 + len(ids))), "duplicates have no numbers"
    oversize = AmqpMessageProperties(message_id="x" * 129)
    with pytest.raises(ServiceBusError, match="128"):
        await sender.send_messages(AmqpAnnotatedMessage(data_body=[b""], properties=oversize))


@pytest.mark.promise("D3")
@scenario
async def test_what_the_identity_is(world: World) -> None:
    sessions = await world.queue(requires_duplicate_detection=True, requires_session=True)
    parts = await world.queue(requires_duplicate_detection=True, enable_partitioning=True)
    to_sessions, to_parts, receiver = await world.open(
        world.to(sessions), world.to(parts), world.of(parts)
    )
    for session in ("one", "two"):
        await to_sessions.send_messages(msg(session, "m", session_id=session))
    assert await world.counts(sessions) == (1, 0, 0), "also across sessions"
    one, two = keys_of(5)
    assert await sent(to_parts, receiver, "m", partition_key=one)
    assert await sent(to_parts, receiver, "m", partition_key=two), "though they share a partition"
    assert not await sent(to_parts, receiver, "m", session_id=one)
    assert await sent(to_parts, receiver, "m"), "its own id is the key"
    assert not await sent(to_parts, receiver, "m", partition_key="m")


@pytest.mark.promise("D4")
@scenario
async def test_the_window(world: World) -> None:
    queue = await world.queue(requires_duplicate_detection=True)
    sender, receiver = await world.both(queue)
    made = await world.admin.get_queue(queue)
    assert made.duplicate_detection_history_time_window == timedelta(minutes=10)
    for wrong in (timedelta(seconds=19), timedelta(days=7, seconds=1)):
        with pytest.raises(HttpResponseError) as refused:
            await world.queue(
                requires_duplicate_detection=True, duplicate_detection_history_time_window=wrong
            )
        assert refused.value.status_code == 400
        with pytest.raises(HttpResponseError):
            await change_window(world, queue, wrong)
    for right in (timedelta(seconds=20), timedelta(days=7)):
        await world.queue(
            requires_duplicate_detection=True, duplicate_detection_history_time_window=right
        )
    made.requires_duplicate_detection = False
    with pytest.raises(HttpResponseError):
        await world.admin.update_queue(made)
    assert await sent(sender, receiver, "m")
    await world.advance(5 * MINUTE)
    await change_window(world, queue, timedelta(minutes=20))
    await world.advance(10 * MINUTE)
    assert not await sent(sender, receiver, "m"), "longer keeps what is remembered"
    await change_window(world, queue, timedelta(minutes=1))
    await change_window(world, queue, timedelta(days=7))
    assert await sent(sender, receiver, "m"), "shorter forgets at once"


async def change_window(world: World, queue: str, window: timedelta) -> None:
    found = await world.admin.get_queue(queue)
    found.duplicate_detection_history_time_window = window
    await world.admin.update_queue(found)


@pytest.mark.promise("D5")
@scenario
async def test_the_memory_outlives_the_message(world: World) -> None:
    queue = await world.queue(requires_duplicate_detection=True)
    sender, receiver, taker = await world.open(
        world.to(queue), world.of(queue), world.of(queue, delete=True)
    )
    for one in ("completed", "dead"):
        await sender.send_messages(msg("x", one))
    completed, dead = await get(receiver, 2)
    await receiver.complete_message(completed)
    await receiver.dead_letter_message(dead)
    await sender.send_messages(msg("x", "deleted"))
    await get_one(taker)
    later = await world.now() + timedelta(minutes=5)
    await sender.cancel_scheduled_messages(
        await sender.schedule_messages(msg("x", "cancelled"), later)
    )
    await sender.send_messages(msg("x", "expired", time_to_live=timedelta(minutes=1)))
    await world.advance(2 * MINUTE)
    assert await world.counts(queue) == (0, 0, 1)
    await sender.send_messages(msg("x", "purged"))
    assert await world.owner.purge(queue) == 1
    for one in ("completed", "dead", "deleted", "cancelled", "expired", "purged"):
        assert not await sent(sender, receiver, one), one
    # The machine's own time passes as well: two minutes are more than a scenario takes.
    await sender.send_messages(msg("x", "m"))
    await world.advance(WINDOW - 2 * MINUTE)
    assert not await sent(sender, receiver, "m")
    await world.advance(2 * MINUTE)
    assert await sent(sender, receiver, "m"), "a dropped duplicate does not extend the window"


@pytest.mark.promise("D6")
@scenario
async def test_duplicates_are_dropped_at_the_topic(world: World) -> None:
    topic = await world.topic("early", requires_duplicate_detection=True)
    sender, early = await world.open(world.to(topic), world.of(f"{topic}/early"))
    await sender.send_messages(msg("first", "m"))
    await world.admin.create_subscription(topic, "late")
    await sender.send_messages(msg("again", "m"))
    assert bodies(await peek_all(early)) == ["first"]
    late = await world.admin.get_subscription_runtime_properties(topic, "late")
    assert late.total_message_count == 0, "it is known at the topic, not where it went"


@pytest.mark.promise("D8")
@scenario
async def test_a_scheduled_message_records_its_id_when_it_is_scheduled(world: World) -> None:
    sender, receiver = await world.both(await world.queue(requires_duplicate_detection=True))
    due = await world.now() + timedelta(minutes=5)
    [number] = await sender.schedule_messages(msg("later", "m"), due)
    assert await sender.schedule_messages(msg("again", "m"), due) == [number]
    assert not await sent(sender, receiver, "m")
    await world.advance(6 * MINUTE)
    assert str(await get_one(receiver)) == "later"
    assert not await sent(sender, receiver, "m"), "the window runs from the scheduling"
    await world.advance(4 * MINUTE)
    assert await sent(sender, receiver, "m")


@pytest.mark.promise("D9")
@scenario
async def test_an_error_before_the_message_was_stored_records_nothing(world: World) -> None:
    queue = await world.queue(requires_duplicate_detection=True)
    await world.owner.change_queue(queue, max_message_bytes=1_500, max_size_bytes=2_000)
    sender, receiver = await world.both(queue)
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(msg("x" * 2_000, "large"))
    await sender.send_messages(msg("x" * 1_200, "large"))
    with pytest.raises(ServiceBusQuotaExceededError):
        await sender.send_messages(msg("x" * 1_200, "late"))
    with pytest.raises(ServiceBusQuotaExceededError):
        await sender.send_messages([msg("", "small"), msg("x" * 1_200, "late")])
    await receiver.complete_message(await get_one(receiver))
    await sender.send_messages([msg("", "small"), msg("x" * 1_200, "late")])
    assert [one.message_id for one in await get(receiver, 2)] == ["small", "late"]


@pytest.mark.promise("D10")
@scenario
async def test_batches_transactions_and_staged_sends(world: World) -> None:
    """These clients have no transactions and nobody's has staged sends but ours.

    So a raw client of AMQP does the first, beside the official one, and a client of ours the other.
    """
    queue = await world.queue(requires_duplicate_detection=True)
    sender, receiver = await world.both(queue)
    batch = await sender.create_message_batch()
    for one in ("1", "2"):
        batch.add_message(msg(one, "m"))
    await sender.send_messages(batch)
    assert bodies(await peek_all(receiver)) == ["1"]
    with RawTransactions(world.server, queue) as raw:
        undone = raw.declare()
        assert raw.send(queue, undone, b"never", "t")
        assert raw.discharge(undone, fail=True) == ""
        work = raw.declare()
        assert raw.send(queue, work, b"in a transaction", "t")
        assert raw.send(queue, work, b"a duplicate when it is committed", "u")
        assert await sent(sender, receiver, "u"), "nothing is recorded before"
        assert raw.discharge(work) == ""
    assert bodies(await peek_all(receiver)) == ["1", "again", "in a transaction"]
    assert not await sent(sender, receiver, "t")
    whose: Any = {"producer": "p", "batch": 1}
    staged = [Message(body=b"staged", message_id=one) for one in ("s", "free")]
    await world.owner.stage(queue, staged, task=0, attempt=0, **whose)
    assert await sent(sender, receiver, "s"), "nor before they are published"
    published = await world.owner.publish(queue, attempts=[(0, 0)], **whose)
    assert (published.accepted, published.duplicates) == (1, 1)
    assert not await sent(sender, receiver, "free")


@pytest.mark.promise("D11")
@scenario
async def test_messages_without_an_id(world: World) -> None:
    """These clients make one for their own messages; not for those that are given as AMQP."""
    queue = await world.queue(requires_duplicate_detection=True)
    parts = await world.queue(requires_duplicate_detection=True, enable_partitioning=True)
    sender, receiver, to_parts, of_parts = await world.open(
        world.to(queue), world.of(queue), world.to(parts), world.of(parts)
    )
    await sender.send_messages([ServiceBusMessage("by the client") for _ in range(2)])
    bare = AmqpAnnotatedMessage(data_body=[b"same"])
    for _ in range(2):
        await sender.send_messages(bare)
    assert len(await get(receiver, 4)) == 4, "never a duplicate"
    kept = [one.message_id for one in await world.owner.peek(queue)]
    assert kept[0] != kept[1]
    assert kept[2:] == [None, None], "the broker gives none"
    with pytest.raises(ServiceBusError, match="message_id"):
        await to_parts.send_messages(bare)
    keyed = AmqpAnnotatedMessage(data_body=[b"x"], annotations={"x-opt-partition-key": "k"})
    for _ in range(2):
        await to_parts.send_messages(keyed)
    assert len(await get(of_parts, 2)) == 2
