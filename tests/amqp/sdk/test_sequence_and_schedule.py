"""Sequence numbers, times and schedules (S) through the official clients."""

from __future__ import annotations

from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessageState, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageNotFoundError, MessageSizeExceededError

from tests.amqp.sdk.raw_transaction import RawTransactions
from tests.amqp.sdk.stage import scenario
from tests.amqp.sdk.world import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    World,
    bodies,
    get,
    get_one,
    msg,
    numbers,
    partitions,
    peek_all,
    until,
)
from tests.bus_helpers import KEYS

SCHEDULED, ACTIVE = ServiceBusMessageState.SCHEDULED, ServiceBusMessageState.ACTIVE
DEFERRED = ServiceBusMessageState.DEFERRED


@pytest.mark.promise("S1")
@scenario
async def test_the_broker_gives_number_and_time_never_the_client(world: World) -> None:
    sender, receiver = await world.both(await world.queue())
    before = await world.now()
    claims = {"x-opt-sequence-number": 99, "x-opt-enqueued-time": 1, "x-mine": "kept"}
    await sender.send_messages(AmqpAnnotatedMessage(data_body=[b"x"], annotations=claims))
    message = await get_one(receiver)
    assert message.sequence_number == message.enqueued_sequence_number == 1
    assert before <= message.enqueued_time_utc <= await world.now()
    assert message.raw_amqp_message.annotations[b"x-mine"] == b"kept"


@pytest.mark.promise("S2")
@scenario
async def test_numbers_rise_by_one_in_the_order_of_acceptance(world: World) -> None:
    queue, parts = await world.queue(), await world.queue(enable_partitioning=True)
    sender, receiver, to_parts, of_parts, dead = await world.open(
        world.to(queue),
        world.of(queue),
        world.to(parts),
        world.of(parts),
        world.of(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER),
    )
    await sender.send_messages([msg(f"{n}") for n in range(50)])
    await to_parts.send_messages(msg("not counted there"))
    for n in (50, 51):
        await sender.send_messages(msg(f"{n}"))
    received = await get(receiver, 52)
    assert numbers(received) == list(range(1, 53))
    assert bodies(received) == [f"{n}" for n in range(52)]
    await receiver.dead_letter_message(received[7])
    assert (await get_one(dead)).sequence_number == 8, "it is not renumbered"
    for key in KEYS:
        await to_parts.send_messages([msg("x", partition_key=key) for _ in range(2)])
    found = await peek_all(of_parts)
    assert partitions(found)[-2:] == [15, 15]
    counters = [number & ((1 << 48) - 1) for number in numbers(found)]
    assert sorted(set(counters)) == [1, 2, 3], "each partition counts for itself"
    assert all(0 < number < 1 << 63 for number in numbers(found)), "clients read signed numbers"


@pytest.mark.promise("S2", "B3", "B6")
@scenario
async def test_a_topics_number_in_every_subscription_and_a_new_one_where_it_goes_on(
    world: World,
) -> None:
    end = await world.queue()
    topic = await world.topic("kept", "too")
    await world.admin.create_subscription(topic, "on", forward_to=end)
    to_end, sender, kept, too, of_end = await world.open(
        world.to(end),
        world.to(topic),
        world.of(f"{topic}/kept"),
        world.of(f"{topic}/too"),
        world.of(end),
    )
    await to_end.send_messages(msg("was there"))
    for body in ("1", "2"):
        await sender.send_messages(msg(body))
    for receiver in (kept, too):
        assert numbers(await get(receiver, 2)) == [1, 2]
    _, *on = await get(of_end, 3)
    assert (numbers(on), bodies(on)) == ([2, 3], ["1", "2"])
    assert [one.enqueued_sequence_number for one in on] == [1, 2]


