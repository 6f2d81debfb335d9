"""Deferral (L), and what an owner does with deferred and scheduled messages (X3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from onibus import Bus, Filter, ReceivedMessage
from onibus.core.errors import InvalidOperation, MessageNotFound
from tests.bus_helpers import (
    MINUTE,
    ManualClock,
    bodies,
    get,
    get_one,
    msg,
    numbers,
    pass_ms,
    picture,
    run,
    send,
)


async def deferred(bus: Bus, *texts: str, **fields: object) -> list[int]:
    """Send messages and defer them; return their numbers."""
    await send(bus, "q", *texts, **fields)
    held = await get(bus, "q", len(texts))
    for message in held:
        await bus.receiver("q").defer(message)
    return numbers(held)


@pytest.mark.promise("L1")
@run
async def test_a_deferred_message_is_set_aside(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2", "3")
        receiver = bus.receiver("q")
        first = await get_one(bus, "q")
        await receiver.defer(first)
        assert bus.queue("q").deferred_count == 1
        assert bodies(await get(bus, "q", delete=True)) == ["2", "3"]
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert await get(bus, "q") == []
        assert bodies(await bus.receiver("q").receive_deferred([first.sequence_number])) == ["1"]


@pytest.mark.promise("L2")
@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_deferred_messages_are_received_by_number_all_or_none(
    clock: ManualClock, partitioned: bool
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=partitioned)
        known = [(await deferred(bus, text))[0] for text in "123"]
        (active,) = await send(bus, "q", "active")
        before = picture(bus, "q")
        receiver = bus.receiver("q")
        for wrong in (active.sequence_number, 10**6, -5, 1 << 62):
            with pytest.raises(MessageNotFound):
                await receiver.receive_deferred([*known, wrong])
        assert picture(bus, "q") == before
        received = await receiver.receive_deferred([known[2], known[0]])
        assert sorted(bodies(received)) == ["1", "3"]
        with pytest.raises(MessageNotFound):
            await receiver.receive_deferred([known[1], known[0]])  # that one is locked
        await receiver.complete(*received)
        assert bus.queue("q").deferred_count == 1


@pytest.mark.promise("L2")
@pytest.mark.parametrize("end", ["abandon", "defer", "run out"])
@run
async def test_given_back_in_any_way_it_stays_deferred(
    tmp_path: Path, clock: ManualClock, end: str
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=MINUTE)
        (number,) = await deferred(bus, "x")
        receiver = bus.receiver("q")
        (message,) = await receiver.receive_deferred([number])
        assert message.token
        assert message.locked_until_ms == clock.wall() + MINUTE
        if end == "abandon":
            await receiver.abandon(message)
        elif end == "defer":
            await receiver.defer(message)
        else:
            await pass_ms(bus, clock, MINUTE)
        assert await get(bus, "q") == []
        (again,) = await receiver.receive_deferred([number])
        assert again.delivery_count == 2
        await receiver.complete(again)
    async with Bus.open(tmp_path, clock=clock) as bus:
        with pytest.raises(MessageNotFound):
            await bus.receiver("q").receive_deferred([number])


@pytest.mark.promise("L2")
@run
async def test_in_a_session_its_holder_receives_deferred_messages(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_session=True)
        await send(bus, "q", "1", "2", session_id="s")
        await send(bus, "q", "other", session_id="t")
        async with await bus.accept_session("q", "s") as session:
            (first,) = await session.receive()
            await session.defer(first)
            assert bodies(await session.receive(5)) == ["2"]
        number = first.sequence_number
        with pytest.raises(InvalidOperation):
            await bus.receiver("q").receive_deferred([number])
        async with await bus.accept_session("q", "t") as stranger:
            with pytest.raises(MessageNotFound):
                await stranger.receive_deferred([number])
        async with await bus.accept_session("q", "s") as session:
            (again,) = await session.receive_deferred([number])
            await session.complete(again)
        assert bus.queue("q").deferred_count == 0


@pytest.mark.promise("L3")
@run
async def test_peek_shows_deferred_messages_with_their_state(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await deferred(bus, "1")
        await send(bus, "q", "2")
        assert [(m.body, m.state) for m in bus.peek("q")] == [(b"1", "deferred"), (b"2", "active")]


@pytest.mark.promise("L4")
@pytest.mark.parametrize("dead_letter", [False, True])
@run
async def test_deferral_does_not_touch_expiry(clock: ManualClock, dead_letter: bool) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue(
            "q", dead_letter_on_expiration=dead_letter, lock_duration_ms=2 * MINUTE
        )
        loose, locked = await deferred(bus, "loose", "locked", time_to_live_ms=MINUTE)
        receiver = bus.receiver("q")
        (held,) = await receiver.receive_deferred([locked])
        await pass_ms(bus, clock, MINUTE - 1)
        assert bus.queue("q").deferred_count == 2
        await pass_ms(bus, clock, 1)
        assert bus.queue("q").deferred_count == 1, "the loose one has expired"
        await receiver.abandon(held)
        assert bus.queue("q").deferred_count == 0, "the locked one as soon as it was let go"
        dead = bus.peek("q", dead_letters=True)
        assert numbers(dead) == ([loose, locked] if dead_letter else [])
        assert {m.dead_letter_reason for m in dead} <= {"TTLExpiredException"}


@pytest.mark.promise("L5")
@run
async def test_deferred_for_a_while_it_comes_back_at_its_place(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2")
        await bus.receiver("q").defer(await get_one(bus, "q"), delay_ms=MINUTE)
        await pass_ms(bus, clock, MINUTE - 1)
        assert bus.queue("q").deferred_count == 1
    async with Bus.open(tmp_path, clock=clock) as bus:
        await pass_ms(bus, clock, 1)
        received = await get(bus, "q")
        assert (bodies(received), numbers(received)) == (["1", "2"], [1, 2])


@pytest.mark.promise("L5")
@run
async def test_deferred_for_a_while_it_can_still_be_received_by_number(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=5 * MINUTE)
        await send(bus, "q", "1")
        receiver = bus.receiver("q")
        await receiver.defer(await get_one(bus, "q"), delay_ms=MINUTE)
        (held,) = await receiver.receive_deferred([1])
        await pass_ms(bus, clock, 2 * MINUTE)
        assert await get(bus, "q") == [], "while it is locked it does not come back"
        await receiver.complete(held)
        assert bus.queue("q").active_count == bus.queue("q").deferred_count == 0


@pytest.mark.promise("L5")
@run
async def test_a_scheduled_message_that_carries_the_number_works_as_well(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        (number,) = await deferred(bus, "work")
        reminder = msg("reminder", properties={"number": number})
        await bus.schedule("q", reminder, clock.wall() + MINUTE)
        await pass_ms(bus, clock, MINUTE)
        message: ReceivedMessage = await get_one(bus, "q")
        receiver = bus.receiver("q")
        (work,) = await receiver.receive_deferred([message.properties["number"]])
        await receiver.complete(message, work)
        assert picture(bus, "q")[2] == []


@pytest.mark.promise("X3")
@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_deferred_messages_are_listed_found_and_given_back(
    clock: ManualClock, partitioned: bool
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=partitioned)
        known = []
        for n in range(4):
            known += await deferred(bus, f"{n}", message_id=f"id-{n}", partition_key="k")
        listed = bus.peek("q", where=Filter(state="deferred"))
        assert numbers(listed) == known
        (found,) = bus.peek("q", where=Filter(state="deferred", message_id="id-2"))
        assert found.sequence_number == known[2]
        before = picture(bus, "q")
        with pytest.raises(MessageNotFound):
            await bus.undefer("q", [known[0], 10**6])
        assert picture(bus, "q") == before
        await bus.undefer("q", [known[2], known[0]])
        received = await get(bus, "q")
        assert (bodies(received), numbers(received)) == (["0", "2"], [known[0], known[2]])
        assert await bus.purge("q", Filter(state="deferred")) == 2
        assert bus.queue("q").deferred_count == 0


@pytest.mark.promise("X3")
@run
async def test_scheduled_messages_are_listed_found_cancelled_and_purged(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        for n in range(5):
            await bus.schedule("q", msg(message_id=f"id-{n}"), clock.wall() + MINUTE)
        (found,) = bus.peek("q", where=Filter(state="scheduled", message_id="id-3"))
        await bus.cancel_scheduled("q", [found.sequence_number, 1])
        assert numbers(bus.peek("q", where=Filter(state="scheduled"))) == [2, 3, 5]
        assert await bus.purge("q", Filter(state="scheduled")) == 3
        await pass_ms(bus, clock, MINUTE)
        assert await get(bus, "q") == []
