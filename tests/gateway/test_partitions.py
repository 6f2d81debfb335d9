"""Partitioned entities (P): keys, failover, receive and peek over all partitions."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from onibus import Bus, Filter
from onibus.core.errors import (
    InvalidOperation,
    PartitionOffline,
    QuotaExceeded,
    Unchangeable,
    Unknown,
)
from onibus.directory.quotas import Quotas
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
    picture,
    pull,
    run,
    send,
)

STORES = ("a", "b")


def partition_index(number: int) -> int:
    return number >> 48


async def indexes(bus: Bus, count: int, **fields: str) -> list[int]:
    """Send messages one by one; return where each went."""
    sent = await send(bus, "q", *("x" * count), **fields)
    return [partition_index(one.sequence_number) for one in sent]


@pytest.mark.promise("P1")
@run
async def test_partitioning_makes_sixteen_and_cannot_change(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        await bus.create_queue("single")
        assert sorted(await indexes(bus, 32)) == sorted([*range(16), *range(16)])
        for name, value in (("q", False), ("single", True)):
            with pytest.raises(Unchangeable):
                await bus.change_queue(name, enable_partitioning=value)
        assert bus.queue("q").settings.enable_partitioning


@pytest.mark.promise("P1")
@run
async def test_the_size_is_each_partitions_own(clock: ManualClock) -> None:
    (full,), (other,) = keys_of(4, 1), keys_of(5, 1)
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True, max_size_bytes=2_000)
        await send(bus, "q", "x" * 1_500, partition_key=full)
        with pytest.raises(QuotaExceeded):
            await send(bus, "q", "x" * 1_500, partition_key=full)
        await send(bus, "q", "x" * 1_500, partition_key=other)
        sent = await send(bus, "q", *["x" * 1_500] * 14)
        assert {partition_index(one.sequence_number) for one in sent} == {*range(16)} - {4, 5}
        assert bus.queue("q").size_bytes > 16 * 1_500, "sixteen times what one takes"
        with pytest.raises(QuotaExceeded):
            await send(bus, "q", "x" * 1_500)


@pytest.mark.promise("P1")
@run
async def test_a_namespace_has_so_many_entities(tmp_path: Path, clock: ManualClock) -> None:
    assert Quotas() == Quotas(entities=10_000, partitioned_entities=100)
    quotas = Quotas(entities=4, partitioned_entities=2)
    async with Bus.open(tmp_path, clock=clock, quotas=quotas) as bus:
        for name in ("p1", "p2"):
            await bus.create_queue(name, enable_partitioning=True)
        with pytest.raises(QuotaExceeded):
            await bus.create_queue("p3", enable_partitioning=True)
        await bus.create_queue("q1")
        await bus.create_queue("q2")
        with pytest.raises(QuotaExceeded):
            await bus.create_queue("q3")
        await bus.delete_queue("p1")
        await bus.create_queue("p3", enable_partitioning=True)
        assert bus.queues() == ["p2", "p3", "q1", "q2"]


@pytest.mark.promise("P2", "P5")
@run
async def test_one_store_down_leaves_the_entity_available(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock, stores=STORES) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        assert Counter(bus.broker.find("q").stores) == {"a": 8, "b": 8}
        await bus.send_batch("q", [msg(f"{n}", partition_key=f"{n}") for n in range(40)])
        (down,), (up,) = keys_of(index_in(bus, "q", "a"), 1), keys_of(index_in(bus, "q", "b"), 1)
        pull(bus, "a")
        before = picture(bus, "q")
        with pytest.raises(PartitionOffline) as raised:
            await bus.send("q", msg("keyed", partition_key=down))
        assert raised.value.retryable
        assert picture(bus, "q") == before, "nothing is stored"
        await bus.send("q", msg("keyed", partition_key=up))
        went = await indexes(bus, 16)
        assert set(went) == set(range(16)) - set(bus.queue("q").offline_partitions)
        served = bodies(await get(bus, "q"))
        assert "keyed" in served
        await pass_ms(bus, clock, SECOND)
        assert bus.queue("q").availability == "available", "opened anew after a pause"
        assert (await bus.send("q", msg("keyed", partition_key=down))).sequence_number
        rest = bodies(await get(bus, "q"))
        assert sorted(served + rest) == sorted([*map(str, range(40)), *"x" * 16, "keyed", "keyed"])


@pytest.mark.promise("P3")
@run
async def test_the_effective_key(clock: ManualClock) -> None:
    one, two, three = keys_of(1, 1)[0], keys_of(2, 1)[0], keys_of(3, 1)[0]
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True, requires_duplicate_detection=True)
        assert await indexes(bus, 1, session_id=one, message_id=three) == [1]
        assert await indexes(bus, 1, partition_key=two, message_id=three) == [2]
        assert await indexes(bus, 1, message_id=three) == [3]
        assert await indexes(bus, 1, session_id=one, partition_key=one) == [1]
        with pytest.raises(InvalidOperation) as raised:
            await bus.send("q", msg(session_id=one, partition_key=two, message_id="x"))
        assert not raised.value.retryable


@pytest.mark.promise("P3")
@run
async def test_without_detection_the_message_id_is_no_key(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        assert len(set(await indexes(bus, 16, message_id="same"))) == 16


@pytest.mark.promise("P4")
@run
async def test_equal_keys_share_a_partition_also_after_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    keys = [f"customer-{n}" for n in range(50)]
    places = []
    for attempt in range(3):
        async with Bus.open(tmp_path, clock=clock, stores=STORES) as bus:
            if not attempt:
                await bus.create_queue("q", enable_partitioning=True)
            sent = await bus.send_batch("q", [msg(partition_key=key) for key in keys])
            places.append([partition_index(one.sequence_number) for one in sent])
    assert places[0] == places[1] == places[2]
    assert len(set(places[0])) == 16


@pytest.mark.promise("P4")
@run
async def test_no_key_goes_round_and_a_batch_stays_together(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        places = await indexes(bus, 16)
        assert await indexes(bus, 16) == places, "round robin"
        for _ in range(3):
            sent = await bus.send_batch("q", [msg() for _ in range(5)])
            assert len({partition_index(one.sequence_number) for one in sent}) == 1


@pytest.mark.promise("P5")
@run
async def test_a_keyless_send_that_was_not_tried_goes_to_another_partition(
    clock: ManualClock,
) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        waiting = [asyncio.ensure_future(bus.send("q", msg(f"{n}"))) for n in range(16)]
        keyed = asyncio.ensure_future(
            bus.send("q", msg("keyed", partition_key=keys_of(index_in(bus, "q", "a"), 1)[0]))
        )
        # Nothing has been given to a disk yet: the senders have not even been started.
        await asyncio.sleep(0)
        pull(bus, "a")
        sent = [await one for one in waiting]
        up = {at for at, name in enumerate(bus.broker.find("q").stores) if name == "b"}
        assert {partition_index(one.sequence_number) for one in sent} == up
        with pytest.raises(PartitionOffline):
            await keyed
        assert sorted(bodies(await get(bus, "q"))) == sorted(str(n) for n in range(16))


@pytest.mark.promise("P5")
@run
async def test_after_a_commit_was_tried_the_answer_is_unknown(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        for name in STORES:
            disks.open[name].fail_next(kept=True)
        with pytest.raises(Unknown):
            await bus.send("q", msg("perhaps"))
        await pass_ms(bus, clock, SECOND)
        assert bodies(await get(bus, "q")) == ["perhaps"], "it was not sent a second time"


@pytest.mark.promise("P6", "P12")
@run
async def test_a_receive_finds_what_any_partition_has(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        for index in range(16):
            await send(bus, "q", f"{index}", partition_key=keys_of(index, 1)[0])
            (message,) = await get(bus, "q", 1)
            assert bodies([message]) == [f"{index}"], "one receive is enough"
            await bus.receiver("q").complete(message)
        await bus.send_batch("q", [msg(f"{n}", partition_key=f"{n}") for n in range(200)])
        received = []
        while found := await get(bus, "q", 7, delete=True):
            received += bodies(found)
        assert sorted(received, key=int) == [str(n) for n in range(200)]


@pytest.mark.promise("P6")
@run
async def test_a_waiting_receiver_gets_what_comes_to_any_partition(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        for index in (0, 7, 15):
            waiting = asyncio.ensure_future(bus.receiver("q").receive(wait_ms=HOUR))
            await asyncio.sleep(0)
            await send(bus, "q", f"{index}", partition_key=keys_of(index, 1)[0])
            assert bodies(await waiting) == [f"{index}"]


@pytest.mark.promise("P6")
@run
async def test_no_partition_is_starved(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        for index in range(16):
            await bus.send_batch("q", [msg(partition_key=keys_of(index, 1)[0]) for _ in range(50)])
        first = [(await get(bus, "q", 1))[0].sequence_number for _ in range(16)]
        assert {partition_index(number) for number in first} == set(range(16))


@pytest.mark.promise("P7", "P12")
@run
async def test_peek_walks_all_partitions(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        sent = await bus.send_batch("q", [msg(f"{n}", partition_key=f"{n}") for n in range(100)])
        seen = peek_everything(bus, "q", limit=3)
        assert sorted(bodies(seen), key=int) == [str(n) for n in range(100)]
        assert sorted(numbers(seen)) == numbers(seen) == sorted(s.sequence_number for s in sent)
        assert bus.peek("q", start=seen[40].sequence_number, limit=1) == [seen[40]]
        assert await get(bus, "q", 100) != [], "nothing was touched"


@pytest.mark.promise("P7")
@run
async def test_peek_returns_at_most_256_kilobytes_a_call(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", *(f"{n}" + "x" * 100_000 for n in range(5)))
        await send(bus, "q", "5" + "x" * 300_000)
        sizes = []
        start = 0
        while found := bus.peek("q", start=start):
            sizes.append(len(found))
            start = found[-1].sequence_number + 1
        assert sizes == [2, 2, 1, 1], "less than asked, but never nothing while there is more"
        # All of a message counts: one without a body can be large.
        await bus.create_queue("large")
        for fields in ({"properties": {"p": "x" * 100_000}}, {"subject": "x" * 100_000}):
            for _ in range(2):
                await send(bus, "large", "", **fields)
        assert [len(bus.peek("large", start=start)) for start in (1, 3)] == [2, 2]


@pytest.mark.promise("P10")
@run
async def test_entities_are_not_made_changed_or_deleted_while_a_partition_is_down(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock, stores=STORES) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        await send(bus, "q", *"abcdefgh")
        pull(bus, "b")
        info = bus.queue("q")
        assert (info.availability, len(info.offline_partitions)) == ("limited", 8)
        for refused in (
            bus.create_queue("new", enable_partitioning=True),
            bus.change_queue("q", max_delivery_count=3),
            bus.delete_queue("q"),
        ):
            with pytest.raises(PartitionOffline):
                await refused
        assert bus.queues() == ["q"]
        assert bus.queue("q").settings.max_delivery_count == 10
        await pass_ms(bus, clock, SECOND)
        info = bus.queue("q")
        assert (info.availability, info.offline_partitions) == ("available", ())
        assert info.active_count == 8, "counts are added up over the partitions"
        await bus.change_queue("q", max_delivery_count=3)
        await bus.delete_queue("q")
        assert bus.queues() == []


@pytest.mark.promise("P10")
@run
async def test_a_failed_decision_leaves_nothing_half_made(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        disks.open["namespace"].fail_next(kept=False)
        with pytest.raises(Unknown):
            await bus.create_queue("q", enable_partitioning=True)
        assert bus.queues() == []
    async with disks.bus(clock) as bus:
        assert bus.queues() == []
        await bus.create_queue("q", enable_partitioning=True)
        assert len(await indexes(bus, 16)) == 16


@pytest.mark.promise("P10", "P12")
@run
async def test_a_deleted_entity_takes_everything_with_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    settings = {"enable_partitioning": True, "requires_duplicate_detection": True}
    async with Bus.open(tmp_path, clock=clock, stores=STORES) as bus:
        await bus.create_queue("q", **settings)
        batch = [msg(f"{n}", message_id=f"{n}") for n in range(50)]
        await bus.send_batch("q", batch)
        held = await get(bus, "q", 20)
        await bus.receiver("q").dead_letter(held[0])
        await bus.delete_queue("q")
        await bus.create_queue("q", **settings)
        assert peek_everything(bus, "q") == peek_everything(bus, "q", dead_letters=True) == []
        assert all(s.duplicate_of is None for s in await bus.send_batch("q", batch))
    async with Bus.open(tmp_path, clock=clock, stores=STORES) as bus:
        assert len(await get(bus, "q")) == 50


@pytest.mark.promise("P12")
@run
async def test_everything_works_on_partitioned_entities(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock, stores=STORES) as bus:
        await bus.create_queue("q", enable_partitioning=True, lock_duration_ms=MINUTE)
        receiver = bus.receiver("q")
        sent = await bus.send_batch("q", [msg(f"{n}", partition_key=f"{n}") for n in range(40)])
        held = await receiver.receive(40)
        assert len(held) == 40, "a batch is received from all partitions"
        await receiver.complete(*held[:20])
        for message in held[20:30]:
            await receiver.defer(message)
        for message in held[30:]:
            assert await receiver.renew(message) == clock.wall() + MINUTE
            await receiver.abandon(message)
        deferred = await receiver.receive_deferred(numbers(held[20:30]))
        assert sorted(numbers(deferred)) == sorted(numbers(held[20:30]))
        assert len(bus.peek("q", where=Filter(message_id="none"))) == 0
        due = clock.wall() + MINUTE
        scheduled = [await bus.schedule("q", msg("later"), due) for _ in range(16)]
        assert len({partition_index(number) for number in scheduled}) == 16
        await bus.cancel_scheduled("q", scheduled[::2])
        info = bus.queue("q")
        assert (info.active_count, info.deferred_count, info.scheduled_count) == (10, 10, 8)
        assert {one.sequence_number for one in sent} >= set(numbers(held))
    async with Bus.open(tmp_path, clock=clock, stores=STORES) as bus:
        await pass_ms(bus, clock, MINUTE)
        info = bus.queue("q")
        assert (info.active_count, info.deferred_count, info.scheduled_count) == (18, 10, 0)
        assert await bus.purge("q") == 28
