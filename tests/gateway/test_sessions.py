"""Sessions (B4) and their listing (X8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onibus import Bus
from onibus.core.errors import (
    InvalidArgument,
    InvalidOperation,
    NoSession,
    SessionLocked,
    SessionLockLost,
)
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    SECOND,
    ManualClock,
    bodies,
    get,
    msg,
    pass_ms,
    run,
    send,
)

BOTH = pytest.mark.parametrize("partitioned", [False, True])


async def with_sessions(bus: Bus, partitioned: bool = False) -> None:
    await bus.create_queue(
        "q", requires_session=True, enable_partitioning=partitioned, lock_duration_ms=MINUTE
    )


async def fill(bus: Bus, **sessions: str) -> None:
    """Send the letters given for each session."""
    for session_id, letters in sessions.items():
        await send(bus, "q", *letters, session_id=session_id)


@pytest.mark.promise("B4", "P12")
@BOTH
@run
async def test_a_session_has_one_holder_and_gives_its_messages_in_order(
    clock: ManualClock, partitioned: bool
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await with_sessions(bus, partitioned)
        await fill(bus, a="123", b="45")
        first = await bus.accept_session("q", "a")
        with pytest.raises(SessionLocked) as raised:
            await bus.accept_session("q", "a")
        assert raised.value.retryable
        async with await bus.accept_session("q") as second:
            assert second.session_id == "b"
            with pytest.raises(NoSession):
                await bus.accept_session("q")
        assert bodies(await first.receive(2)) == ["1", "2"]
        assert bodies(await first.receive(2)) == ["3"]


@pytest.mark.promise("B4")
@run
async def test_the_next_session_is_the_one_that_waited_longest(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await with_sessions(bus)
        await fill(bus, late="1", early="2")
        async with await bus.accept_session("q") as session:
            await session.complete(*await session.receive())
        await fill(bus, late="3")
    async with Bus.open(tmp_path, clock=clock) as bus:
        order = [(await bus.accept_session("q")).session_id for _ in range(2)]
        assert order == ["early", "late"]


@pytest.mark.promise("B4", "B1")
@run
async def test_a_closed_session_gives_back_without_counting(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await with_sessions(bus)
        await fill(bus, a="12")
        session = await bus.accept_session("q", "a")
        held = await session.receive(2)
        await session.close()
        with pytest.raises(SessionLockLost):
            await session.complete(held[0])
        with pytest.raises(SessionLockLost):
            await session.receive()
        async with await bus.accept_session("q", "a") as again:
            received = await again.receive(5)
            assert bodies(received) == ["1", "2"]
            assert [m.delivery_count for m in received] == [0, 0]


@pytest.mark.promise("B4", "P12")
@BOTH
@run
async def test_a_sessions_lock_is_renewed_or_runs_out_and_counts(
    clock: ManualClock, partitioned: bool
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await with_sessions(bus, partitioned)
        await fill(bus, a="12")
        session = await bus.accept_session("q", "a")
        (held,) = await session.receive()
        for _ in range(3):
            await pass_ms(bus, clock, MINUTE - 1)
            assert await session.renew_lock() == clock.wall() + MINUTE
        with pytest.raises(InvalidOperation):
            await session.renew(held)
        await pass_ms(bus, clock, MINUTE)
        for use in (
            session.complete(held),
            session.receive(),
            session.renew_lock(),
            session.set_state(b"x"),
            session.close(),
        ):
            with pytest.raises(SessionLockLost):
                await use
        async with await bus.accept_session("q") as again:
            received = await again.receive(5)
            assert [(m.body, m.delivery_count) for m in received] == [(b"1", 1), (b"2", 0)]


@pytest.mark.promise("B4", "P12")
@BOTH
@run
async def test_a_sessions_state_is_kept_without_messages(
    tmp_path: Path, clock: ManualClock, partitioned: bool
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await with_sessions(bus, partitioned)
        async with await bus.accept_session("q", "a") as session:
            assert await session.get_state() is None
            await session.set_state(b"half way")
            for bad in ("text", b"x" * (256 * 1024 + 1)):
                with pytest.raises(InvalidArgument):
                    await session.set_state(bad)  # type: ignore[arg-type]
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert [info.session_id for info in bus.sessions("q")] == ["a"]
        async with await bus.accept_session("q", "a") as session:
            assert await session.get_state() == b"half way"
            await session.set_state(None)
        assert bus.sessions("q") == []


@pytest.mark.promise("B4", "B8")
@run
async def test_a_clean_stop_keeps_a_sessions_lock(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await with_sessions(bus)
        await fill(bus, a="12")
        session = await bus.accept_session("q", "a")
        (held,) = await session.receive()
    clock.advance(MINUTE - 1)
    async with Bus.open(tmp_path, clock=clock) as bus:
        with pytest.raises(SessionLocked):
            await bus.accept_session("q", "a")
        await bus.receiver("q").complete(held)
        await pass_ms(bus, clock, 1)
        async with await bus.accept_session("q") as again:
            assert bodies(await again.receive(5)) == ["2"]


@pytest.mark.promise("B4")
@run
async def test_one_waits_for_a_session_and_for_messages_of_it(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await with_sessions(bus)
        waiting = asyncio.ensure_future(bus.accept_session("q", wait_ms=HOUR))
        await asyncio.sleep(0)
        await fill(bus, a="1")
        session = await waiting
        assert bodies(await session.receive()) == ["1"]
        receiving = asyncio.ensure_future(session.receive(wait_ms=SECOND))
        await asyncio.sleep(0)
        await fill(bus, b="2", a="3")
        assert bodies(await receiving) == ["3"]


@pytest.mark.promise("B4")
@run
async def test_sessions_are_used_by_their_own_receivers(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await with_sessions(bus)
        await bus.create_queue("plain")
        with pytest.raises(InvalidOperation):
            await get(bus, "q")
        with pytest.raises(InvalidOperation):
            await bus.accept_session("plain")
        with pytest.raises(InvalidOperation):
            await bus.send("q", msg("no session"))
        await bus.send("plain", msg("any", session_id="s"))
        assert bodies(await get(bus, "plain")) == ["any"]


@pytest.mark.promise("B4")
@run
async def test_dead_letters_of_sessions_are_received_plainly(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await with_sessions(bus)
        await fill(bus, a="12")
        async with await bus.accept_session("q", "a") as session:
            (first,) = await session.receive()
            await session.dead_letter(first, reason="bad")
            assert bodies(await session.receive()) == ["2"]
        dead = bus.receiver("q", dead_letters=True)
        (message,) = await dead.receive()
        assert message.session_id == "a"
        await dead.abandon(message)
        await dead.complete(*await dead.receive())


@pytest.mark.promise("X8", "P12")
@BOTH
@run
async def test_sessions_are_listed(tmp_path: Path, clock: ManualClock, partitioned: bool) -> None:
    start = clock.wall()
    async with Bus.open(tmp_path, clock=clock) as bus:
        await with_sessions(bus, partitioned)
        await fill(bus, a="123")
        clock.advance(SECOND)
        await fill(bus, b="4")
        holder = await bus.accept_session("q", "a", owner="worker 7")
        await holder.receive(2)
        await holder.set_state(b"state")
    async with Bus.open(tmp_path, clock=clock) as bus:
        a, b = sorted(bus.sessions("q"), key=lambda info: info.session_id)
        assert (a.session_id, a.ready_count, a.held_count, a.state) == ("a", 1, 2, b"state")
        assert (a.oldest_enqueued_time_ms, a.locked_until_ms) == (start, holder.locked_until_ms)
        assert (a.lock_holder, b.lock_holder) == ("worker 7", None)
        assert (b.session_id, b.ready_count, b.held_count, b.state) == ("b", 1, 0, None)
        assert (b.oldest_enqueued_time_ms, b.locked_until_ms) == (start + SECOND, None)
