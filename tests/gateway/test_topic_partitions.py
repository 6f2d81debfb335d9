"""Partitioned topics (P): 16 partitions over two stores, each subscription in all of them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from onibus import Bus, Filter, Rule
from onibus.core.errors import InvalidOperation, PartitionOffline, QuotaExceeded, Unchangeable
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    SECOND,
    Disks,
    ManualClock,
    bodies,
    get,
    index_in,
    keys_of,
    msg,
    numbers,
    pass_ms,
    peek_everything,
    pull,
    run,
    send,
)
from tests.gateway.topic_helpers import dead, reopen, sound, sql, there, topic_with

STORES = ("a", "b")


@pytest.mark.promise("P2", "P4", "S2", "B3")
@run
async def test_messages_spread_and_keep_their_numbers_in_every_subscription(
    clock: ManualClock,
) -> None:
    disks = Disks()
    bus = await disks.bus(clock, *STORES)
    one, two = await topic_with(bus, "one", "two", enable_partitioning=True)
    assert Counter(bus.broker.find("t").stores) == {"a": 8, "b": 8}
    sent = await send(bus, "t", *(str(n) for n in range(48)))
    issued = [answer.sequence_number for answer in sent]
    assert Counter(number >> 48 for number in issued) == dict.fromkeys(range(16), 3)
    for name in (one, two):
        found = peek_everything(bus, name)
        assert sorted(numbers(found)) == sorted(issued)
        assert {f.body: f.sequence_number for f in found} == {
            str(n).encode(): number for n, number in enumerate(issued)
        }
    bus = await reopen(bus, disks, clock, *STORES)
    assert len(await get(bus, one, 100, delete=True)) > 0
    with pytest.raises(Unchangeable):
        await bus.change_topic("t", enable_partitioning=False)
    sound(bus)
    await bus.close()


@pytest.mark.promise("P2", "P5", "P6", "P10", "P11")
@run
async def test_one_store_down(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock, *STORES)
    one, two = await topic_with(bus, "one", "two", enable_partitioning=True)
    down, up = index_in(bus, "t", "a"), index_in(bus, "t", "b")
    (lost,), (kept,) = keys_of(down, 1), keys_of(up, 1)
    await send(bus, "t", "before", partition_key=lost)
    await send(bus, "t", "kept", partition_key=kept)
    pull(bus, "a")
    for name in ("t", one):
        info = bus.topic(name) if name == "t" else bus.subscription(name)
        assert (info.availability, len(info.offline_partitions)) == ("limited", 8)
    with pytest.raises(PartitionOffline):
        await send(bus, "t", "x", partition_key=lost)
    await send(bus, "t", "keyless", "keyless")
    assert sorted(bodies(await get(bus, one))) == ["kept", "keyless", "keyless"]
    for refused in (
        bus.create_subscription("t", "three"),
        bus.delete_subscription(two),
        bus.change_subscription(two, lock_duration_ms=5_000),
        bus.create_rule(two, Rule("new")),
        bus.change_rule(two, Rule("$Default")),
        bus.delete_rule(two, "$Default"),
        bus.change_topic("t", status="disabled"),
        bus.delete_topic("t"),
        bus.purge(two),
    ):
        with pytest.raises(PartitionOffline):
            await refused
    assert bus.topic("t").subscriptions == (one, two)
    await pass_ms(bus, clock, 2 * SECOND)
    assert bus.topic("t").availability == "available"
    sound(bus)
    assert sorted(there(bus, two)) == ["before", "kept", "keyless", "keyless"]
    await bus.create_rule(two, Rule("new"))
    assert await bus.purge(two) == 4
    await bus.delete_topic("t")
    assert bus.topics() == []
    await bus.close()


@pytest.mark.promise("P12", "B4", "X8")
@run
async def test_sessions_of_a_partitioned_topic(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock, *STORES)
    await bus.create_topic("t", enable_partitioning=True)
    name = await bus.create_subscription("t", "s", requires_session=True)
    names = [f"session {n}" for n in range(20)]
    for n in range(3):
        for wanted in names:
            await send(bus, "t", str(n), session_id=wanted)
    await send(bus, "t", "none")
    bus = await reopen(bus, disks, clock, *STORES)
    assert {one.session_id for one in bus.sessions(name)} == set(names)
    seen = []
    for _ in names:
        session = await bus.accept_session(name)
        seen.append(session.session_id)
        found = await session.receive(9)
        assert bodies(found) == ["0", "1", "2"]
        await session.complete(found)
        await session.set_state(session.session_id.encode())
        await session.renew_lock()
        await session.close()
    assert sorted(seen) == sorted(names)
    async with await bus.accept_session(name, names[7]) as session:
        assert await session.get_state() == names[7].encode()
    assert dead(bus, name) == [("none", "Session id is null")]
    sound(bus)
    await bus.close()


@pytest.mark.promise("P12", "S5", "X3")
@run
async def test_everything_else_works_on_partitioned_topics(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock, *STORES)
    one, two = await topic_with(
        bus, "one", "two", enable_partitioning=True, requires_duplicate_detection=True
    )
    batch = [msg(str(n), message_id=f"m{n}") for n in range(40)]
    first = await bus.send_batch("t", batch)
    again = await bus.send_batch("t", batch)
    assert [a.duplicate_of for a in again] == [f.sequence_number for f in first]
    receiver = bus.receiver(one)
    held = await receiver.receive(10)
    for message in held:
        await receiver.renew(message)
        await receiver.defer(message)
    deferred = numbers(held)
    bus = await reopen(bus, disks, clock, *STORES)
    receiver = bus.receiver(one)
    assert sorted(numbers(peek_everything(bus, one, where=Filter(state="deferred")))) == sorted(
        deferred
    )
    got = await receiver.receive_deferred(deferred[:5])
    await receiver.complete(got)
    await bus.undefer(one, deferred[5:])
    assert bus.subscription(one).active_count == 35
    assert bus.subscription(two).active_count == 40
    due = clock.wall() + MINUTE
    scheduled = [
        await bus.schedule("t", msg("later", message_id=f"later {n}"), due) for n in range(20)
    ]
    await bus.cancel_scheduled("t", scheduled[:15])
    assert bus.topic("t").scheduled_count == len(peek_everything(bus, "t")) == 5
    waiting = asyncio.create_task(bus.receiver(two).receive(100, wait_ms=HOUR))
    await waiting
    await pass_ms(bus, clock, MINUTE)
    assert bodies(peek_everything(bus, one)).count("later") == 5
    await bus.create_rule(one, sql("r", "1 = 1", "SET x = 1"))
    sound(bus)
    await bus.close()


@pytest.mark.promise("P1", "P3")
@run
async def test_quota_and_keys_of_a_partitioned_topic(clock: ManualClock) -> None:
    (full,), (other,) = keys_of(4, 1), keys_of(5, 1)
    async with Bus.ephemeral(clock=clock) as bus:
        names = await topic_with(
            bus, "one", "two", "three", enable_partitioning=True, max_size_bytes=2_000
        )
        await send(bus, "t", "x" * 1_500, partition_key=full)
        with pytest.raises(QuotaExceeded):
            await send(bus, "t", "x" * 1_500, partition_key=full)
        await send(bus, "t", "x" * 1_500, partition_key=other)
        for name in names[:2]:
            await get(bus, name, delete=True)
        with pytest.raises(QuotaExceeded):
            await send(bus, "t", "x" * 1_500, partition_key=full)
        await bus.purge(names[2])
        for name in names[:2]:
            await bus.purge(name)
        await send(bus, "t", "x" * 1_500, partition_key=full)
        with pytest.raises(InvalidOperation):
            await send(bus, "t", "x", partition_key=full, session_id=other)
        sound(bus)
