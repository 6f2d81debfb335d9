"""Time to live, and dead letters of what expired (B2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from onibus import Bus
from tests.bus_helpers import (
    DAY,
    MINUTE,
    SECOND,
    ManualClock,
    bodies,
    get,
    get_one,
    pass_ms,
    run,
    send,
)


@pytest.mark.promise("B2")
@run
async def test_the_smaller_time_to_live_counts(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", default_time_to_live_ms=2 * MINUTE)
        await send(bus, "q", "own", time_to_live_ms=MINUTE)
        await send(bus, "q", "queue's", time_to_live_ms=DAY)
        await send(bus, "q", "default")
        await bus.create_queue("forever")
        await send(bus, "forever", "x")
        start = clock.wall()
        assert [m.expires_at_ms for m in bus.peek("q")] == [
            start + MINUTE,
            start + 2 * MINUTE,
            start + 2 * MINUTE,
        ]
        await pass_ms(bus, clock, MINUTE - 1)
        assert bus.queue("q").active_count == 3
        await pass_ms(bus, clock, 1)
        assert [m.body for m in bus.peek("q")] == [b"queue's", b"default"]
        await pass_ms(bus, clock, MINUTE)
        assert await get(bus, "q") == []
        await pass_ms(bus, clock, 1_000 * DAY)
        assert bodies(await get(bus, "forever")) == ["x"]


@pytest.mark.promise("B2")
@pytest.mark.parametrize("dead_letter", [False, True])
@pytest.mark.parametrize("restart", [False, True])
@run
async def test_expired_messages_are_dead_lettered_where_asked(
    tmp_path: Path, clock: ManualClock, dead_letter: bool, restart: bool
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", dead_letter_on_expiration=dead_letter)
        await send(bus, "q", "x", time_to_live_ms=MINUTE)
        if not restart:
            await pass_ms(bus, clock, MINUTE)
    clock.advance(MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert await get(bus, "q") == []
        counts = bus.queue("q")
        assert (counts.active_count, counts.dead_lettered_count) == (0, int(dead_letter))
        for message in await get(bus, "q", dead_letters=True):
            assert message.dead_letter_reason == "TTLExpiredException"
            assert message.dead_letter_description


@pytest.mark.promise("B2")
@run
async def test_a_held_message_does_not_expire(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=MINUTE, dead_letter_on_expiration=True)
        await send(bus, "q", "completed", "abandoned", "left", time_to_live_ms=10 * SECOND)
        receiver = bus.receiver("q")
        completed, abandoned, _ = await get(bus, "q")
        await pass_ms(bus, clock, 30 * SECOND)
        assert bus.queue("q").held_count == 3
        await receiver.complete(completed)
        await receiver.abandon(abandoned)
        assert [m.body for m in bus.peek("q", dead_letters=True)] == [b"abandoned"]
        await pass_ms(bus, clock, 30 * SECOND)
        assert [m.body for m in bus.peek("q", dead_letters=True)] == [b"abandoned", b"left"]


@pytest.mark.promise("B2", "X4")
@run
async def test_a_delayed_message_expires_at_its_time(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "x", time_to_live_ms=MINUTE)
        await bus.receiver("q").abandon(await get_one(bus, "q"), delay_ms=2 * MINUTE)
        await pass_ms(bus, clock, MINUTE)
        assert bus.queue("q").active_count == 0


@pytest.mark.promise("B2")
@run
async def test_dead_letters_do_not_expire(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", default_time_to_live_ms=MINUTE, dead_letter_on_expiration=True)
        await send(bus, "q", "rejected", "expired")
        await bus.receiver("q").dead_letter(await get_one(bus, "q"))
        await pass_ms(bus, clock, 100 * DAY)
        assert bus.queue("q").dead_lettered_count == 2
    async with Bus.open(tmp_path, clock=clock) as bus:
        await pass_ms(bus, clock, 100 * DAY)
        dead = bus.receiver("q", dead_letters=True)
        held = await dead.receive(5)
        assert bodies(held) == ["rejected", "expired"]
        await pass_ms(bus, clock, DAY)
        assert bodies(await dead.receive(5)) == ["rejected", "expired"], "back in the sub-queue"


@pytest.mark.promise("B2", "B4")
@run
async def test_messages_of_sessions_expire_as_well(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_session=True)
        await send(bus, "q", "short", session_id="s", time_to_live_ms=SECOND)
        await send(bus, "q", "long", session_id="s")
        await send(bus, "q", "short", session_id="t", time_to_live_ms=SECOND)
        await pass_ms(bus, clock, SECOND)
        assert [info.session_id for info in bus.sessions("q")] == ["s"]
        async with await bus.accept_session("q") as session:
            assert bodies(await session.receive(5)) == ["long"]
