"""Peek-lock and receive-and-delete, settling, delivery counts, delays (B1, X4)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onibus import Bus
from onibus.core.errors import InvalidOperation, LockLost
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    SECOND,
    ManualClock,
    bodies,
    get,
    get_one,
    msg,
    numbers,
    pass_ms,
    run,
    send,
)


@pytest.mark.promise("B1")
@run
async def test_a_locked_message_is_nobody_elses_until_it_is_settled(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=MINUTE)
        await send(bus, "q", "1", "2")
        first = await get_one(bus, "q")
        assert first.locked_until_ms == clock.wall() + MINUTE
        assert bodies(await get(bus, "q")) == ["2"]
        assert bus.queue("q").held_count == 2
        await bus.receiver("q").complete(first)
        assert bus.queue("q").active_count == 1
    clock.advance(MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bodies(await get(bus, "q")) == ["2"], "completed is gone for good"


@pytest.mark.promise("B1")
@run
async def test_receive_and_delete_is_durable_when_it_is_told(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2")
        message = await get_one(bus, "q", delete=True)
        assert message.token is None
        with pytest.raises(LockLost):
            await bus.receiver("q").complete(message)
        bus.broker.close()
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bodies(await get(bus, "q")) == ["2"]


@pytest.mark.promise("B1")
@run
async def test_abandoned_messages_come_back_at_their_place(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2", "3")
        held = await get(bus, "q", 2)
        receiver = bus.receiver("q")
        await receiver.abandon(held[1], properties={"tried": "once"})
        await receiver.abandon(held[0])
        again = await get(bus, "q")
        assert bodies(again) == ["1", "2", "3"]
        assert [m.delivery_count for m in again] == [1, 1, 0]
        assert again[1].properties == {"tried": "once"}


@pytest.mark.promise("B1")
@pytest.mark.parametrize("end", ["abandon", "expiry", "defer"])
@run
async def test_the_last_delivery_allowed_dead_letters(clock: ManualClock, end: str) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=SECOND)
        assert bus.queue("q").settings.max_delivery_count == 10
        await send(bus, "q", "x")
        receiver = bus.receiver("q")
        for delivery in range(10):
            if end == "defer" and delivery:
                (message,) = await receiver.receive_deferred([1])
            else:
                message = await get_one(bus, "q")
            assert message.delivery_count == delivery
            if end == "abandon":
                await receiver.abandon(message)
            elif end == "defer":
                await receiver.defer(message)
            else:
                await pass_ms(bus, clock, SECOND)
        counts = bus.queue("q")
        assert (counts.active_count, counts.deferred_count, counts.dead_lettered_count) == (0, 0, 1)
        dead = await get_one(bus, "q", dead_letters=True)
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
        assert dead.dead_letter_description
        assert (dead.sequence_number, dead.delivery_count) == (1, 10)


@pytest.mark.promise("B1")
@run
async def test_a_receiver_dead_letters_with_its_reason(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "x")
        await bus.receiver("q").dead_letter(
            await get_one(bus, "q"), reason="bad", description="very bad", properties={"by": "me"}
        )
        assert await get(bus, "q") == []
    async with Bus.open(tmp_path, clock=clock) as bus:
        dead = bus.receiver("q", dead_letters=True)
        (message,) = await dead.receive()
        assert (message.dead_letter_reason, message.dead_letter_description) == ("bad", "very bad")
        assert message.properties == {"by": "me"}
        with pytest.raises(InvalidOperation):
            await dead.dead_letter(message)
        await dead.abandon(message)
        await dead.complete(*await dead.receive())
        assert bus.queue("q").dead_lettered_count == 0


@pytest.mark.promise("B1")
@run
async def test_a_lock_runs_out_unless_it_is_renewed(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=MINUTE)
        await send(bus, "q", "x")
        message = await get_one(bus, "q")
        receiver = bus.receiver("q")
        for _ in range(5):
            await pass_ms(bus, clock, MINUTE - 1)
            assert await receiver.renew(message) == clock.wall() + MINUTE
        assert message.locked_until_ms == clock.wall() + MINUTE
        await pass_ms(bus, clock, MINUTE)
        for settle in (receiver.complete, receiver.abandon, receiver.defer, receiver.renew):
            with pytest.raises(LockLost):
                await settle(message)
        again = await get_one(bus, "q")
        assert again.delivery_count == 1
        with pytest.raises(LockLost):
            await receiver.complete(message)
        await receiver.complete(again)


@pytest.mark.promise("B1")
@run
async def test_completing_several_is_all_or_none(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        await send(bus, "q", "1", "2", "3")
        held = await get(bus, "q")
        receiver = bus.receiver("q")
        await receiver.complete(held[1])
        with pytest.raises(LockLost):
            await receiver.complete(*held)
        assert bus.queue("q").held_count == 2
        await receiver.complete(held[0], held[2])
        assert bus.queue("q").active_count == 0


@pytest.mark.promise("B1")
@run
async def test_a_receiver_waits_for_what_comes(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=SECOND)
        waiting = [asyncio.ensure_future(bus.receiver("q").receive(wait_ms=HOUR)) for _ in range(2)]
        await asyncio.sleep(0)
        await send(bus, "q", "x")
        assert bodies(await waiting[0]) == ["x"], "who came first is served first"
        assert not waiting[1].done()
        await pass_ms(bus, clock, SECOND)
        assert bodies(await waiting[1]) == ["x"], "it came back when its lock ran out"
        third = asyncio.ensure_future(bus.receiver("q").receive(wait_ms=100))
        await asyncio.sleep(0)
        await pass_ms(bus, clock, 100)
        assert await third == []


@pytest.mark.promise("X4")
@run
async def test_abandon_with_a_delay(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2")
        await bus.receiver("q").abandon(await get_one(bus, "q"), delay_ms=MINUTE)
        assert bodies(await get(bus, "q", delete=True)) == ["2"], "others go on"
        await pass_ms(bus, clock, MINUTE - 1)
        assert await get(bus, "q") == []
    async with Bus.open(tmp_path, clock=clock) as bus:
        await pass_ms(bus, clock, 1)
        message = await get_one(bus, "q")
        assert (message.sequence_number, message.delivery_count) == (1, 1)


@pytest.mark.promise("X4")
@run
async def test_an_entitys_own_back_off_doubles_up_to_its_maximum(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", retry_backoff_ms=SECOND, retry_backoff_ms_max=3 * SECOND)
        await send(bus, "q", "x")
        for seconds in (1, 2, 3, 3):
            await bus.receiver("q").abandon(await get_one(bus, "q"))
            await pass_ms(bus, clock, seconds * SECOND - 1)
            assert await get(bus, "q") == [], seconds
            await pass_ms(bus, clock, 1)
        assert (await get_one(bus, "q")).delivery_count == 4


@pytest.mark.promise("X4")
@run
async def test_a_delayed_message_blocks_its_session(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", requires_session=True, lock_duration_ms=5 * MINUTE)
        for body, session_id in (("1", "s"), ("2", "s"), ("3", "t")):
            await bus.send("q", msg(body, session_id=session_id))
        async with await bus.accept_session("q", "s") as session:
            (first,) = await session.receive()
            await session.abandon(first, delay_ms=MINUTE)
            assert await session.receive(5) == [], "order is kept: the second must wait"
    async with Bus.open(tmp_path, clock=clock) as bus:
        async with await bus.accept_session("q") as other:
            assert other.session_id == "t"
        await pass_ms(bus, clock, MINUTE)
        async with await bus.accept_session("q") as session:
            received = await session.receive(5)
            assert (bodies(received), numbers(received)) == (["1", "2"], [1, 2])
            assert [m.delivery_count for m in received] == [1, 0]


@pytest.mark.promise("B1")
@run
async def test_each_message_of_a_receive_has_a_lock_of_its_own(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await bus.send_batch("q", [msg("1"), msg("2")])
        receiver = bus.receiver("q")
        first, second = await receiver.receive(2)
        clock.advance(MINUTE // 2)
        await receiver.renew(second)
        await pass_ms(bus, clock, MINUTE // 2)
        with pytest.raises(LockLost):
            await receiver.complete(first)
    async with Bus.open(tmp_path, clock=clock) as bus:
        receiver = bus.receiver("q")
        assert bodies(await receiver.receive(2)) == ["1"], "the second is still held"
        await receiver.complete(second)
        assert bus.queue("q").active_count == 1