@pytest.mark.promise("S3")
@scenario
async def test_what_is_refused_or_rolled_back_uses_up_no_number(world: World) -> None:
    """The transaction is a raw client's: these have none. Restarts: test_restarts.py."""
    queue = await world.queue()
    await world.owner.change_queue(queue, max_message_bytes=1_000)
    sender, receiver = await world.both(queue)
    await sender.send_messages(msg("a"))
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages([msg("fits"), msg("x" * 2_000)])
    with RawTransactions(world.server, queue) as raw:
        undone = raw.declare()
        assert raw.send(queue, undone, b"never")
        assert raw.discharge(undone, fail=True) == ""
    later = await world.now() + timedelta(days=1)
    [number] = await sender.schedule_messages(msg("s"), later)
    await sender.cancel_scheduled_messages(number)
    await sender.send_messages(msg("b"))
    assert number == 2
    assert numbers(await peek_all(receiver)) == [1, 3]


@pytest.mark.promise("S4")
@scenario
async def test_enqueued_times_do_not_run_backwards_and_timers_go_on(world: World) -> None:
    """How clocks that are set back are met: test_restarts.py."""
    sender, receiver = await world.both(await world.queue())
    for step in (0, SECOND, 0, DAY, 0, 1):
        await world.advance(step)
        await sender.send_messages(msg("x"))
    stamps = [message.enqueued_time_utc for message in await peek_all(receiver)]
    assert stamps == sorted(stamps)
    assert stamps[-1] - stamps[0] > timedelta(days=1)
    await sender.schedule_messages(msg("soon"), await world.now() + timedelta(milliseconds=200))
    *_, soon = await get(receiver, 7)
    assert str(soon) == "soon", "after a jump of a day the timers go on"


@pytest.mark.promise("S5", "S2")
@scenario
async def test_a_message_is_scheduled_by_its_property_or_by_the_call(world: World) -> None:
    queue = await world.queue()
    sender, receiver = await world.both(queue, delete=True)
    start = await world.now()
    due = start + timedelta(minutes=5)
    await sender.send_messages(msg("property", scheduled_enqueue_time_utc=due))
    [called] = await sender.schedule_messages(msg("call"), due)
    assert called == 2
    [past] = await sender.schedule_messages(msg("past"), start - timedelta(hours=1))
    await sender.send_messages(msg("past too", scheduled_enqueue_time_utc=start))
    now = await get(receiver, 2)
    assert (numbers(now), bodies(now)) == ([past, 4], ["past", "past too"])
    assert [one.state for one in now] == [ACTIVE, ACTIVE], "they were never scheduled"
    assert await world.counts(queue) == (0, 2, 0)
    await world.advance(5 * MINUTE)
    received = await get(receiver, 2)
    assert (bodies(received), numbers(received)) == (["property", "call"], [5, 6])
    assert [one.state for one in received] == [SCHEDULED, SCHEDULED], "as the service says"


@pytest.mark.promise("S6", "L1")
@scenario
async def test_a_receiver_sees_that_a_message_was_scheduled(world: World) -> None:
    queue = await world.queue()
    sender, receiver = await world.both(queue)
    dead = await world.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    await sender.schedule_messages(msg("x"), await world.now() + timedelta(minutes=5))
    await world.advance(5 * MINUTE)
    found = await get_one(receiver)
    assert found.state == SCHEDULED
    [peeked] = await peek_all(receiver)
    assert peeked.state == ACTIVE, "it can be received, and not cancelled"
    await receiver.defer_message(found)
    [deferred] = await receiver.receive_deferred_messages(found.sequence_number)
    assert deferred.state == DEFERRED
    await receiver.dead_letter_message(deferred)
    assert (await get_one(dead)).state == ACTIVE


