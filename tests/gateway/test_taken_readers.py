"""A named reader with a token: only the program that took it last moves it."""

from __future__ import annotations

import pytest

from onibus import errors
from tests.bus_helpers import DAY, HOUR, Disks, ManualClock, pass_ms, run, send


@pytest.mark.promise("R2")
@run
async def test_a_program_whose_reader_was_taken_over_cannot_move_it(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        info = await bus.create_reader("q", "lake", token="one", address="/lakes/a")
        await send(bus, "q", *"abc")
        await bus.move_reader("q", "lake", [2], info.incarnation, "one")
        await bus.take_reader("q", "lake", held=["one"], token="two", address="/lakes/b")
        for token in (None, "one"):
            with pytest.raises(errors.ReaderTaken, match="belongs to /lakes/b"):
                await bus.move_reader("q", "lake", [3], info.incarnation, token)
            with pytest.raises(errors.ReaderTaken, match="belongs to /lakes/b"):
                await bus.take_reader("q", "lake", held=[token] if token else [], token="three")
    async with disks.bus(clock) as bus:
        with pytest.raises(errors.ReaderTaken):
            await bus.move_reader("q", "lake", [3], info.incarnation, "one")
        await bus.take_reader("q", "lake", token="two")
        await bus.move_reader("q", "lake", [3], info.incarnation, "two")
        [reader] = bus.readers("q")
        assert (reader.positions, reader.address) == ((3,), "/lakes/b")


@pytest.mark.promise("R8")
@run
async def test_an_idle_limit_can_be_given_later(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q")
        await bus.create_reader("q", "capture")
        await pass_ms(bus, clock, 2 * DAY)
        await bus.take_reader("q", "capture", idle_ms=DAY)
        await pass_ms(bus, clock, DAY - HOUR)
        assert bus.readers("q")[0].idle_ms == DAY
        await pass_ms(bus, clock, 2 * HOUR)
        assert bus.readers("q") == []
