"""Topics, rules and forwarding (B3, B6, P9) through the official clients; what messages keep."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from onibus import Message
from tests.amqp.sdk.stage import scenario
from tests.amqp.sdk.world import (
    World,
    bodies,
    get,
    get_one,
    msg,
    partitions,
    peek_all,
    until,
)
from tests.bus_helpers import KEYS

DEAD_LETTER = ServiceBusSubQueue.DEAD_LETTER


@pytest.mark.promise("B3")
@scenario
async def test_filters_and_actions(world: World) -> None:
    topic = await world.topic("every")
    rules: dict[str, dict[str, Any]] = {
        "large": {
            "filter": SqlRuleFilter("amount > @least", {"@least": 100}),
            "action": SqlRuleAction("SET kind = 'large'; REMOVE note"),
        },
        "red": {"filter": CorrelationRuleFilter(label="red", properties={"note": "n"})},
        "true": {"filter": TrueRuleFilter()},
        "none": {"filter": FalseRuleFilter()},
    }
    for name, rule in rules.items():
        await world.admin.create_subscription(topic, name)
        await world.admin.create_rule(topic, name, "own", **rule)
        await world.admin.delete_rule(topic, name, "$Default")
    names = ["every", *rules]
    sender, *receivers = await world.open(
        world.to(topic), *(world.of(f"{topic}/{name}") for name in names)
    )
    for amount, subject in ((500, "red"), (5, "blue")):
        properties: Any = {"amount": amount, "note": "n", "id": uuid4()}
        message = msg(f"{amount}", subject=subject, application_properties=properties)
        await sender.send_messages(message)
    found = {name: await peek_all(one) for name, one in zip(names, receivers, strict=True)}
    assert {name: bodies(messages) for name, messages in found.items()} == {
        **{"every": ["500", "5"], "large": ["500"], "red": ["500"], "true": ["500", "5"]},
        "none": [],
    }
    changed = found["large"][0].application_properties
    # What the action did not touch has the type in which it was sent.
    assert isinstance(changed.pop(b"id"), UUID)
    assert changed == {b"amount": 500, b"kind": b"large", b"RuleName": b"own"}
    assert b"kind" not in found["every"][0].application_properties


@pytest.mark.promise("B3")
@scenario
async def test_what_one_subscription_does_the_others_do_not_notice(world: World) -> None:
    topic = await world.topic("a", "b")
    sender, a, b, dead = await world.open(
        world.to(topic),
        world.of(f"{topic}/a"),
        world.of(f"{topic}/b"),
        world.of(f"{topic}/a", sub_queue=DEAD_LETTER),
    )
    await sender.send_messages([msg(f"{n}") for n in range(4)])
    one, two, three, four = await get(a, 4)
    await a.complete_message(one)
    await a.defer_message(two)
    await a.dead_letter_message(three, reason="no")
    await a.abandon_message(four)
    told = await world.admin.get_subscription_runtime_properties(topic, "a")
    assert (told.active_message_count, told.dead_letter_message_count) == (1, 1)
    letter = await get_one(dead)
    assert (str(letter), letter.dead_letter_reason) == ("2", "no")
    untouched = [(str(m), m.delivery_count, m.application_properties) for m in await get(b, 4)]
    assert untouched == [(f"{n}", 0, None) for n in range(4)]


@pytest.mark.promise("B6", "S2")
@scenario
async def test_four_hops_and_the_fifth_is_a_dead_letter(world: World) -> None:
    hops: list[str] = []
    for _ in range(6):
        hops.insert(0, await world.queue(forward_to=hops[0] if hops else None))
    last = await world.admin.get_queue(hops[5])
    last.forward_to = hops[0]
    with pytest.raises(HttpResponseError) as loop:
        await world.admin.update_queue(last)
    assert loop.value.status_code == 400
    to_first, to_second, end, dead = await world.open(
        world.to(hops[0]),
        world.to(hops[1]),
        world.of(hops[5]),
        world.of(hops[4], sub_queue=DEAD_LETTER),
    )
    await to_second.send_messages(msg("four hops"))
    await to_first.send_messages(msg("five"))
    found = await get_one(end)
    assert (str(found), found.enqueued_sequence_number) == ("four hops", 1)
    letter = await get_one(dead)
    assert (str(letter), letter.dead_letter_reason) == ("five", "MaxTransferHopCountExceeded")


@pytest.mark.promise("P9", "P4", "D10")
@scenario
async def test_from_to_and_between_partitioned_entities(world: World) -> None:
    end = await world.queue(enable_partitioning=True, requires_duplicate_detection=True)
    middle = await world.queue(enable_partitioning=True, forward_to=end)
    start = await world.queue(forward_to=middle)
    sender, receiver = await world.open(world.to(start), world.of(end))
    batch = [msg(key, "m", partition_key=key) for key in KEYS]
    await sender.send_messages(batch + batch)
    found = await get(receiver, 16)
    assert [KEYS[index] for index in partitions(found)] == bodies(found)
    assert sorted(bodies(found)) == sorted(KEYS)

    async def all_passed() -> bool:
        return [await world.counts(one) for one in (start, middle)] == [(0, 0, 0)] * 2

    await until(all_passed)
    assert await world.counts(end) == (16, 0, 0), "the destination drops duplicates again"


@pytest.mark.promise("B6", "P9", "S2")
@scenario
async def test_dead_letters_that_go_on_tell_where_they_come_from(world: World) -> None:
    morgue = await world.queue(enable_partitioning=True)
    queue = await world.queue(forward_dead_lettered_messages_to=morgue)
    sender, receiver, letters = await world.open(world.to(queue), world.of(queue), world.of(morgue))
    await sender.send_messages([msg("x", f"{key}", partition_key=key) for key in KEYS[1:5]])
    for one in await get(receiver, 4):
        assert one.dead_letter_source is None
        await receiver.dead_letter_message(one, reason="no", error_description="not at all")
    found = await get(letters, 4)
    for one in found:
        assert one.dead_letter_source == queue
        assert (one.dead_letter_reason, one.dead_letter_error_description) == (
            *("no", "not at all"),
        )
        partition = one.raw_amqp_message.annotations[b"x-opt-partition-id"]
        assert partition == one.sequence_number >> 48
    assert sorted(partitions(found)) == [1, 2, 3, 4]


@pytest.mark.promise("B6")
@scenario
async def test_a_source_that_a_sender_made_up_is_not_believed(world: World) -> None:
    end = await world.queue()
    start = await world.queue(forward_to=end)
    sender, receiver = await world.open(world.to(start), world.of(end))
    forged = {"DeadLetterSource": "elsewhere", "DeadLetterSourceId": 1}
    await sender.send_messages(msg("x", application_properties=forged))
    one = await get_one(receiver)
    assert one.dead_letter_source is None
    assert set(one.application_properties) == {name.encode() for name in forged}


@pytest.mark.promise("B6")
@scenario
async def test_forwarded_messages_keep_what_was_sent(world: World) -> None:
    last = await world.queue()
    first = await world.queue(forward_to=last)
    sent = AmqpAnnotatedMessage(
        value_body={"a": [1, 2]},
        header=AmqpMessageHeader(priority=7, durable=True),
        properties=AmqpMessageProperties(message_id="m", user_id=b"me", content_encoding="gzip"),
        application_properties={"id": UUID(int=7), "n": 1},
        annotations={"x-mine": "kept"},
        footer={"sum": 42},
    )
    sender, receiver = await world.open(world.to(first), world.of(last))
    await sender.send_messages(sent)
    await sender.send_messages(AmqpAnnotatedMessage(data_body=[b"two", b"parts"]))
    one, other = await get(receiver, 2)
    raw = one.raw_amqp_message
    assert raw.body == {b"a": [1, 2]}
    assert [raw.header.priority, raw.header.durable] == [7, True]
    assert [raw.properties.user_id, raw.properties.content_encoding] == [b"me", b"gzip"]
    assert raw.application_properties == {b"id": UUID(int=7), b"n": 1}
    assert raw.annotations[b"x-mine"] == b"kept"
    assert raw.footer == {b"sum": 42}
    assert one.enqueued_sequence_number == 1
    assert list(other.body) == [b"two", b"parts"]
    assert [peeked.message.format for peeked in await world.owner.peek(last)] == ["amqp"] * 2


@scenario
async def test_messages_cross_from_one_protocol_to_the_other(world: World) -> None:
    queue = await world.queue()
    sender, receiver = await world.both(queue)
    properties: Any = {"n": 1, "id": UUID(int=5)}
    await sender.send_messages(
        msg(
            b"3 apples",
            "m",
            partition_key="p",
            session_id="p",
            subject="fruit",
            application_properties=properties,
            time_to_live=timedelta(hours=1),
        )
    )
    [peeked] = await world.owner.peek(queue)
    assert peeked.body == b"3 apples"
    assert peeked.message.properties == {"n": 1, "id": str(UUID(int=5))}
    assert (peeked.message.session_id, peeked.message.partition_key) == ("p", "p")
    assert (peeked.message.subject, peeked.message.time_to_live_ms) == ("fruit", 3_600_000)
    message = await get_one(receiver)
    assert message.time_to_live == timedelta(hours=1)
    assert message.expires_at_utc == message.enqueued_time_utc + timedelta(hours=1)
    values = {"a": 1, "big": 2**40, "t": "x", "f": 0.5, "b": b"\x00", "none": None}
    ours = Message(
        body=b"\xff", message_id="h", subject="s", reply_to_session_id="r", properties=values
    )
    await world.owner.send(queue, ours)
    message = await get_one(receiver)
    assert b"".join(message.body) == b"\xff"
    assert [message.message_id, message.subject, message.reply_to_session_id] == ["h", "s", "r"]
    assert message.application_properties == {
        **{b"a": 1, b"big": 2**40, b"t": b"x", b"f": 0.5, b"b": b"\x00", b"none": None}
    }


@pytest.mark.promise("B6", "B4")
@scenario
async def test_a_session_entity_is_forwarded_to_and_does_not_forward(world: World) -> None:
    """The service rejects forwarding from sessions too (azure-service-bus#317 and #660)."""
    target, topic = await world.queue(requires_session=True), await world.topic("in")
    wrong = {"requires_session": True, "forward_to": target}
    with pytest.raises(HttpResponseError, match="requires sessions cannot forward"):
        await world.admin.create_queue("no", **wrong)
    with pytest.raises(HttpResponseError, match="requires sessions cannot forward"):
        await world.admin.create_subscription(topic, "no", **wrong)
    into = await world.admin.get_subscription(topic, "in")
    into.forward_to = target
    await world.admin.update_subscription(topic, into)
    sender, receiver = await world.open(world.to(topic), world.of(target, session_id="s"))
    await sender.send_messages(msg("1", session_id="s"))
    assert str(await get_one(receiver)) == "1"


@pytest.mark.promise("B6")
@scenario
async def test_a_subscription_does_not_forward_to_its_own_topic(world: World) -> None:
    """The official clients for .NET and Java reject it themselves."""
    topic = await world.topic("s")
    for setting in ("forward_to", "forward_dead_lettered_messages_to"):
        with pytest.raises(HttpResponseError, match="cannot forward to itself"):
            await world.admin.create_subscription(topic, "loop", **{setting: topic})
    assert [one.name async for one in world.admin.list_subscriptions(topic)] == ["s"]
