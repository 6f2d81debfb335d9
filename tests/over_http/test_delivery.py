"""Locks, deliveries, expiry, pauses and sessions (B1, B2, B4, B7, X4, X8) through the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onibus.core.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    LockLost,
    MessageTooLarge,
    NoSession,
    QuotaExceeded,
    SessionLocked,
    SessionLockLost,
)
from tests.bus_helpers import run
from tests.over_http.helpers import (
    DAY,
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


@pytest.mark.promise("B1")
@run
async def test_a_locked_message_is_nobody_elses_until_it_is_settled(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", lock_duration_ms=MINUTE)
        await send(client, "q", "1", "2", "3")
        first = await get_one(client, "q")
        assert first.locked_until_ms is not None
        assert 0 < first.locked_until_ms - await now(client) <= MINUTE
        assert bodies(await get(client, "q", 1, delete=True)) == ["2"]
        receiver = client.receiver("q", renew_ms=0)
        await receiver.complete(first)
        with pytest.raises(LockLost):
            await receiver.complete(first)
        last = await get_one(client, "q")
        await client.advance(40 * SECOND)
        assert await receiver.renew(last) - await now(client) > 50 * SECOND
        await client.advance(40 * SECOND)
        assert await get(client, "q") == [], "it was renewed"
        await client.advance(20 * SECOND)
        for settle in (receiver.complete, receiver.abandon, receiver.defer, receiver.renew):
            with pytest.raises(LockLost):
                await settle(last)
        again = await get_one(client, "q")
        assert (again.body, again.delivery_count) == (b"3", 1)


@pytest.mark.promise("B1")
@run
async def test_completing_several_is_all_or_none(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", enable_partitioning=True)
        await send(client, "q", "1", "2", "3")
        held = await get(client, "q")
        receiver = client.receiver("q")
        await receiver.complete(held[1])
        with pytest.raises(LockLost):
            await receiver.complete(*held)
        assert (await client.queue("q")).held_count == 2
        await receiver.complete(held[0], held[2])
        assert (await client.queue("q")).active_count == 0


@pytest.mark.promise("B1")
@pytest.mark.parametrize("end", ["abandon", "expiry", "defer"])
@run
async def test_the_last_delivery_allowed_dead_letters(connect: Open, end: str) -> None:
    async with connect() as client:
        made = await client.create_queue("q", lock_duration_ms=MINUTE)
        assert made.settings.max_delivery_count == 10
        await send(client, "q", "x")
        receiver = client.receiver("q", renew_ms=0)
        for delivery in range(10):
            if end == "defer" and delivery:
                (message,) = await receiver.receive_deferred([1])
            else:
                message = await get_one(client, "q")
            assert message.delivery_count == delivery
            if end == "expiry":
                await client.advance(MINUTE)
            else:
                await (receiver.defer if end == "defer" else receiver.abandon)(message)
        counts = await client.queue("q")
        assert (counts.active_count, counts.deferred_count, counts.dead_lettered_count) == (0, 0, 1)
        dead = await get_one(client, "q", dead_letters=True)
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
        assert dead.dead_letter_description
        assert (dead.sequence_number, dead.delivery_count) == (1, 10)


@pytest.mark.promise("B1")
@run
async def test_a_receiver_dead_letters_with_its_reason(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        await send(client, "q", "x")
        await client.receiver("q").dead_letter(
            await get_one(client, "q"), reason="bad", description="worse", properties={"by": "me"}
        )
        dead = client.receiver("q", dead_letters=True)
        (message,) = await dead.receive()
        assert (message.dead_letter_reason, message.dead_letter_description) == ("bad", "worse")
        assert message.properties == {"by": "me"}
        with pytest.raises(InvalidOperation):
            await dead.dead_letter(message)
        await dead.abandon(message)
        await dead.complete(*await dead.receive())
        assert (await client.queue("q")).dead_lettered_count == 0


@pytest.mark.promise("B1")
@run
async def test_a_receiver_waits_for_what_comes(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        waiting = asyncio.ensure_future(client.receiver("q").receive(wait_ms=20 * SECOND))
        await asyncio.sleep(0.1)
        await send(client, "q", "x")
        assert bodies(await waiting) == ["x"]


@pytest.mark.promise("X4")
@run
async def test_abandon_with_a_delay_and_an_entitys_own_back_off(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        await send(client, "q", "1", "2")
        await client.receiver("q").abandon(await get_one(client, "q"), delay_ms=MINUTE)
        assert bodies(await get(client, "q", delete=True)) == ["2"], "others go on"
        await client.advance(40 * SECOND)
        assert await get(client, "q") == []
        await client.advance(20 * SECOND)
        back = await get_one(client, "q")
        assert (back.sequence_number, back.delivery_count) == (1, 1)
        backoff = {"retry_backoff_ms": MINUTE, "retry_backoff_ms_max": 3 * MINUTE}
        await client.create_queue("b", **backoff)
        await send(client, "b", "x")
        for minutes in (1, 2, 3, 3):
            await client.receiver("b").abandon(await get_one(client, "b"))
            await client.advance(minutes * MINUTE - 20 * SECOND)
            assert await get(client, "b") == [], minutes
            await client.advance(20 * SECOND)
        assert (await get_one(client, "b")).delivery_count == 4


@pytest.mark.promise("X4", "B4")
@run
async def test_a_delayed_message_blocks_its_session(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", requires_session=True, lock_duration_ms=5 * MINUTE)
        await send(client, "q", "1", "2", session_id="s")
        async with await client.accept_session("q", "s", renew_ms=0) as session:
            (first,) = await session.receive()
            await session.abandon(first, delay_ms=MINUTE)
            assert await session.receive(5) == [], "order is kept: the second must wait"
            await client.advance(MINUTE)
            received = await session.receive(5)
            assert (bodies(received), numbers(received)) == (["1", "2"], [1, 2])
            assert [m.delivery_count for m in received] == [1, 0]


@pytest.mark.promise("B2")
@run
async def test_the_smaller_time_to_live_counts(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", default_time_to_live_ms=4 * MINUTE)
        await send(client, "q", "own", time_to_live_ms=2 * MINUTE)
        await send(client, "q", "queue's", time_to_live_ms=DAY)
        await send(client, "q", "default")
        lives = [m.expires_at_ms - m.enqueued_time_ms for m in await client.peek("q")]
        assert [round(life / MINUTE) for life in lives] == [2, 4, 4]
        await client.advance(MINUTE)
        assert (await client.queue("q")).active_count == 3
        await client.advance(MINUTE)
        assert bodies(await client.peek("q")) == ["queue's", "default"]
        await client.advance(2 * MINUTE)
        assert await get(client, "q") == []
        assert (await client.queue("q")).dead_lettered_count == 0


@pytest.mark.promise("B2")
@run
async def test_no_expiry_while_held_and_dead_letters_do_not_expire(connect: Open) -> None:
    async with connect() as client:
        settings = {"lock_duration_ms": 2 * MINUTE, "dead_letter_on_expiration": True}
        await client.create_queue("q", **settings)
        await send(client, "q", "completed", "abandoned", "left", time_to_live_ms=MINUTE)
        receiver = client.receiver("q", renew_ms=0)
        completed, abandoned, _ = await get(client, "q")
        await client.advance(MINUTE)
        assert (await client.queue("q")).held_count == 3
        await receiver.complete(completed)
        await receiver.abandon(abandoned)
        assert bodies(await client.peek("q", dead_letters=True)) == ["abandoned"]
        await client.advance(MINUTE)
        await client.advance(100 * DAY)
        dead = await get(client, "q", dead_letters=True)
        assert bodies(dead) == ["abandoned", "left"]
        assert {m.dead_letter_reason for m in dead} == {"TTLExpiredException"}


@pytest.mark.promise("B4", "P12")
@BOTH
@run
async def test_a_session_has_one_holder_and_gives_its_messages_in_order(
    connect: Open, partitioned: bool
) -> None:
    async with connect() as client:
        settings = {"requires_session": True, "lock_duration_ms": MINUTE}
        await client.create_queue("q", enable_partitioning=partitioned, **settings)
        await send(client, "q", "1", "2", "3", session_id="a")
        await send(client, "q", "4", session_id="b")
        first = await client.accept_session("q", "a", renew_ms=0)
        with pytest.raises(SessionLocked):
            await client.accept_session("q", "a")
        async with await client.accept_session("q") as second:
            assert second.session_id == "b"
            with pytest.raises(NoSession):
                await client.accept_session("q")
        held = await first.receive(2)
        assert bodies(held + await first.receive(2)) == ["1", "2", "3"]
        await first.complete(held[0])
        await client.advance(40 * SECOND)
        assert await first.renew_lock() - await now(client) > 50 * SECOND
        await first.close()
        with pytest.raises(SessionLockLost):
            await first.complete(held[1])
        again = await client.accept_session("q", "a", renew_ms=0)
        received = await again.receive(5)
        assert [(m.body, m.delivery_count) for m in received] == [(b"2", 0), (b"3", 0)]
        await client.advance(MINUTE)
        for use in (again.complete(received[0]), again.receive(), again.renew_lock()):
            with pytest.raises(SessionLockLost):
                await use
        async with await client.accept_session("q", "a") as last:
            assert [m.delivery_count for m in await last.receive(5)] == [1, 1], "that counts"


@pytest.mark.promise("B4", "X8", "P12")
@BOTH
@run
async def test_state_and_listing(connect: Open, partitioned: bool) -> None:
    async with connect() as client:
        await client.create_queue("q", requires_session=True, enable_partitioning=partitioned)
        async with await client.accept_session("q", "empty") as session:
            assert await session.get_state() is None
            await session.set_state(b"\x00 half way \xff")
            with pytest.raises(InvalidArgument):
                await session.set_state(b"x" * (256 * 1024 + 1))
        await send(client, "q", "1", "2", "3", session_id="a")
        start = await now(client)
        holder = await client.accept_session("q", "a", owner="worker 7")
        await holder.receive(2)
        a, empty = sorted(await client.sessions("q"), key=lambda info: info.session_id)
        assert (a.session_id, a.ready_count, a.held_count, a.state) == ("a", 1, 2, None)
        assert start - MINUTE < a.oldest_enqueued_time_ms <= start
        assert (a.lock_holder, a.locked_until_ms) == ("worker 7", holder.locked_until_ms)
        assert (empty.session_id, empty.state) == ("empty", b"\x00 half way \xff"), "no messages"
        assert (empty.ready_count, empty.lock_holder) == (0, None)
        await holder.close()
        async with await client.accept_session("q", "empty") as session:
            await session.set_state(None)
        assert [info.session_id for info in await client.sessions("q")] == ["a"]


@pytest.mark.promise("B4")
@run
async def test_sessions_are_used_by_their_own_receivers(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", requires_session=True)
        await client.create_queue("plain")
        for refused in (
            get(client, "q"),
            client.accept_session("plain"),
            client.send("q", msg("no session")),
        ):
            with pytest.raises(InvalidOperation):
                await refused
        waiting = asyncio.ensure_future(client.accept_session("q", wait_ms=20 * SECOND))
        await asyncio.sleep(0.1)
        await send(client, "q", "1", session_id="a")
        async with await waiting as session:
            assert bodies(await session.receive()) == ["1"]


@pytest.mark.promise("B7")
@run
async def test_an_idle_entity_is_deleted(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", auto_delete_on_idle_ms=5 * MINUTE)
        await client.create_queue("kept")
        uses: list[Any] = [lambda: send(client, "q", "x"), lambda: get(client, "q")]
        for use in uses:
            await client.advance(4 * MINUTE)
            await use()
        await client.advance(4 * MINUTE)
        assert await client.queues() == ["kept", "q"]
        await client.advance(MINUTE)
        assert await client.queues() == ["kept"]
        with pytest.raises(EntityNotFound):
            await send(client, "q", "x")


@pytest.mark.promise("B7", "D9")
@run
async def test_quotas_and_sizes(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", max_size_bytes=5_000, max_message_bytes=2_000)
        await send(client, "q", *["x" * 1_000] * 4)
        before = await picture(client, "q")
        with pytest.raises(QuotaExceeded) as full:
            await client.send_batch("q", [msg("small"), msg("x" * 1_000)])
        assert full.value.retryable
        with pytest.raises(MessageTooLarge):
            await send(client, "q", "x" * 2_000)
        assert await picture(client, "q") == before
        await get_one(client, "q", delete=True)
        await send(client, "q", "x" * 1_000)


@pytest.mark.promise("B7")
@pytest.mark.parametrize("status", ["send-disabled", "receive-disabled", "disabled"])
@run
async def test_a_paused_entity(connect: Open, status: str) -> None:
    async with connect() as client:
        await client.create_queue("q")
        await send(client, "q", "held", "waiting")
        held = await get_one(client, "q")
        await client.change_queue("q", status=status)
        if status == "receive-disabled":
            await send(client, "q", "new")
        else:
            with pytest.raises(EntityDisabled):
                await send(client, "q", "new")
        if status == "send-disabled":
            assert bodies(await get(client, "q", 1)) == ["waiting"]
        else:
            with pytest.raises(EntityDisabled):
                await get(client, "q")
        await client.receiver("q").complete(held)
        assert (await client.peek("q"))[0].body == b"waiting", "settling and looking always work"
        await client.change_queue("q", status="active")
        await send(client, "q", "again")
