"""Sequence numbers, times and schedules (S) through the server."""

from __future__ import annotations

import asyncio

import pytest

from onibus import Filter
from onibus.core.errors import InvalidArgument, MessageNotFound, MessageTooLarge
from tests.bus_helpers import keys_of, run
from tests.over_http.helpers import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    Open,
    bodies,
    everything,
    get,
    get_one,
    msg,
    now,
    numbers,
    partition_index,
    picture,
    send,
)


@pytest.mark.promise("S1")
@run
async def test_the_broker_gives_number_and_time_never_the_client(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        before = await now(client)
        sent = await client.send("q", msg("x", properties={"sequence_number": 99}))
        message = await get_one(client, "q")
        assert message.sequence_number == sent.sequence_number == 1
        assert before <= message.enqueued_time_ms <= await now(client)


@pytest.mark.promise("S2")
@run
async def test_numbers_rise_by_one_in_the_order_of_acceptance(connect: Open) -> None:
    async with connect() as client:
        for name in ("q", "other"):
            await client.create_queue(name)
        batch = await client.send_batch("q", [msg(f"{n}") for n in range(50)])
        await send(client, "other", "not counted here")
        single = await send(client, "q", "50", "51")
        assert [one.sequence_number for one in batch + single] == list(range(1, 53))
        received = await get(client, "q")
        assert bodies(received) == [f"{n}" for n in range(52)]
        await client.receiver("q").dead_letter(received[7])
        assert numbers(await get(client, "q", dead_letters=True)) == [8], "not renumbered"


@pytest.mark.promise("S2", "P12")
@run
async def test_where_partitioned_the_top_16_bits_are_the_partition(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", enable_partitioning=True)
        for index in range(16):
            (key,) = keys_of(index, 1)
            sent = await send(client, "q", "x", "y", partition_key=key)
            assert [partition_index(one.sequence_number) for one in sent] == [index, index]
            assert [one.sequence_number & (1 << 48) - 1 for one in sent] == [1, 2]


@pytest.mark.promise("S2", "B3")
@run
async def test_a_topics_number_in_every_subscription_and_a_new_one_where_it_goes_on(
    connect: Open,
) -> None:
    async with connect() as client:
        await client.create_queue("end")
        await send(client, "end", "was there")
        await client.create_topic("t")
        kept = await client.create_subscription("t", "kept")
        await client.create_subscription("t", "on", forward_to="end")
        await send(client, "t", "1", "2")
        assert numbers(await client.peek(kept)) == [1, 2]
        # Messages are forwarded after the send has returned.
        while len(on := (await client.peek("end"))[1:]) < 2:
            await asyncio.sleep(0.01)
        assert (numbers(on), bodies(on)) == ([2, 3], ["1", "2"])
        assert [one.message.enqueued_sequence_number for one in on] == [1, 2]


@pytest.mark.promise("S3", "D9")
@run
async def test_what_is_refused_or_rolled_back_uses_up_no_number(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", max_message_bytes=1_000)
        seen = [(await client.send("q", msg("a"))).sequence_number]
        with pytest.raises(MessageTooLarge):
            await client.send_batch("q", [msg("fits"), msg("x" * 2_000)])
        undone = client.transaction()
        await undone.send("q", msg("never"))
        await undone.rollback()
        number = await client.schedule("q", msg("s"), await now(client) + DAY)
        await client.cancel_scheduled("q", [number])
        seen += [number, (await client.send("q", msg("b"))).sequence_number]
        assert seen == [1, 2, 3]


@pytest.mark.promise("S4")
@run
async def test_enqueued_times_do_not_run_backwards(connect: Open) -> None:
    """How clocks that are set back are met: tests/over_http/test_restarts.py."""
    async with connect() as client:
        await client.create_queue("q")
        for step in (0, SECOND, 0, DAY, 0, 1):
            await client.advance(step)
            await client.send("q", msg("x"))
        stamps = [message.enqueued_time_ms for message in await client.peek("q")]
        assert stamps == sorted(stamps)
        assert stamps[-1] - stamps[0] > DAY


@pytest.mark.promise("S5", "S2")
@run
async def test_a_message_is_scheduled_by_its_property_or_by_the_call(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        start = await now(client)
        sent = await client.send("q", msg("property", scheduled_enqueue_time_ms=start + MINUTE))
        number = await client.schedule("q", msg("call"), start + MINUTE)
        assert (sent.sequence_number, number) == (1, 2)
        await client.schedule("q", msg("past"), start - HOUR)
        assert bodies(await get(client, "q", delete=True)) == ["past"]
        await client.advance(MINUTE)
        received = await get(client, "q")
        assert (bodies(received), numbers(received)) == (["property", "call"], [4, 5])
        for due in (-1, 2**60):
            with pytest.raises(InvalidArgument):
                await client.schedule("q", msg(), due)


@pytest.mark.promise("S5", "P12")
@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_cancel_deletes_several_all_or_none(connect: Open, partitioned: bool) -> None:
    async with connect() as client:
        await client.create_queue("q", enable_partitioning=partitioned)
        due = await now(client) + HOUR
        scheduled = [await client.schedule("q", msg(f"{n}"), due) for n in range(5)]
        await client.cancel_scheduled("q", scheduled[:1])
        before = await picture(client, "q")
        for wrong in (scheduled[0], 10**6, 1 << 60):
            with pytest.raises(MessageNotFound):
                await client.cancel_scheduled("q", [*scheduled[1:3], wrong])
        assert await picture(client, "q") == before, "all or none"
        await client.cancel_scheduled("q", scheduled[1:3])
        await client.advance(HOUR)
        assert sorted(bodies(await get(client, "q"))) == ["3", "4"]
        for number in scheduled:
            with pytest.raises(MessageNotFound):
                await client.cancel_scheduled("q", [number])


@pytest.mark.promise("S5", "S7")
@run
async def test_a_scheduled_message_waits_at_the_topic(connect: Open) -> None:
    async with connect() as client:
        await client.create_topic("t")
        early = await client.create_subscription("t", "early")
        due = await now(client) + MINUTE
        number = await client.schedule("t", msg("later"), due)
        gone = await client.schedule("t", msg("cancelled"), due)
        assert {one.state for one in await client.peek("t")} == {"scheduled"}
        assert await client.peek(early) == []
        with pytest.raises(MessageNotFound):
            await client.cancel_scheduled(early, [gone])
        await client.cancel_scheduled("t", [gone])
        late = await client.create_subscription("t", "late")
        await client.advance(MINUTE)
        for name in (early, late):
            (found,) = await get(client, name)
            assert (found.body, found.sequence_number) == (b"later", 3)
        with pytest.raises(MessageNotFound):
            await client.cancel_scheduled("t", [number])


@pytest.mark.promise("S6", "S7")
@run
async def test_at_its_time_it_is_enqueued_as_if_sent_now(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        due = await now(client) + 2 * MINUTE
        old = await client.schedule("q", msg("x", time_to_live_ms=2 * MINUTE), due)
        await client.advance(MINUTE)
        assert await get(client, "q") == []
        (waiting,) = await client.peek("q")
        assert (waiting.state, waiting.sequence_number) == ("scheduled", old)
        await client.advance(MINUTE)
        (message,) = await client.peek("q")
        assert (message.state, message.sequence_number) == ("active", old + 1)
        assert due <= message.enqueued_time_ms <= await now(client)
        await client.advance(MINUTE)
        assert (await client.queue("q")).active_count == 1, "its life begins with its activation"
        await client.advance(MINUTE)
        assert (await client.queue("q")).active_count == 0


@pytest.mark.promise("S7", "X3")
@run
async def test_scheduled_messages_are_listed_found_cancelled_and_purged(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        due = await now(client) + HOUR
        for n in range(5):
            await client.schedule("q", msg(message_id=f"id-{n}"), due)
        where = Filter(state="scheduled", message_id="id-3")
        (found,) = await everything(client, "q", where=where)
        await client.cancel_scheduled("q", [found.sequence_number, 1])
        left = await everything(client, "q", where=Filter(state="scheduled"))
        assert numbers(left) == [2, 3, 5]
        assert await client.purge("q", Filter(state="scheduled")) == 3
        await client.advance(HOUR)
        assert await get(client, "q") == []
