"""Partitioned entities (P) through the official clients; a lost store: test_lost_store.py."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessageState
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter

from tests.amqp.sdk.raw_transaction import RawTransactions
from tests.amqp.sdk.stage import scenario
from tests.amqp.sdk.towns import Town
from tests.amqp.sdk.world import (
    WAIT_S,
    World,
    bodies,
    get,
    get_one,
    msg,
    numbers,
    partitions,
    peek_all,
)
from tests.bus_helpers import KEYS, keys_of


def with_two_keys(session: str, key: str) -> Any:
    """Return what the client refuses to make: a key that contradicts the session."""
    message = msg("x", session_id=session, partition_key=session)
    assert message.raw_amqp_message.annotations is not None
    message.raw_amqp_message.annotations[b"x-opt-partition-key"] = key
    return message


@pytest.mark.promise("P1")
@scenario
async def test_sixteen_of_them_and_the_size_is_each_ones_own(world: World) -> None:
    queue, single = await world.queue(enable_partitioning=True), await world.queue()
    for name, told in ((queue, 16 * 1_024), (single, 1_024)):
        made = await world.admin.get_queue(name)
        assert made.max_size_in_megabytes == told
        made.enable_partitioning = not made.enable_partitioning
        with pytest.raises(HttpResponseError, match="fixed when the entity is created"):
            await world.admin.update_queue(made)
    # These clients know no size below a gigabyte.
    await world.owner.change_queue(queue, max_size_bytes=2_000)
    sender, receiver = await world.both(queue)
    await sender.send_messages(msg("x" * 1_500, partition_key=KEYS[4]))
    with pytest.raises(ServiceBusQuotaExceededError):
        await sender.send_messages(msg("x" * 1_500, partition_key=KEYS[4]))
    for _ in range(15):
        await sender.send_messages(msg("x" * 1_500))
    found = await peek_all(receiver)
    assert partitions(found) == list(range(16)), "a full one is skipped"
    with pytest.raises(ServiceBusQuotaExceededError):
        await sender.send_messages(msg("x" * 1_500))


@pytest.mark.promise("P1")
@scenario
async def test_how_many_there_may_be_is_a_setting(town: Town) -> None:
    town.place.add_settings("[quotas]\nentities = 3\npartitioned_entities = 1\n")
    async with town.serve() as server:
        world = town.world(server)
        await world.queue(enable_partitioning=True)
        with pytest.raises(HttpResponseError) as refused:
            await world.queue(enable_partitioning=True)
        assert refused.value.status_code == 403
        await world.queue()
        await world.topic()
        with pytest.raises(HttpResponseError) as refused:
            await world.queue()
        assert refused.value.status_code == 403


@pytest.mark.promise("P3", "P4")
@scenario
async def test_the_effective_key(world: World) -> None:
    detecting = await world.queue(enable_partitioning=True, requires_duplicate_detection=True)
    plain = await world.queue(enable_partitioning=True)
    to_detecting, detected, sender, receiver = await world.open(
        world.to(detecting), world.of(detecting), world.to(plain), world.of(plain)
    )
    one, two, three = KEYS[1:4]
    for message in (
        msg("session", three, session_id=one),
        msg("key", three, partition_key=two),
        msg("id", three),
        msg("both", "x", session_id=one, partition_key=one),
    ):
        await to_detecting.send_messages(message)
    found = {str(message): message.sequence_number for message in await peek_all(detected)}
    assert {body: number >> 48 for body, number in found.items()} == {
        **{"session": 1, "key": 2, "id": 3, "both": 1}
    }
    with pytest.raises(ServiceBusError, match="session_id and partition_key") as wrong:
        await to_detecting.send_messages(with_two_keys(one, two))
    assert not wrong.value._retryable
    for _ in range(16):
        await sender.send_messages(msg("", "an id is no key here"))
    assert partitions(await peek_all(receiver)) == list(range(16)), "round robin"
    await sender.send_messages([msg("together") for _ in range(5)])
    together = [one for one in await peek_all(receiver) if str(one) == "together"]
    assert len(set(partitions(together))) == 1


@pytest.mark.promise("P6")
@scenario
async def test_a_receive_finds_what_any_partition_has(world: World) -> None:
    queue = await world.queue(enable_partitioning=True)
    sender, receiver, taker = await world.open(
        world.to(queue), world.of(queue), world.of(queue, delete=True)
    )
    for key in KEYS:
        await sender.send_messages(msg(key, partition_key=key))
        message = await get_one(receiver)
        assert str(message) == key, "one receive is enough"
        await receiver.complete_message(message)
    for key in (KEYS[0], KEYS[7], KEYS[15]):
        waiting = asyncio.ensure_future(receiver.receive_messages(1, max_wait_time=WAIT_S))
        await asyncio.sleep(0.05)
        await sender.send_messages(msg(key, partition_key=key))
        [message] = await waiting
        assert str(message) == key
        await receiver.complete_message(message)
    await sender.send_messages([msg(f"{n}", partition_key=f"{n}") for n in range(200)])
    # A receive that asks for less than there is never says 'nothing', until all was given out.
    received: list[str] = []
    while len(received) < 200:
        received += bodies(await get(taker, min(40, 200 - len(received))))
    assert sorted(received, key=int) == [str(n) for n in range(200)]


@pytest.mark.promise("P7")
@scenario
async def test_peek(world: World) -> None:
    plain, queue = await world.queue(), await world.queue(enable_partitioning=True)
    to_plain, of_plain, sender, receiver = await world.open(
        world.to(plain), world.of(plain), world.to(queue), world.of(queue)
    )
    for n in range(5):
        await to_plain.send_messages(msg(f"{n}" + "x" * 100_000))
    sizes, start = [], 1
    while page := await of_plain.peek_messages(10, sequence_number=start):
        sizes.append(len(page))
        assert numbers(page) == list(range(start, start + len(page))), "lowest number first"
        start = page[-1].sequence_number + 1
    assert sizes == [2, 2, 1], "256 KB a call, never nothing while there is more"
    await sender.send_messages([msg(f"{n}", partition_key=f"{n}") for n in range(100)])
    # Nobody says where to go on: the client itself begins after what it saw last.
    seen: list[Any] = []
    while page := await receiver.peek_messages(16):
        seen += page
    assert sorted(bodies(seen), key=int) == [str(n) for n in range(100)]
    assert numbers(seen) == sorted(numbers(seen)), "partition by partition"
    assert len(set(partitions(seen))) == 16
    [one] = await receiver.peek_messages(1, sequence_number=seen[40].sequence_number)
    assert str(one) == str(seen[40])


@pytest.mark.promise("P10")
@scenario
async def test_counts_are_added_up_and_a_deleted_entity_takes_everything_with_it(
    world: World,
) -> None:
    settings = {"enable_partitioning": True, "requires_duplicate_detection": True}
    queue = await world.queue(**settings)
    sender, receiver = await world.both(queue)
    batch = [msg(f"{n}", f"{n}") for n in range(50)]
    await sender.send_messages(batch)
    dead, aside, *_ = await get(receiver, 20)
    await receiver.dead_letter_message(dead)
    await receiver.defer_message(aside)
    due = await world.now() + timedelta(hours=1)
    await sender.schedule_messages(msg("later", "later"), due)
    assert await world.counts(queue) == (48, 1, 1)
    told = await world.admin.get_queue_runtime_properties(queue)
    assert told.total_message_count == 51
    assert (await world.admin.get_queue(queue)).availability_status == "Available"
    await world.admin.delete_queue(queue)
    await world.admin.create_queue(queue, **settings)
    assert await world.counts(queue) == (0, 0, 0)
    again = await world.sender(queue)
    await again.send_messages(batch)
    assert await world.counts(queue) == (50, 0, 0), "no id is remembered"


@pytest.mark.promise("P11", "B3")
@scenario
async def test_rules_of_partitioned_topics(world: World) -> None:
    """In a transaction rules are refused; a raw client asks that, as these have no transactions."""
    topic = await world.topic("some", enable_partitioning=True)
    sender, receiver = await world.open(world.to(topic), world.of(f"{topic}/some"))
    admin = world.admin
    await admin.create_rule(
        *(topic, "some", "large"),
        filter=SqlRuleFilter("amount > 100"),
        action=SqlRuleAction("SET kind = 'large'"),
    )
    await admin.create_rule(topic, "some", "red", filter=CorrelationRuleFilter(label="red"))
    await admin.delete_rule(topic, "some", "$Default")

    async def send(body: str, amount: int, subject: str = "") -> None:
        properties: Any = {"amount": amount}
        for key in KEYS[:3]:
            await sender.send_messages(
                msg(body, partition_key=key, subject=subject, application_properties=properties)
            )

    await send("small", 5)
    await send("big", 500)
    await send("red", 5, "red")
    found = await peek_all(receiver)
    assert sorted(bodies(found)) == ["big"] * 3 + ["red"] * 3
    assert set(partitions(found)) == {0, 1, 2}
    big = next(one for one in found if str(one) == "big")
    assert big.application_properties[b"kind"] == b"large"
    with RawTransactions(world.server) as raw:
        for operation in ("add-rule", "remove-rule"):
            assert raw.request(f"{topic}/Subscriptions/some", operation, raw.declare()) == 400
    assert [rule.name async for rule in admin.list_rules(topic, "some")] == ["large", "red"]
    await admin.delete_rule(topic, "some", "red")
    await send("red too", 5, "red")
    assert len(await peek_all(receiver)) == 6


@pytest.mark.promise("P8", "B5")
@scenario
async def test_one_key_a_transaction_where_it_is_partitioned(world: World) -> None:
    """The transactions are those of a raw client; what became of them these clients see."""
    parts = await world.queue(enable_partitioning=True)
    sessions = await world.queue(requires_session=True)
    both = await world.queue(requires_session=True, enable_partitioning=True)
    plain = await world.queue()
    one, other = keys_of(3)
    with RawTransactions(world.server, parts, sessions, both, plain) as raw:
        work = raw.declare()
        assert raw.send(parts, work, b"1", partition_key=one)
        assert raw.send(parts, work, b"2", session_id=one)
        for session in ("x", "y"):
            assert raw.send(sessions, work, b"3", session_id=session)
        assert raw.send(both, work, b"4", session_id="x")
        assert raw.discharge(work) == ""
        wrong: list[tuple[str, list[dict[str, str]]]] = [
            (parts, [{"partition_key": one}, {"partition_key": other}]),
            (parts, [{"partition_key": one}, {}]),
            (parts, [{}]),
            (sessions, [{}]),
            (both, [{"session_id": "x"}, {"session_id": "y"}]),
        ]
        for queue, keys in wrong:
            work = raw.declare()
            assert raw.send(plain, work, b"never")
            for key in keys:
                raw.send(queue, work, b"never", **key)
            assert raw.discharge(work) == "amqp:transaction:rollback"
            assert raw.discharge(work) == "amqp:transaction:unknown-id", "it is gone"
    told = [(await world.counts(queue))[0] for queue in (parts, sessions, both, plain)]
    assert told == [2, 2, 1, 0]
    (receiver,) = await world.open(world.of(parts))
    assert bodies(await get(receiver, 2)) == ["1", "2"]


@pytest.mark.promise("P12")
@scenario
async def test_everything_works_on_partitioned_entities(world: World) -> None:
    queue = await world.queue(enable_partitioning=True)
    sender, receiver = await world.both(queue)
    batch = await sender.create_message_batch()
    for key in KEYS:
        batch.add_message(msg(key, partition_key=key))
    await sender.send_messages(batch)
    held = await get(receiver, 16)
    assert sorted(partitions(held)) == list(range(16))
    until = held[0].locked_until_utc
    await world.advance(1_000)
    assert await receiver.renew_message_lock(held[0]) > until
    for message in held[:4]:
        await receiver.defer_message(message)
    for message in held[4:]:
        await receiver.complete_message(message)
    assert {one.state for one in await peek_all(receiver)} == {ServiceBusMessageState.DEFERRED}
    wanted = numbers(held[:4])
    deferred = await receiver.receive_deferred_messages(wanted)
    assert sorted(numbers(deferred)) == sorted(wanted), "of several partitions at once"
    for message in deferred:
        await receiver.complete_message(message)
    due = await world.now() + timedelta(minutes=10)
    keyed = [msg(key, partition_key=key) for key in KEYS]
    scheduled = await sender.schedule_messages(keyed, due)
    assert [number >> 48 for number in scheduled] == list(range(16))
    with pytest.raises(MessageNotFoundError):
        await sender.cancel_scheduled_messages([*scheduled[:3], 1 << 60])
    await sender.cancel_scheduled_messages(scheduled[:15])
    assert await world.counts(queue) == (0, 1, 0)
    await world.advance(10 * 60_000)
    assert str(await get_one(receiver)) == KEYS[15]


@pytest.mark.promise("P12", "B4")
@scenario
async def test_sessions_of_partitioned_queues(world: World) -> None:
    queue = await world.queue(enable_partitioning=True, requires_session=True)
    sender = await world.sender(queue)
    await sender.send_messages([msg(f"{n}", session_id=f"s-{n % 4}") for n in range(12)])
    assert sorted([one async for one in world.client.list_queue_sessions(queue)]) == [
        *("s-0", "s-1", "s-2", "s-3")
    ]
    named, another = await world.open(
        world.of(queue, session_id="s-2"), world.of(queue, session_id=NEXT_AVAILABLE_SESSION)
    )
    assert bodies(await get(named, 3)) == ["2", "6", "10"]
    assert another.session.session_id in ("s-0", "s-1", "s-3")
    await named.session.set_state(b"half way")
    assert await named.session.get_state() == b"half way"
    until = named.session.locked_until_utc
    await world.advance(1_000)
    assert await named.session.renew_lock() > until


@pytest.mark.promise("P13", "S2")
@scenario
async def test_a_batch_may_mix_keys(world: World) -> None:
    queue = await world.queue(enable_partitioning=True)
    sender, receiver = await world.both(queue)
    batch = [msg(f"{key}/{turn}", partition_key=key) for turn in range(3) for key in KEYS]
    await sender.send_messages(batch)
    found = await peek_all(receiver)
    expected = [(index << 48) + turn + 1 for index in range(16) for turn in range(3)]
    assert numbers(found) == expected
    assert bodies(found) == [f"{key}/{turn}" for key in KEYS for turn in range(3)]
    await world.owner.change_queue(queue, max_size_bytes=20_000)
    with pytest.raises(ServiceBusQuotaExceededError):
        await sender.send_messages(
            [msg("x" * 15_000, partition_key=key) for key in (*KEYS, KEYS[3])]
        )
    assert numbers(await peek_all(receiver)) == expected, "nothing is stored of it"
    await world.owner.change_queue(queue, strict_batches=True)
    with pytest.raises(ServiceBusError, match="strict_batches"):
        await sender.send_messages(batch)
