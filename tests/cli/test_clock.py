"""`onibus clock`: a server whose data were closed for longer than its clock can prove."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from onibus import Bus, Message
from tests.bus_helpers import DAY, ManualClock
from tests.cli.conftest import Onibus
from tests.server.processes import served

pytestmark = pytest.mark.promise("S4")


async def closed_long_ago(data: Path) -> None:
    clock = ManualClock(time.time_ns() // 1_000_000 - 90 * DAY)
    async with Bus.open(data, clock=clock, reserve_bytes=0) as bus:
        await bus.create_queue("q")
        await bus.send("q", Message(body=b"old", time_to_live_ms=DAY))
        clock.jump(100 * DAY)
        await bus.send("q", Message(body=b"from the future"))


def test_an_operator_confirms_the_clock(tmp_path: Path) -> None:
    data = tmp_path / "data"
    asyncio.run(closed_long_ago(data))
    with served("--data", data, "--reserve-bytes", "0"):
        onibus = Onibus(f"@{data / 'connection-string'}")
        (clock,) = onibus.told("clock", "show")
        assert not clock["sure"]
        assert 89 * DAY < clock["wall_ms"] - clock["proven_ms"] < 91 * DAY
        assert [one["entity"] for one in clock["stamps_ahead"]] == ["q"]
        assert len(onibus.told("peek", "q")) == 2, "nothing expired by a time in doubt"
        assert "in doubt" in onibus.shown("clock", "show")

        assert "--yes" in onibus.run("clock", "accept", code=2).stderr
        (accepted,) = onibus.told("clock", "accept", "--yes")
        assert [one["sequence_number"] for one in accepted["set_back"]] == [3]
        (clock,) = onibus.told("clock", "show")
        assert clock["sure"]
        assert clock["stamps_ahead"] == []
        assert [one["body"] for one in onibus.told("peek", "q")] == ["from the future"]
        assert "none" in onibus.shown("clock", "accept", "--yes")
