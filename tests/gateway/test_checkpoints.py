"""A producer that names its checkpoint is held to it: no gap, and no other one (R6)."""

from __future__ import annotations

import pytest

from onibus import Bus
from onibus.core.errors import BatchTooOld, CheckpointMismatch
from tests.bus_helpers import Disks, ManualClock, run
from tests.gateway.staging_helpers import listed, stage
from tests.gateway.topic_helpers import there


async def write(bus: Bus, batch: int, checkpoint: str | None, text: str = "") -> bool:
    """Stage and publish a batch of one message; return whether it had been published before."""
    await stage(bus, 0, text or f"{batch}", batch=batch)
    done = await bus.publish(
        "q", producer="spark", batch=batch, attempts=[(0, 0)], checkpoint=checkpoint
    )
    return done.again


@pytest.mark.promise("R6")
@run
async def test_a_reset_checkpoint_is_refused_also_at_the_same_number(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        assert not await write(bus, 0, "one")
    async with disks.bus(clock, "a", "b") as bus:
        assert await write(bus, 0, "one")
        with pytest.raises(CheckpointMismatch, match="another checkpoint"):
            await write(bus, 0, "two", "other content")
        with pytest.raises(CheckpointMismatch):
            await write(bus, 1, "two", "more")
        assert there(bus, "q") == ["0"]
        assert not await write(bus, 1, "one")
        with pytest.raises(BatchTooOld):
            await write(bus, 0, "one")
        assert there(bus, "q") == ["0", "1"]


@pytest.mark.promise("R6")
@run
async def test_a_gap_is_refused(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        # The checkpoint has come further than this entity knows.
        with pytest.raises(CheckpointMismatch, match="another entity"):
            await write(bus, 1, "one")
        await write(bus, 0, "one")
        with pytest.raises(CheckpointMismatch, match="backup"):
            await write(bus, 2, "one")
        assert there(bus, "q") == ["0"]
        # Who names no checkpoint counts as it likes.
        assert not await write(bus, 7, None)


@pytest.mark.promise("R6", "R8")
@run
async def test_an_entity_that_was_made_again_knows_no_producer(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await write(bus, 0, "one")
        await bus.delete_queue("q")
        await bus.create_queue("q")
        assert bus.producers("q") == []
        with pytest.raises(CheckpointMismatch, match="recreated"):
            await write(bus, 1, "one")
        assert there(bus, "q") == []


@run
async def test_a_forgotten_producer_begins_anew(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await write(bus, 0, "one")
        await write(bus, 1, "one")
        (known,) = bus.producers("q")
        assert (known.producer, known.batch, known.checkpoint) == ("spark", 1, "one")
        await stage(bus, 0, "never published", batch=2)
        assert await bus.forget_producer("q", "spark")
        assert not await bus.forget_producer("q", "spark")
        assert listed(bus) == []
    async with disks.bus(clock, "a", "b") as bus:
        assert bus.producers("q") == []
        assert not await write(bus, 0, "two", "again")
        assert there(bus, "q") == ["0", "1", "again"]
