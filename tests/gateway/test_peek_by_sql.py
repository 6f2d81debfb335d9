"""Peek and purge by an SQL filter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onibus import Bus, Filter, errors
from onibus.core.rules.sql_compile import compile_filter
from tests.bus_helpers import MINUTE, ManualClock, bodies, get, msg, peek_everything, picture, run

BOTH = pytest.mark.parametrize("partitioned", [False, True])
COLORS = ("red", "green", "blue")


async def fill(bus: Bus, partitioned: bool = False) -> None:
    """Thirty messages of three colors, their numbers 0 to 29; every third has no color."""
    await bus.create_queue("q", enable_partitioning=partitioned)
    for n in range(30):
        properties: dict[str, Any] = {"N": n} | ({"color": COLORS[n % 3]} if n % 3 else {})
        await bus.send("q", msg(f"{n}", message_id=f"m{n}", properties=properties, subject="x"))


@pytest.mark.promise("X5")
@BOTH
@run
async def test_peek_by_sql(clock: ManualClock, partitioned: bool) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fill(bus, partitioned)

        def found(sql: str, **wanted: Any) -> list[int]:
            where = Filter(sql=sql, **wanted)
            return sorted(map(int, bodies(peek_everything(bus, "q", limit=2, where=where))))

        assert found("color = 'green' AND n < 10") == [1, 4, 7]
        assert found("color IS NULL AND n >= 24") == [24, 27]
        assert found("NOT color = 'green' AND n < 6") == [2, 5]  # unknown is not true
        assert found("sys.MessageId LIKE 'm2_' AND n % 2 = 0") == [20, 22, 24, 26, 28]
        assert found("color IN ('red')") == []
        assert found("sys.Label = 'x'", body_contains=b"13") == [13]
        assert found("n = @n", sql_parameters={"n": 5}) == [5]
        assert found("10 / (n - 1) = 10") == [2]  # message 1 divides by zero: it is not meant
        if not partitioned:
            assert found("sys.SequenceNumber <= 2") == [0, 1]


@pytest.mark.promise("X5")
@run
async def test_peek_by_sql_sees_stamps_and_dead_letters(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await bus.send("q", msg("early"))
        middle = datetime.fromtimestamp(clock.wall() / 1_000, UTC) + timedelta(seconds=1)
        clock.advance(MINUTE)
        await bus.send("q", msg("late"))
        where = Filter(sql="sys.EnqueuedTimeUtc > @middle", sql_parameters={"@middle": middle})
        assert bodies(bus.peek("q", where=where)) == ["late"]
        receiver = bus.receiver("q")
        (message,) = await receiver.receive(1)
        await receiver.dead_letter(message, reason="Broken", description="in two")
        where = Filter(sql="DeadLetterReason = 'Broken'")
        assert bodies(bus.peek("q", dead_letters=True, where=where)) == ["early"]
        assert bus.peek("q", where=where) == []


@pytest.mark.promise("X2", "X5")
@BOTH
@run
async def test_purge_by_sql(clock: ManualClock, partitioned: bool) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fill(bus, partitioned)
        assert await bus.purge("q", Filter(sql="color = 'green' OR n / 0 = 1")) == 10
        left = sorted(int(body) for body in bodies(await get(bus, "q")))
        assert left == [n for n in range(30) if n % 3 != 1]


@pytest.mark.promise("X5")
@pytest.mark.parametrize(
    "wanted",
    [
        *({"sql": "color ="}, {"sql": ""}, {"sql": "a = 1" + " " * 1_024}, {"sql": "sys.No = 1"}),
        *({"sql": "(" * 33 + "a = 1" + ")" * 33}, {"sql": "a = @p"}, {"sql": b"a = 1"}, {"sql": 1}),
        *({"sql": "a = 1", "sql_parameters": {"p": [1]}}, {"sql": "1 = 1", "sql_parameters": 1}),
    ],
)
@run
async def test_filters_that_cannot_be_read_change_nothing(
    clock: ManualClock, wanted: dict[str, Any]
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fill(bus)
        before = picture(bus, "q")
        with pytest.raises(errors.InvalidArgument):
            bus.peek("q", where=Filter(**wanted))
        with pytest.raises(errors.InvalidArgument):
            await bus.purge("q", Filter(**wanted), forget_ids=True)
        assert picture(bus, "q") == before


@pytest.mark.promise("X5")
@run
async def test_a_filter_is_compiled_once_a_call(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def counted(*given: Any) -> Any:
        nonlocal count
        count += 1
        return compile_filter(*given)

    monkeypatch.setattr("onibus.core.inspection.compile_filter", counted)
    async with Bus.ephemeral(clock=clock) as bus:
        await fill(bus, partitioned=True)
        where = Filter(sql="n >= 0")
        assert len(peek_everything(bus, "q", where=where)) == 30
        assert await bus.purge("q", where) == 30
        assert count == 1
