"""Planning a read of all partitions: its end, and waiting for its first row (R3)."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from onibus import Bus, errors
from onibus.gateway.read_limits import meeting, share
from tests.bus_helpers import HOUR, KEYS, Disks, ManualClock, msg, run, tick, until
from tests.log_helpers import consume


async def waiting(bus: Bus, name: str, *positions: int, **how: Any) -> asyncio.Task[Any]:
    """Return a plan that waits."""
    task = asyncio.create_task(bus.plan_read(name, positions, wait_ms=5_000, **how))
    waiters = bus.broker.find(name).log_waiters.waiters
    count = len(waiters)
    await until(lambda: task.done() or len(waiters) > count)
    assert not task.done()
    return task


@pytest.mark.promise("R3")
@run
async def test_a_plan_waits_for_the_first_row(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await bus.create_topic("t", retention_ms=HOUR)
        await bus.create_subscription("t", "s")
        q, topic = await waiting(bus, "q", 1), await waiting(bus, "t", 1)
        outcomes = await waiting(bus, "q", 1, log="outcomes")
        part = await waiting(bus, "t/subscriptions/s", 1, log="outcomes")
        await bus.send("q", msg("a"))
        assert (await q).until == (2,)
        assert (await bus.plan_read("q", [1], wait_ms=5_000)).until == (2,), "nothing to wait for"
        await consume(bus, "q")
        assert (await outcomes).until == (2,)
        assert not topic.done()
        assert not part.done()
        await bus.send("t", msg("b"))
        assert (await topic).until == (2,)
        await consume(bus, "t/subscriptions/s")
        assert (await part).until == (2,)


@pytest.mark.promise("R3")
@run
async def test_a_wait_ends_without_a_row(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        for name in ("q", "gone"):
            await bus.create_queue(name)
        late, left = await waiting(bus, "q", 1), await waiting(bus, "q", 1)
        left.cancel()
        clock.advance(5_000)
        tick(bus)
        assert (await late).until == (1,)
        assert not bus.broker.find("q").log_waiters.waiters
        gone = await waiting(bus, "gone", 1)
        await bus.delete_queue("gone")
        with pytest.raises(errors.EntityNotFound):
            await gone
        await bus.change_queue("q", status="receive-disabled")
        closed = await waiting(bus, "q", 1)
        await bus.change_queue("q", status="disabled")
        assert not closed.done(), "the log of a disabled queue can be read"
    with pytest.raises(errors.BusClosed):
        await closed


@pytest.mark.promise("R3")
@run
async def test_limits_and_ends(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        start = [number or 0 for number in bus.log_positions("q").latest]
        for _ in range(10):
            clock.advance(1_000)
            await bus.send_batch("q", [msg("x", partition_key=key) for key in KEYS[:2]])
        whole = await bus.plan_read("q", start)
        assert whole.until == whole.latest

        def rows(ends: Any) -> list[int]:
            counts = zip(start, ends, strict=True)
            return sorted(end - begin for begin, end in counts if end > begin)

        assert rows(whole.until) == [10, 10]
        assert rows((await bus.plan_read("q", start, limit=6)).until) == [3, 3]
        assert rows((await bus.plan_read("q", start, limit=6, limit_bytes=1)).until) == [1, 1]
        assert rows((await bus.plan_read("q", start, limit=6, until=start)).until) == []
        at = bus.log_positions("q").last_ms
        assert rows((await bus.plan_read("q", start, since_ms=at)).since) == [9, 9]
        with pytest.raises(errors.InvalidArgument, match="list of 16"):
            await bus.plan_read("q", [1])
        with pytest.raises(errors.EntityReplaced):
            await bus.plan_read("q", start, incarnation=whole.incarnation + 1)
        ahead = [number + 100 for number in start]
        assert (await bus.plan_read("q", ahead, wait_ms=5_000)).until == tuple(ahead)


def test_a_limit_is_divided_in_proportion() -> None:
    assert share({0: 100, 1: 3, 2: 50}, 43) == {0: 28, 1: 1, 2: 14}
    assert share({0: 5, 1: 9}, 1) == {0: 0, 1: 1}, "some partition always goes on"
    assert share({0: 1, 1: 1, 2: 1}, 2) == {0: 1, 1: 1, 2: 0}
    assert share({0: 5, 1: 9}, 100) == {0: 5, 1: 9}


@pytest.mark.parametrize("hint", [None, 1, 5_000, 10_000, 90_000_000])
def test_a_batch_ends_at_a_time(hint: int | None) -> None:
    asked: list[int] = []

    def fill(moment: int) -> float:
        asked.append(moment)
        return max(moment - 5_000, 0) / 10_000

    assert 14_000 <= found(meeting(hint), fill) <= 15_000
    assert len(asked) <= 45
    # All messages of one millisecond: there is no better time than that.
    assert found(meeting(hint), lambda moment: 9.0 if moment > 7_000 else 0.0) == 7_000


def found(times: Generator[int, float, int], fill: Any) -> int:
    """Return what a search finds."""
    moment = next(times)
    while True:
        try:
            moment = times.send(fill(moment))
        except StopIteration as end:
            return int(end.value)
