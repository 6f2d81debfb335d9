"""The floor under the log: completed messages stay in it for as long as their owner wants (R1)."""

from __future__ import annotations

from pathlib import Path

from onibus import Bus
from onibus.shard import tidying
from tests.bus_helpers import HOUR, MINUTE, ManualClock, bodies, get, msg, run


def rows_kept(bus: Bus) -> int:
    """Return how many rows the log of the queue still has."""
    partition = bus.broker.find("q").partitions[0].online()
    return sum(place.rows for place in partition.log.places)


def tidy(bus: Bus) -> None:
    while tidying.tidy(bus.broker.find("q").partitions[0]):
        pass


async def send_and_complete(bus: Bus, count: int) -> None:
    for number in range(count):
        await bus.send("q", msg(f"{number}"))
    async with bus.receiver("q") as receiver:
        await receiver.complete(*await receiver.receive(count))


@run
async def test_completed_messages_stay_for_the_retention(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await send_and_complete(bus, 5)
        tidy(bus)
        assert rows_kept(bus) == 5
        assert not await get(bus, "q"), "retention does not touch delivery"
    clock.advance(30 * MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert rows_kept(bus) == 5, "kept over a restart"
        await send_and_complete(bus, 3)
        clock.advance(31 * MINUTE)
        tidy(bus)
        assert rows_kept(bus) == 3, "the first five have had their hour"
        clock.advance(HOUR)
        tidy(bus)
        assert rows_kept(bus) == 0


@run
async def test_without_retention_completed_messages_go_at_once(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send_and_complete(bus, 5)
        assert rows_kept(bus) == 0


@run
async def test_retention_can_be_set_and_taken_back(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send_and_complete(bus, 2)
        await bus.change_queue("q", retention_ms=HOUR)
        await send_and_complete(bus, 3)
        await bus.send("q", msg("waiting"))
        tidy(bus)
        assert rows_kept(bus) == 4
        await bus.change_queue("q", retention_ms=None)
        tidy(bus)
        assert rows_kept(bus) == 1
        assert bodies(await get(bus, "q")) == ["waiting"]
