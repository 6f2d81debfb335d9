"""Stops, clean and unclean, and what is there after them (B8)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from onibus import Bus
from onibus.core.errors import LockLost
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    Disks,
    ManualClock,
    bodies,
    crash,
    get,
    msg,
    pass_ms,
    picture,
    run,
    send,
    settle,
)


@pytest.mark.promise("B8")
@run
async def test_a_clean_stop_keeps_locks(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=MINUTE)
        await send(bus, "q", "1", "2", "3")
        held = await get(bus, "q", 2)
    clock.advance(MINUTE - 1)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bodies(await get(bus, "q", delete=True)) == ["3"]
        receiver = bus.receiver("q")
        await receiver.complete(held[0])
        await receiver.renew(held[1])
        await pass_ms(bus, clock, MINUTE - 1)
        await receiver.complete(held[1])
        assert bus.queue("q").active_count == 0


@pytest.mark.promise("B8")
@run
async def test_after_an_unclean_stop_a_lost_locks_token_is_refused(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2")
        await settle(bus)
        lost = await get(bus, "q", 1)  # the lock is in no commit yet
        crash(bus)
    async with Bus.open(tmp_path, clock=clock) as bus:
        receiver = bus.receiver("q")
        with pytest.raises(LockLost):
            await receiver.complete(*lost)
        (again,) = await get(bus, "q", 1)
        assert again.sequence_number == lost[0].sequence_number
        assert again.token != lost[0].token, "the same epoch, another run: not the same token"
        with pytest.raises(LockLost):
            await receiver.complete(*lost)
        await receiver.complete(again)


async def live_a_little(bus: Bus, clock: ManualClock) -> None:
    """Bring a queue into every state there is."""
    await bus.send_batch("q", [msg(f"{n}", message_id=f"{n}") for n in range(30)])
    receiver = bus.receiver("q")
    held = await receiver.receive(10)
    await receiver.complete(*held[0:2])
    await receiver.abandon(held[2], properties={"by": "hand"})
    await receiver.abandon(held[3], delay_ms=HOUR)
    await receiver.defer(held[4])
    await receiver.defer(held[5], delay_ms=HOUR)
    await receiver.dead_letter(held[6], reason="bad", description="text")
    await bus.schedule("q", msg("later", message_id="s"), clock.wall() + HOUR)
    await bus.send("q", msg("mortal", time_to_live_ms=HOUR))
    await bus.send("q", msg(message_id="1"))
    (dead,) = await bus.receiver("q", dead_letters=True).receive()
    await bus.receiver("q", dead_letters=True).defer(dead)


async def live_over_partitions(bus: Bus, clock: ManualClock) -> None:
    """Spread messages over partitions, and let half of them go."""
    await bus.send("q", msg("mortal", message_id="m", time_to_live_ms=HOUR))
    await bus.send_batch("q", [msg(f"{n}", message_id=f"{n}") for n in range(100)])
    await bus.receiver("q").complete(*await get(bus, "q", 50))


async def live_in_sessions(bus: Bus, clock: ManualClock) -> None:
    """Leave sessions with deferred, delayed, dead and waiting messages, with and without locks."""
    for n in range(40):
        await bus.send("q", msg(f"{n}", message_id=f"{n}", session_id=f"s{n % 5}"))
    for n in range(4):
        session = await bus.accept_session("q", f"s{n}")
        held = await session.receive(5)
        await session.complete(held[0])
        await session.defer(held[1])
        await session.defer(held[2], delay_ms=HOUR)
        await session.dead_letter(held[3])
        if n % 2:
            await session.abandon(held[4], delay_ms=HOUR)
            await session.set_state(b"%d" % n)
            await session.close()


async def live_in_groups(bus: Bus, clock: ManualClock) -> None:
    """Leave groups of a FIFO queue with and without messages in flight."""
    for n in range(20):
        await bus.send("q", msg(f"{n}", message_id=f"{n}", session_id=f"g{n % 4}"))
    receiver = bus.fifo_receiver("q")
    held = await receiver.receive(7, attempt_id="try")
    await receiver.complete(held[0])
    await receiver.abandon(held[1], delay_ms=HOUR)
    await receiver.dead_letter(held[2], reason="bad")


LIVES: dict[str, tuple[dict[str, Any], Any]] = {
    "plain": ({"requires_duplicate_detection": True}, live_a_little),
    "partitioned": (
        {"requires_duplicate_detection": True, "enable_partitioning": True},
        live_over_partitions,
    ),
    "sessions": ({"requires_session": True}, live_in_sessions),
    "sessions over partitions": (
        {"requires_session": True, "enable_partitioning": True},
        live_in_sessions,
    ),
    "fifo": ({"fifo": True}, live_in_groups),
}


def kept_picture(bus: Bus) -> Any:
    """Return all that can be seen of the queue and outlives a restart."""
    info, *rest = picture(bus, "q")
    sessions = sorted(bus.sessions("q"), key=lambda one: one.session_id)
    # What has left it is counted since the bus was opened.
    return replace(info, gone_count=0), rest, sessions


@pytest.mark.promise("B8")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", LIVES)
@run
async def test_a_restart_loses_nothing(
    tmp_path: Path, clock: ManualClock, clean: bool, kind: str
) -> None:
    settings, live = LIVES[kind]
    stores = ("a", "b")
    directory, copy = tmp_path / "bus", tmp_path / "copy"
    async with Bus.open(directory, clock=clock, stores=stores) as bus:
        await bus.create_queue("q", **settings)
        await live(bus, clock)
        await settle(bus)
        before = kept_picture(bus)
        if not clean:
            shutil.copytree(directory, copy)  # what a crash in this moment leaves
    async with Bus.open(directory if clean else copy, clock=clock, stores=stores) as bus:
        after = kept_picture(bus)
        assert after == before
        # And time goes on as if nothing had happened.
        await pass_ms(bus, clock, 2 * HOUR)
        info = bus.queue("q")
        assert (info.held_count, info.scheduled_count) == (0, 0)


@pytest.mark.promise("B8")
@run
async def test_what_was_acknowledged_survives_a_crash_at_once(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2", "3")
        held = await get(bus, "q")
        await bus.receiver("q").complete(held[0])
        await bus.receiver("q").dead_letter(held[1])
        crash(bus)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert [m.body for m in bus.peek("q")] == [b"3"]
        assert [m.body for m in bus.peek("q", dead_letters=True)] == [b"2"]


@pytest.mark.promise("B8")
@run
async def test_time_goes_on_where_it_was_when_the_clock_was_set_back(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=MINUTE)
        await send(bus, "q", "1")
        await get(bus, "q")
    clock.jump(-10 * HOUR)
    async with Bus.open(tmp_path, clock=clock) as bus:
        await pass_ms(bus, clock, MINUTE - 1)
        assert await get(bus, "q") == []
        await pass_ms(bus, clock, 1)
        assert bodies(await get(bus, "q")) == ["1"], "not ten hours later"


@pytest.mark.promise("S7", "L5", "X4")
@run
async def test_looking_at_what_waits_does_not_stop_its_time(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "delayed", "deferred")
        delayed, deferred = await get(bus, "q")
        await bus.receiver("q").abandon(delayed, delay_ms=MINUTE)
        await bus.receiver("q").defer(deferred, delay_ms=MINUTE)
        await bus.schedule("q", msg("scheduled"), clock.wall() + MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert [m.state for m in bus.peek("q")] == ["delayed", "deferred", "scheduled"]
        await pass_ms(bus, clock, MINUTE - 1)
        assert await get(bus, "q") == []
        await pass_ms(bus, clock, 1)
        assert bodies(await get(bus, "q")) == ["delayed", "deferred", "scheduled"]


@run
async def test_an_incarnation_is_never_given_twice(clock: ManualClock) -> None:
    disks, seen = Disks(), []
    for _ in range(3):
        async with disks.bus(clock) as bus:
            await bus.create_queue("q")
            seen.append(bus.broker.find("q").incarnation)
            await bus.delete_queue("q")
    assert len(set(seen)) == 3


@pytest.mark.promise("P10")
@pytest.mark.parametrize("kind", LIVES)
@pytest.mark.parametrize("restart", [False, True])
@run
async def test_a_deleted_queue_leaves_nothing_behind(
    clock: ManualClock, kind: str, restart: bool
) -> None:
    settings, live = LIVES[kind]
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q", **settings)
        await live(bus, clock)
        if not restart:
            await bus.delete_queue("q")
    if restart:
        async with disks.bus(clock) as bus:
            await bus.delete_queue("q")
    async with disks.bus(clock):
        pass
    tables = disks.open["main"].tables
    left = {table.name: len(rows) for table, rows in tables.items() if rows}
    assert left == {"meta": 1}, "how often the store was opened"
