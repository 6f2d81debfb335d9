"""Stops, clean and unclean, and what is there after them (B8)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from onibus import Bus
from onibus.core.errors import LockLost
from tests.bus_helpers import (
    HOUR,
    MINUTE,
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


@pytest.mark.promise("B8")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_a_restart_loses_nothing(
    tmp_path: Path, clock: ManualClock, clean: bool, partitioned: bool
) -> None:
    settings: dict[str, Any] = {
        "requires_duplicate_detection": True, "enable_partitioning": partitioned
    }
    stores = ("a", "b")
    directory, copy = tmp_path / "bus", tmp_path / "copy"
    async with Bus.open(directory, clock=clock, stores=stores) as bus:
        await bus.create_queue("q", **settings)
        if partitioned:
            await bus.send("q", msg("mortal", message_id="m", time_to_live_ms=HOUR))
            await bus.send_batch("q", [msg(f"{n}", message_id=f"{n}") for n in range(100)])
            await bus.receiver("q").complete(*await get(bus, "q", 50))
        else:
            await live_a_little(bus, clock)
        await settle(bus)
        before = picture(bus, "q")
        if not clean:
            shutil.copytree(directory, copy)  # what a crash in this moment leaves
    async with Bus.open(directory if clean else copy, clock=clock, stores=stores) as bus:
        assert picture(bus, "q") == before


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
