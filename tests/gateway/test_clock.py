"""Clocks that are wrong at a start, for a while or for years, in both directions."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from onibus import Bus
from onibus.api.operation import StampsAhead
from onibus.shard.clock import PLAUSIBLE_MS, BusClock, ClockRecord
from onibus.store.connection import open_writer
from tests.bus_helpers import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    Disks,
    ManualClock,
    bodies,
    get,
    get_one,
    msg,
    pass_ms,
    run,
    send,
    settle,
)

YEAR = 365 * DAY
pytestmark = pytest.mark.promise("S4")


async def fill(bus: Bus, clock: ManualClock) -> None:
    """Fill a queue with a lock, a TTL, an id, a schedule and a log: a wrong clock ruined each."""
    await bus.create_queue(
        "q", requires_duplicate_detection=True, lock_duration_ms=5 * MINUTE, retention_ms=DAY
    )
    await send(bus, "q", "completed", message_id="completed")
    await bus.receiver("q").complete(await get_one(bus, "q"))
    await send(bus, "q", "locked", message_id="locked")
    await get_one(bus, "q")
    await send(bus, "q", "mortal", message_id="mortal", time_to_live_ms=DAY)
    await bus.schedule("q", msg("later", message_id="later"), clock.wall() + DAY)
    await settle(bus)


async def untouched(bus: Bus) -> None:
    """Check that nothing expired, was forgotten, activated or released."""
    await settle(bus)
    states = {message.body.decode(): message.state for message in bus.peek("q")}
    assert states == {"locked": "locked", "mortal": "active", "later": "scheduled"}
    (again,) = await send(bus, "q", "x", message_id="completed")
    assert again.duplicate_of == 1, "ids are still recorded"
    assert bus.log_positions("q").earliest == (1,), "the log is still retained"


def in_doubt(bus: Bus) -> bool:
    sure = bus.clock().sure
    assert sure or any("the system clock says" in alarm for alarm in bus.alarms)
    return not sure


@pytest.mark.parametrize("jump", [-10 * YEAR, -DAY, DAY, 10 * YEAR])
@run
async def test_a_restart_of_the_bus_alone_follows_the_boot_clock(
    tmp_path: Path, clock: ManualClock, jump: int
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await fill(bus, clock)
    clock.jump(jump)
    clock.advance(MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        if jump == DAY:
            assert bus.queue("q").scheduled_count == 0, "a plausible clock is followed"
        else:
            await untouched(bus)
        assert in_doubt(bus) == (abs(jump) > PLAUSIBLE_MS)
        await pass_ms(bus, clock, 5 * MINUTE - MINUTE - 1)
        assert bus.queue("q").held_count == 1
        await pass_ms(bus, clock, 1)
        assert bus.queue("q").held_count == 0, "a minute of the lock had passed"


@run
async def test_the_wall_clock_proves_how_long_a_machine_was_off(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await fill(bus, clock)
    clock.reboot(clock.wall() + 2 * DAY)
    async with Bus.open(tmp_path, clock=clock) as bus:
        await settle(bus)
        assert not in_doubt(bus)
        assert bodies(await get(bus, "q")) == ["locked", "later"], "the lock and the TTL are over"
        (again,) = await send(bus, "q", "x", message_id="completed")
        assert again.duplicate_of is None, "the window is over"


@pytest.mark.parametrize("wrong", [-10 * YEAR, -DAY, -HOUR, 31 * DAY, 10 * YEAR])
@run
async def test_a_wrong_clock_at_a_start_changes_nothing(
    tmp_path: Path, clock: ManualClock, wrong: int
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await fill(bus, clock)
        right = clock.wall()
    clock.reboot(right + wrong)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert in_doubt(bus)
        await untouched(bus)
    # Once more, still wrong: nothing adds up.
    clock.reboot(right + wrong + MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert in_doubt(bus)
        await untouched(bus)
    # The clock is right again at the next start, an hour later.
    clock.reboot(right + HOUR)
    async with Bus.open(tmp_path, clock=clock) as bus:
        await settle(bus)
        assert bus.clock().sure
        assert bus.queue("q").held_count == 0, "the hour counts"
        assert bus.queue("q").active_count == 2
        assert bus.queue("q").scheduled_count == 1
        await pass_ms(bus, clock, DAY - HOUR)
        assert bodies(await get(bus, "q")) == ["locked", "later"]


@pytest.mark.parametrize("wrong", [-10 * YEAR, 10 * YEAR])
@run
async def test_a_clock_that_is_set_right_while_the_bus_runs_ends_the_doubt(
    tmp_path: Path, clock: ManualClock, wrong: int
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await fill(bus, clock)
        right = clock.wall()
    clock.reboot(right + wrong)
    async with Bus.open(tmp_path, clock=clock) as bus:
        await pass_ms(bus, clock, MINUTE)
        await untouched(bus)
        # The machine was off for two hours, as the clock says now.
        clock.jump(-wrong + 2 * HOUR)
        await pass_ms(bus, clock, SECOND)
        assert not in_doubt(bus)
        assert bus.queue("q").held_count == 0
        await pass_ms(bus, clock, DAY - 2 * HOUR - 2 * MINUTE)
        assert bus.queue("q").scheduled_count == 1
        await pass_ms(bus, clock, 2 * MINUTE)
        assert bus.queue("q").scheduled_count == 0
        # Where stamps are ten years ahead, an operator sets them back: see below.
    clock.reboot(clock.wall() + MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bus.clock().sure


@run
async def test_running_time_counts_while_the_clock_is_in_doubt(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await fill(bus, clock)
    clock.reboot(clock.wall() + 10 * YEAR)
    async with Bus.open(tmp_path, clock=clock) as bus:
        await send(bus, "q", "short", message_id="short", time_to_live_ms=MINUTE)
        await pass_ms(bus, clock, MINUTE)
        assert "short" not in bodies(bus.peek("q"))
        await pass_ms(bus, clock, 4 * MINUTE)
        assert bus.queue("q").held_count == 0, "the lock had five minutes left"
        await pass_ms(bus, clock, DAY - 5 * MINUTE)
        assert bus.queue("q").scheduled_count == 0, "a day has passed, whatever the clock says"


@run
async def test_an_operator_accepts_the_clock_after_a_long_pause(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await fill(bus, clock)
    clock.reboot(clock.wall() + 60 * DAY)
    async with Bus.open(tmp_path, clock=clock) as bus:
        await untouched(bus)
        assert await bus.accept_clock() == []
        await settle(bus)
        assert not in_doubt(bus)
        assert bodies(await get(bus, "q")) == ["locked", "later"]
    clock.advance(MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert not in_doubt(bus), "it was kept"


@run
async def test_stamps_of_a_wrong_clock_are_set_back_once_and_that_is_recorded(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await fill(bus, clock)
        right = clock.wall()
    clock.reboot(right + 10 * YEAR)
    async with Bus.open(tmp_path, clock=clock) as bus:
        (sent,) = await send(bus, "q", "wrong", message_id="wrong")
        assert bus.peek("q", start=sent.sequence_number)[0].enqueued_time_ms == right + 10 * YEAR
    clock.reboot(right + HOUR)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bus.clock().sure
        assert bus.clock().stamps_ahead == [StampsAhead("q", 0, 10 * YEAR - HOUR)]
        assert "clock accept" in bus.alarms[-1]
        (back,) = await bus.accept_clock()
        assert (back.entity, back.partition, back.sequence_number) == ("q", 0, 6)
        assert (back.before_ms, back.after_ms) == (right + 10 * YEAR, right + HOUR)
        assert bus.clock().stamps_ahead == []
        assert await bus.accept_clock() == [], "once"
        (sent,) = await send(bus, "q", "right", message_id="right")
        assert bus.peek("q", start=sent.sequence_number)[0].enqueued_time_ms == right + HOUR
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bus.log_positions("q").set_back == (back,)
        # The first row of a time is found on both sides of it.
        assert bus.log_positions("q", since_ms=right).since == (1,)
        assert bus.log_positions("q", since_ms=right + 1).since == (5,)
        assert bus.log_positions("q", since_ms=right + 10 * YEAR + 1).since == (7,)
        await bus.delete_queue("q")
        await settle(bus)
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        assert bus.log_positions("q").set_back == ()


@run
async def test_deadlines_are_shown_by_the_wall_clock(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=MINUTE)
        await bus.create_queue("s", requires_session=True, lock_duration_ms=MINUTE)
        await send(bus, "q", "a", "b", time_to_live_ms=HOUR)
        await send(bus, "s", "c", session_id="one")
        clock.jump(3 * DAY)
        await pass_ms(bus, clock, SECOND)
        until = clock.wall() + MINUTE
        held = await get_one(bus, "q")
        assert held.locked_until_ms == until
        assert held.first_received_ms == clock.wall()
        assert held.expires_at_ms == held.enqueued_time_ms + HOUR
        assert await bus.receiver("q").renew(held) == until
        session = await bus.accept_session("s")
        assert session.locked_until_ms == until
        assert bus.sessions("s")[0].locked_until_ms == until
        assert await session.renew_lock() == until
        await bus.receiver("q").abandon(held)
        assert (await get_one(bus, "q")).first_received_ms == clock.wall()
        claim = await bus.claim("q", "reader", 1, lease_ms=MINUTE)
        assert claim is not None
        assert (claim.created_ms, claim.lease_until_ms) == (clock.wall(), until)
        await bus.stage("q", [msg("x")], producer="p", batch=0, task=0, attempt=0, lease_ms=MINUTE)
        assert bus.staged("q")[0].until_ms == until


@run
async def test_the_log_shows_no_bus_time(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", retention_ms=DAY)
        clock.jump(3 * DAY)
        await pass_ms(bus, clock, SECOND)
        await send(bus, "q", "a", time_to_live_ms=HOUR)
        await bus.receiver("q").complete(await get_one(bus, "q"))
        (row,) = [row async for batch in bus.read_log("q", 0, 1) for row in batch.to_pylist()]
        assert row["enqueued_time_ms"] == clock.wall()
        assert row["expires_at_ms"] == clock.wall() + HOUR
        (end,) = [row async for batch in bus.read_outcomes("q", 0, 1) for row in batch.to_pylist()]
        assert end["time_ms"] == clock.wall()
        since = bus.log_positions("q", log="outcomes", since_ms=clock.wall() + 1).since
        assert since == (2,)
        # An outcome is never stamped before its message.
        clock.jump(-2 * DAY)
        await pass_ms(bus, clock, SECOND)
        await send(bus, "q", "b")
        await bus.receiver("q").complete(await get_one(bus, "q"))
        ends = [row async for batch in bus.read_outcomes("q", 0, 2) for row in batch.to_pylist()]
        assert [one["time_ms"] for one in ends] == [end["time_ms"]]


@run
async def test_a_jump_of_years_while_the_bus_runs_moves_nothing(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fill(bus, clock)
        for jump in (10 * YEAR, -10 * YEAR, -10 * YEAR, 10 * YEAR):
            clock.jump(jump)
            await pass_ms(bus, clock, SECOND)
            await untouched(bus)
        assert bus.clock().sure
        assert len([alarm for alarm in bus.alarms if alarm.startswith("clock:")]) >= 2


@pytest.mark.parametrize(
    ("wrong", "then"), list(itertools.product([-3 * YEAR, -HOUR, 3 * YEAR], repeat=2))
)
@run
async def test_bus_time_never_runs_backwards_over_any_two_starts(
    tmp_path: Path, clock: ManualClock, wrong: int, then: int
) -> None:
    seen = 0
    right = clock.wall()
    for offset in (0, wrong, then, HOUR):
        clock.reboot(right + offset)
        async with Bus.open(tmp_path, clock=clock) as bus:
            assert bus.broker.clock.now() >= seen
            if not bus.queues():
                await fill(bus, clock)
            else:
                await settle(bus)
            seen = bus.broker.clock.now()
    assert seen <= right + HOUR + SECOND


def test_bus_time_stands_still_when_the_wall_clock_is_read(clock: ManualClock) -> None:
    # The kept row is 40 days old; a store has seen the bus run until ten minutes ago.
    right = clock.wall()
    kept = ClockRecord(bus=right - 40 * DAY, proven=right - 40 * DAY, monotonic=0, boot="before")
    bus_clock = BusClock(clock)
    bus_clock.resume(kept)
    assert not bus_clock.sure
    bus_clock.not_before(right - 10 * MINUTE)
    now = bus_clock.now()
    assert (bus_clock.wall(), bus_clock.now()) == (right, now)
    assert bus_clock.sure


@pytest.mark.promise("B7")
@run
async def test_a_store_that_saw_more_time_than_another_ages_nothing_at_a_start(
    clock: ManualClock,
) -> None:
    disks = Disks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("busy")
        await bus.create_queue("idle", auto_delete_on_idle_ms=5 * MINUTE)
        places = {name: bus.broker.find(name).partitions[0].store.name for name in ("idle", "busy")}
        assert places == {"idle": "a", "busy": "b"}, "stores are opened by name"
        # The row of the clock is nine minutes old when the machine fails.
        clock.advance(9 * MINUTE)
        await send(bus, "busy", "x")
        failed = disks.copy()
    clock.reboot(clock.wall() + 3 * YEAR)
    async with failed.bus(clock, "a", "b") as bus:
        await settle(bus)
        assert bus.queues() == ["busy", "idle"]


@run
async def test_data_of_a_version_without_a_record_of_the_clock(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await fill(bus, clock)
        right = clock.wall()
    connection = open_writer(str(tmp_path / "namespace.sqlite"), None)
    connection.execute("DELETE FROM meta WHERE name = 'clock'")
    connection.close()
    monkeypatch.setattr("onibus.bus.written_ms", lambda _: right)
    clock.reboot(right + 90 * DAY)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert in_doubt(bus)
        await untouched(bus)
        await bus.accept_clock()
        await settle(bus)
        assert bodies(await get(bus, "q")) == ["locked", "later"]
