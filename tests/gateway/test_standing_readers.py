"""Standing readers: a new entity has them from its creation on (R2)."""

from __future__ import annotations

import pytest

from onibus import Bus
from onibus.directory.standing_readers import StandingReader
from tests.bus_helpers import DAY, Disks, ManualClock, crash, pass_ms, run, send
from tests.log_helpers import consume, texts, tidy


def keep_everything(bus: Bus) -> None:
    """Give each new entity a reader of its messages, and one of its outcomes."""
    bus.broker.namespace.standing = lambda name: [
        StandingReader(name=f"kept-{log}", log=log, address="here", idle_ms=DAY)
        for log in (("outcomes",) if "/" in name else ("messages", "outcomes"))
    ]


@pytest.mark.promise("R2")
@run
async def test_nothing_of_a_new_entity_goes_before_it_is_read(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, "a", "b") as bus:
        keep_everything(bus)
        await bus.create_queue("q", enable_partitioning=True)
        await bus.create_topic("t")
        await bus.create_subscription("t", "s")
        await bus.create_queue("plain")
        for name in ("plain", "t"):
            await send(bus, name, "a", "b")
        for name in ("plain", "t/subscriptions/s"):
            await consume(bus, name)
        tidy(bus)
        crash(bus)
    async with disks.bus(clock, "a", "b") as bus:
        tidy(bus)
        for name in ("plain", "t"):
            assert await texts(bus, name, 1) == [(1, "a"), (2, "b")]
        for name in ("plain", "t/subscriptions/s"):
            assert bus.log_positions(name, log="outcomes").earliest == (1,)
            assert bus.log_positions(name, log="outcomes").latest == (3,)
        assert [one.name for one in bus.readers("q")] == ["kept-messages", "kept-outcomes"]
        assert len(bus.readers("q")[0].positions) == 16
        assert [one.name for one in bus.readers("t/subscriptions/s")] == ["kept-outcomes"]
        await pass_ms(bus, clock, 2 * DAY)
        assert bus.readers("plain") == [], "unused for too long, they are removed"


@pytest.mark.promise("R2")
@run
async def test_an_entity_deleted_and_recreated_has_new_ones(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        keep_everything(bus)
        await bus.create_queue("q")
        first = bus.readers("q")[0]
        await bus.delete_queue("q")
        await bus.create_queue("q")
        second = bus.readers("q")[0]
        assert (first.positions, second.positions) == ((1,), (1,))
        assert second.incarnation > first.incarnation
