"""Deferral (L) and what the owner does with it (X3) through the server."""

from __future__ import annotations

from typing import Any

import pytest

from onibus import Filter
from onibus.core.errors import InvalidOperation, MessageNotFound
from tests.bus_helpers import run
from tests.over_http.helpers import (
    MINUTE,
    SECOND,
    Open,
    bodies,
    get,
    get_one,
    msg,
    now,
    numbers,
    picture,
    send,
)

BOTH = pytest.mark.parametrize("partitioned", [False, True])


async def deferred(client: Any, *texts: str, **fields: Any) -> list[int]:
    """Send messages and defer them; return their numbers."""
    await send(client, "q", *texts, **fields)
    held = await get(client, "q", len(texts))
    for message in held:
        await client.receiver("q").defer(message)
    return numbers(held)


@pytest.mark.promise("L1", "L3")
@run
async def test_a_deferred_message_is_set_aside(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        (number,) = await deferred(client, "1")
        await send(client, "q", "2")
        assert bodies(await get(client, "q")) == ["2"]
        found = [(m.body, m.state) for m in await client.peek("q")]
        assert found == [(b"1", "deferred"), (b"2", "locked")]
        assert (await client.queue("q")).deferred_count == 1
        assert bodies(await client.receiver("q").receive_deferred([number])) == ["1"]


@pytest.mark.promise("L2", "P12")
@BOTH
@run
async def test_they_are_received_by_number_all_or_none(connect: Open, partitioned: bool) -> None:
    async with connect() as client:
        await client.create_queue("q", enable_partitioning=partitioned)
        known = [(await deferred(client, text))[0] for text in "123"]
        (active,) = await send(client, "q", "active")
        before = await picture(client, "q")
        receiver = client.receiver("q", renew_ms=0)
        for wrong in (active.sequence_number, 10**6, 1 << 62):
            with pytest.raises(MessageNotFound):
                await receiver.receive_deferred([*known, wrong])
        assert await picture(client, "q") == before
        received = await receiver.receive_deferred([known[2], known[0]])
        assert sorted(bodies(received)) == ["1", "3"]
        with pytest.raises(MessageNotFound):
            await receiver.receive_deferred([known[1], known[0]])  # that one is locked
        await receiver.complete(*received)
        assert (await client.queue("q")).deferred_count == 1


@pytest.mark.promise("L2", "B1")
@run
async def test_given_back_in_any_way_it_stays_deferred(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", lock_duration_ms=MINUTE)
        (number,) = await deferred(client, "x")
        receiver = client.receiver("q", renew_ms=0)
        await receiver.abandon((await receiver.receive_deferred([number]))[0])
        await receiver.defer((await receiver.receive_deferred([number]))[0])
        (left,) = await receiver.receive_deferred([number])
        assert left.locked_until_ms is not None
        await client.advance(MINUTE)
        assert await get(client, "q") == []
        (again,) = await receiver.receive_deferred([number])
        assert again.delivery_count == 4
        await receiver.complete(again)
        with pytest.raises(MessageNotFound):
            await receiver.receive_deferred([number])


@pytest.mark.promise("L2", "B4")
@run
async def test_in_a_session_its_holder_receives_deferred_messages(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", requires_session=True)
        await send(client, "q", "1", "2", session_id="s")
        await send(client, "q", "other", session_id="t")
        async with await client.accept_session("q", "s") as session:
            (first,) = await session.receive()
            await session.defer(first)
            assert bodies(await session.receive(5)) == ["2"]
        with pytest.raises(InvalidOperation):
            await client.receiver("q").receive_deferred([first.sequence_number])
        async with await client.accept_session("q", "t") as stranger:
            with pytest.raises(MessageNotFound):
                await stranger.receive_deferred([first.sequence_number])
        async with await client.accept_session("q", "s") as session:
            (again,) = await session.receive_deferred([first.sequence_number])
            await session.complete(again)
        assert (await client.queue("q")).deferred_count == 0


@pytest.mark.promise("L4", "B2")
@pytest.mark.parametrize("dead_letter", [False, True])
@run
async def test_deferral_does_not_touch_expiry(connect: Open, dead_letter: bool) -> None:
    async with connect() as client:
        settings = {"dead_letter_on_expiration": dead_letter, "lock_duration_ms": 5 * MINUTE}
        await client.create_queue("q", **settings)
        loose, locked = await deferred(client, "loose", "locked", time_to_live_ms=2 * MINUTE)
        receiver = client.receiver("q", renew_ms=0)
        (held,) = await receiver.receive_deferred([locked])
        await client.advance(MINUTE)
        assert (await client.queue("q")).deferred_count == 2
        await client.advance(MINUTE)
        assert (await client.queue("q")).deferred_count == 1, "the loose one has expired"
        await receiver.abandon(held)
        assert (await client.queue("q")).deferred_count == 0, "as soon as it was let go"
        dead = await client.peek("q", dead_letters=True)
        assert numbers(dead) == ([loose, locked] if dead_letter else [])
        assert {m.dead_letter_reason for m in dead} <= {"TTLExpiredException"}


@pytest.mark.promise("L5")
@run
async def test_deferred_for_a_while_it_comes_back_at_its_place(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        await send(client, "q", "1", "2")
        await client.receiver("q").defer(await get_one(client, "q"), delay_ms=MINUTE)
        await client.advance(40 * SECOND)
        assert (await client.queue("q")).deferred_count == 1
        await client.advance(20 * SECOND)
        received = await get(client, "q")
        assert (bodies(received), numbers(received)) == (["1", "2"], [1, 2])


@pytest.mark.promise("L5", "S5")
@run
async def test_a_scheduled_message_that_carries_the_number_works_as_well(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        (number,) = await deferred(client, "work")
        reminder = msg("reminder", properties={"number": number})
        await client.schedule("q", reminder, await now(client) + MINUTE)
        await client.advance(MINUTE)
        message = await get_one(client, "q")
        receiver = client.receiver("q")
        (work,) = await receiver.receive_deferred([message.properties["number"]])
        await receiver.complete(message, work)
        assert await client.peek("q") == []


@pytest.mark.promise("X3", "P12")
@BOTH
@run
async def test_they_are_listed_found_given_back_and_purged(
    connect: Open, partitioned: bool
) -> None:
    async with connect() as client:
        await client.create_queue("q", enable_partitioning=partitioned)
        known = []
        for n in range(4):
            known += await deferred(client, f"{n}", message_id=f"id-{n}", partition_key="k")
        assert numbers(await client.peek("q", where=Filter(state="deferred"))) == known
        where = Filter(state="deferred", message_id="id-2")
        assert numbers(await client.peek("q", where=where)) == [known[2]]
        before = await picture(client, "q")
        with pytest.raises(MessageNotFound):
            await client.undefer("q", [known[0], 10**6])
        assert await picture(client, "q") == before
        await client.undefer("q", [known[2], known[0]])
        assert bodies(await get(client, "q")) == ["0", "2"]
        assert await client.purge("q", Filter(state="deferred")) == 2
        assert (await client.queue("q")).deferred_count == 0