@pytest.mark.promise("S6", "B3", "B6")
@scenario
async def test_that_a_message_was_scheduled_shows_in_subscriptions_but_not_further_on(
    world: World,
) -> None:
    """A forwarded message is enqueued a second time: it was not scheduled there."""
    topic, target = await world.topic("s"), await world.queue()
    forwarding = await world.queue(forward_to=target)
    due = await world.now() + timedelta(minutes=5)
    for name in (topic, forwarding):
        sender = await world.sender(name)
        await sender.schedule_messages(msg(name), due)
    subscribed, arrived = await world.open(world.of(f"{topic}/s"), world.of(target))
    await world.advance(5 * MINUTE)
    found = await get_one(subscribed)
    assert found.state == SCHEDULED
    await subscribed.abandon_message(found)
    found = await get_one(subscribed)
    assert found.state == SCHEDULED, "however often it is received"
    await subscribed.dead_letter_message(found)
    dead = await world.receiver(f"{topic}/s", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert (await get_one(dead)).state == ACTIVE
    assert (await get_one(arrived)).state == ACTIVE


@pytest.mark.promise("S5")
@scenario
async def test_cancel_deletes_several_all_or_none(world: World) -> None:
    queue = await world.queue()
    sender, receiver = await world.both(queue)
    due = await world.now() + timedelta(hours=1)
    scheduled = await sender.schedule_messages([msg(f"{n}") for n in range(5)], due)
    await sender.cancel_scheduled_messages(scheduled[0])
    for wrong in (scheduled[0], 10**6, 1 << 60):
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages([*scheduled[1:3], wrong])
    assert numbers(await peek_all(receiver)) == scheduled[1:], "all or none"
    await sender.cancel_scheduled_messages(scheduled[1:3])
    await world.advance(HOUR)
    assert bodies(await get(receiver, 2)) == ["3", "4"]
    for number in scheduled:
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(number)


@pytest.mark.promise("S5", "S7")
@scenario
async def test_a_scheduled_message_waits_at_the_topic(world: World) -> None:
    """These clients have no receiver of a topic: a client of ours looks at what waits there."""
    topic = await world.topic("early")
    sender, early = await world.open(world.to(topic), world.of(f"{topic}/early"))
    due = await world.now() + timedelta(minutes=5)
    number, gone = await sender.schedule_messages([msg("later"), msg("cancelled")], due)
    waiting = await world.owner.peek(topic)
    assert [(one.sequence_number, one.state) for one in waiting] == [
        *((number, "scheduled"), (gone, "scheduled"))
    ]
    assert await peek_all(early) == []
    told = await world.admin.get_topic_runtime_properties(topic)
    assert told.scheduled_message_count == 2
    await sender.cancel_scheduled_messages(gone)
    await world.admin.create_subscription(topic, "late")
    late = await world.receiver(f"{topic}/late")
    await world.advance(5 * MINUTE)
    for receiver in (early, late):
        found = await get_one(receiver)
        assert (str(found), found.sequence_number) == ("later", 3), "rules run at activation"
    with pytest.raises(MessageNotFoundError):
        await sender.cancel_scheduled_messages(number)


@pytest.mark.promise("S6", "S7")
@scenario
async def test_at_its_time_it_is_enqueued_as_if_sent_now(world: World) -> None:
    queue = await world.queue()
    sender, receiver = await world.both(queue)
    life = timedelta(minutes=10)
    due = await world.now() + life
    [old] = await sender.schedule_messages(msg("x", time_to_live=life), due)
    await world.advance(5 * MINUTE)
    [waiting] = await peek_all(receiver)
    assert (waiting.state, waiting.sequence_number) == (SCHEDULED, old), "not before its time"
    assert waiting.scheduled_enqueue_time_utc == due.replace(
        microsecond=due.microsecond // 1_000 * 1_000
    )
    await world.advance(5 * MINUTE)

    async def activated() -> bool:
        return [one.state for one in await peek_all(receiver)] == [ACTIVE]

    await until(activated)
    [message] = await peek_all(receiver)
    assert message.sequence_number == old + 1, "the old number is dead"
    assert waiting.scheduled_enqueue_time_utc <= message.enqueued_time_utc <= await world.now()
    await world.advance(8 * MINUTE)
    assert await world.counts(queue) == (1, 0, 0), "its life begins with its activation"
    await world.advance(2 * MINUTE)
    assert await world.counts(queue) == (0, 0, 0)
    assert await peek_all(receiver) == []
