"""Where a time begins in the log, and how far so many bytes of it reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from onibus import Bus, Message, errors
from tests.bus_helpers import ManualClock, run


@pytest.mark.promise("R3")
@run
async def test_a_time_begins_at_its_first_row(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", retention_ms=86_400_000)
        stamps = []
        for _ in range(4):
            sent = await bus.send_batch("q", [Message(body=b"x"), Message(body=b"y")])
            [found] = [
                m.enqueued_time_ms for m in bus.peek("q", start=sent[0].sequence_number, limit=1)
            ]
            stamps.append(found)
            clock.advance(1_000)

        def since(time_ms: int, log: str = "messages") -> tuple[int | None, ...] | None:
            return bus.log_positions("q", since_ms=time_ms, log=log).since

        assert bus.log_positions("q").since is None, "nobody asked"
        assert since(0) == (1,)
        for at, stamp in enumerate(stamps):
            assert since(stamp) == (2 * at + 1,), "its first row"
            assert since(stamp + 1) == (2 * at + 3,), "or the first one after it"
        assert since(stamps[-1] + 1) == (9,) == bus.log_positions("q").latest

        await bus.receiver("q", delete=True).receive(3)
        [completed] = [
            batch.column("time_ms")[0].as_py() async for batch in bus.read_outcomes("q", 0, 1)
        ]
        assert since(completed, "outcomes") == (1,)
        assert since(completed + 1, "outcomes") == (4,)
        with pytest.raises(errors.InvalidArgument, match="since_ms"):
            since(-1)


@pytest.mark.promise("R3")
@run
async def test_how_far_bytes_reach(tmp_path: Path) -> None:
    async with Bus.open(tmp_path) as bus:
        await bus.create_queue("q")
        for _ in range(3):
            await bus.send_batch("q", [Message(body=bytes(1_000)) for _ in range(10)])
        assert bus.log_reach("q", 0, 1, 1) == 2, "one at least"
        assert bus.log_reach("q", 0, 3, 4_000) == 6, "rows have some bytes beside their bodies"
        assert bus.log_reach("q", 0, 1, 15_000) == 14, "over the end of a block"
        assert bus.log_reach("q", 0, 1, 1 << 40) == 31
        assert bus.log_reach("q", 0, 31, 10) == 31, "there is none"
        for index, start, size in ((1, 1, 1), (0, 99, 1), (0, 1, 0)):
            with pytest.raises(errors.InvalidArgument):
                bus.log_reach("q", index, start, size)
