"""The audit names where an operator set enqueued times back, and takes it for no contradiction."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from onibus import Bus, Message
from tests.bus_helpers import DAY, HOUR, ManualClock
from tests.server.processes import served
from tests.spark.test_upgrades import pipeline


async def with_stamps_set_back(data: Path) -> None:
    """Store messages under a clock that is a day ahead for a while."""
    clock = ManualClock(time.time_ns() // 1_000_000 - HOUR)
    async with Bus.open(data, clock=clock, reserve_bytes=0) as bus:
        await bus.create_queue("q", retention_ms=7 * DAY)
        for jump in (0, DAY, -DAY):
            clock.jump(jump)
            await bus.accept_clock()
            await bus.send_batch("q", [Message(body=b"%d" % at) for at in range(3)])


@pytest.mark.promise("S4")
def test_stamps_that_were_set_back_are_named(tmp_path: Path) -> None:
    data, lake = tmp_path / "data", str(tmp_path / "lake")
    asyncio.run(with_stamps_set_back(data))
    with served("--data", data, "--reserve-bytes", "0"):
        connection = (data / "connection-string").read_text().strip()
        pipeline("capture", "q", "--lake", lake, "--connect", connection)
        verdict = pipeline("audit", "q", "--lake", lake, "--connect", connection)
    assert verdict["passed"]
    named = [one for one in verdict["remarks"] if "set enqueued times" in one]
    assert len(named) == 1
    assert "back at number 7" in named[0]
