"""Partitioned entities (P) through the server; what a lost store does: test_lost_store.py."""

from __future__ import annotations

import asyncio

import pytest

from onibus.core.errors import InvalidOperation, QuotaExceeded, Unchangeable
from tests.bus_helpers import KEYS, keys_of, run
from tests.over_http.helpers import (
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

PARTITIONED = {"enable_partitioning": True}


@pytest.mark.promise("P1")
@run
async def test_sixteen_of_them_and_the_size_is_each_ones_own(connect: Open) -> None:
    (full,) = keys_of(4, 1)
    async with connect() as client:
        await client.create_queue("q", max_size_bytes=2_000, **PARTITIONED)
        await client.create_queue("single")
        for name, value in (("q", False), ("single", True)):
            with pytest.raises(Unchangeable):
                await client.change_queue(name, enable_partitioning=value)
        await send(client, "q", "x" * 1_500, partition_key=full)
        with pytest.raises(QuotaExceeded):
            await send(client, "q", "x" * 1_500, partition_key=full)
        sent = await send(client, "q", *["x" * 1_500] * 15)
        places = {partition_index(one.sequence_number) for one in sent}
        assert places == set(range(16)) - {4}, "a full one is skipped"
        assert (await client.queue("q")).size_bytes > 16 * 1_500
        with pytest.raises(QuotaExceeded):
            await send(client, "q", "x" * 1_500)


@pytest.mark.promise("P3", "P4")
@run
async def test_the_effective_key(connect: Open) -> None:
    one, two, three = (keys_of(index, 1)[0] for index in (1, 2, 3))
    async with connect() as client:
        await client.create_queue("q", requires_duplicate_detection=True, **PARTITIONED)
        await client.create_queue("plain", **PARTITIONED)
        sends = [
            msg(session_id=one, message_id=three),
            msg(partition_key=two, message_id=three),
            msg(message_id=three),
            msg(session_id=one, partition_key=one, message_id="x"),
        ]
        sent = [await client.send("q", message) for message in sends]
        assert [partition_index(each.sequence_number) for each in sent] == [1, 2, 3, 1]
        with pytest.raises(InvalidOperation) as wrong:
            await client.send("q", msg(session_id=one, partition_key=two))
        assert not wrong.value.retryable
        round_robin = await send(client, "plain", *"x" * 16, message_id="no key here")
        assert len({partition_index(each.sequence_number) for each in round_robin}) == 16
        together = await client.send_batch("plain", [msg() for _ in range(5)])
        assert len({partition_index(each.sequence_number) for each in together}) == 1


@pytest.mark.promise("P6", "P12")
@run
async def test_a_receive_finds_what_any_partition_has(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", **PARTITIONED)
        for index in range(16):
            await send(client, "q", f"{index}", partition_key=KEYS[index])
            message = await get_one(client, "q")
            assert message.body == b"%d" % index, "one receive is enough"
            await client.receiver("q").complete(message)
        for index in (0, 7, 15):
            waiting = asyncio.ensure_future(client.receiver("q").receive(wait_ms=20 * SECOND))
            await asyncio.sleep(0.05)
            await send(client, "q", f"{index}", partition_key=KEYS[index])
            assert bodies(await waiting) == [f"{index}"]
        await client.send_batch("q", [msg(f"{n}", partition_key=f"{n}") for n in range(200)])
        received: list[str] = []
        while found := await get(client, "q", 7, delete=True):
            received += bodies(found)
        assert sorted(received, key=int) == [str(n) for n in range(200)]


@pytest.mark.promise("P7", "P12")
@run
async def test_peek(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("plain")
        await send(client, "plain", *(f"{n}" + "x" * 100_000 for n in range(5)))
        sizes, start = [], 0
        while found := await client.peek("plain", start=start):
            sizes.append(len(found))
            start = found[-1].sequence_number + 1
        assert sizes == [2, 2, 1], "256 KB a call, never nothing while there is more"
        await client.create_queue("q", **PARTITIONED)
        sent = await client.send_batch("q", [msg(f"{n}", partition_key=f"{n}") for n in range(100)])
        seen = await everything(client, "q")
        assert numbers(seen) == sorted(one.sequence_number for one in sent)
        assert await client.peek("q", start=seen[40].sequence_number, limit=1) == [seen[40]]


@pytest.mark.promise("P10", "P12")
@run
async def test_counts_are_added_up_and_a_deleted_entity_takes_everything_with_it(
    connect: Open,
) -> None:
    async with connect() as client:
        settings = {"requires_duplicate_detection": True, **PARTITIONED}
        await client.create_queue("q", **settings)
        batch = [msg(f"{n}", message_id=f"{n}") for n in range(50)]
        await client.send_batch("q", batch)
        held = await get(client, "q", 20)
        receiver = client.receiver("q", renew_ms=0)
        await receiver.dead_letter(held[0])
        await receiver.defer(held[1])
        await receiver.renew(held[2])
        due = await now(client) + 60 * SECOND
        await client.schedule("q", msg("later", message_id="later"), due)
        info = await client.queue("q")
        assert (info.active_count, info.held_count, info.deferred_count) == (48, 18, 1)
        assert (info.dead_lettered_count, info.scheduled_count) == (1, 1)
        assert (info.availability, info.offline_partitions) == ("available", ())
        await client.delete_queue("q")
        await client.create_queue("q", **settings)
        assert await everything(client, "q") == []
        assert all(one.duplicate_of is None for one in await client.send_batch("q", batch))


@pytest.mark.promise("P13", "S2")
@run
async def test_a_batch_may_mix_keys(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("p", max_size_bytes=20_000, **PARTITIONED)
        batch = [msg(f"{key}/{turn}", partition_key=key) for turn in range(3) for key in KEYS]
        sent = await client.send_batch("p", batch)
        expected = [(index << 48) + turn + 1 for turn in range(3) for index in range(16)]
        assert [one.sequence_number for one in sent] == expected
        before = await picture(client, "p")
        too_much = [msg("x" * 15_000, partition_key=key) for key in (*KEYS, KEYS[3])]
        with pytest.raises(QuotaExceeded):
            await client.send_batch("p", too_much)
        assert await picture(client, "p") == before, "nothing is stored of it"
        await client.change_queue("p", strict_batches=True)
        with pytest.raises(InvalidOperation, match="strict_batches"):
            await client.send_batch("p", batch)
