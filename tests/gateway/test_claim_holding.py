"""One program at a time works under a reader's name, also after a restart (R5, R7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onibus.core.errors import CheckpointMismatch, InvalidArgument, Unknown
from tests.bus_helpers import SECOND, Disks, ManualClock, crash, pass_ms, run, send
from tests.gateway.fragile import FragileDisks


@pytest.mark.promise("R5", "R7")
@run
async def test_a_program_that_lost_its_hold_is_refused(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await send(bus, "q", "x", "y", "z")
        empty = await bus.hold_claims("q", "r", token="one")
        assert (empty.last, empty.committed, empty.claims) == (0, (), ())
        assert await bus.claim("q", "r", 1, token="one")
        # A claim that was not read has no program yet.
        assert [one.number for one in (await bus.hold_claims("q", "r", token="two")).claims] == [1]
        acts: list[Any] = [bus.claim("q", "r", 1, token="one")]
        for act in [*acts, bus.read_claim("q", "r", 1, token="one")]:
            with pytest.raises(CheckpointMismatch, match="taken over"):
                await act
    async with disks.bus(clock, "a", "b") as bus:
        with pytest.raises(CheckpointMismatch, match="taken over"):
            await bus.read_claim("q", "r", 1, token="one")
        assert len(await bus.read_claim("q", "r", 1, token="two")) == 1
        # It was read: only a program that knows it may continue.
        with pytest.raises(CheckpointMismatch, match="has read claim 1"):
            await bus.hold_claims("q", "r", token="three")
        assert (await bus.hold_claims("q", "r", token="three", after=1)).last == 1
        await bus.commit_claim("q", "r", 1)
        known = await bus.hold_claims("q", "r")
        assert (known.last, known.committed, known.claims) == (1, ((1, 1),), ())
        # A program without a token is not asked for one, and another reader is another reader.
        assert await bus.claim("q", "r", 1)
        assert await bus.claim("q", "other", 1, token="one")
        with pytest.raises(InvalidArgument):
            await bus.hold_claims("q", "r", token="")


@pytest.mark.promise("R5")
@run
async def test_a_query_begins_once(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await send(bus, "q", "x", "y", "z")
        await bus.hold_claims("q", "r", token="one")
        await bus.claim("q", "r", 1, token="one")
        await bus.hold_claims("q", "r", token="one", after=1, query="a", first=1)
        await bus.hold_claims("q", "r", token="one", after=1, query="a", first=1)
        await bus.commit_claim("q", "r", 1)
        with pytest.raises(CheckpointMismatch, match="taken over"):
            await bus.hold_claims("q", "r", token="two", query="b", first=2)
    async with disks.bus(clock, "a", "b") as bus:
        await bus.hold_claims("q", "r", token="two")
        await bus.claim("q", "r", 1, token="two")
        with pytest.raises(CheckpointMismatch, match="its checkpoint has no batch"):
            await bus.hold_claims("q", "r", token="two", after=2, query="a", first=2)
        await bus.hold_claims("q", "r", token="two", after=2, query="b", first=2)
        for wrong in ({"query": ""}, {"query": "a", "first": -1}):
            with pytest.raises(InvalidArgument):
                await bus.hold_claims("q", "r", token="two", after=2, **wrong)


@pytest.mark.promise("R5", "R7")
@run
async def test_a_hold_that_was_lost_is_taken_again(clock: ManualClock) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        disks.open["namespace"].fail_next(kept=False)
        with pytest.raises(Unknown):
            await bus.hold_claims("q", "r", token="one", query="a", first=1)
        await pass_ms(bus, clock, SECOND)
        await bus.hold_claims("q", "r", token="one", query="a", first=1)
        crash(bus)
    async with disks.bus(clock, "a", "b") as bus:
        with pytest.raises(CheckpointMismatch, match="taken over"):
            await bus.claim("q", "r", 1, token="two")
        with pytest.raises(CheckpointMismatch, match="has read claim 1"):
            await bus.hold_claims("q", "r", token="one", query="a", first=2)


@run
async def test_the_same_hold_twice_at_once_is_confirmed_once_durable(clock: ManualClock) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        disks.open["namespace"].fail_next(kept=False)
        both = [bus.hold_claims("q", "r", token="one") for _ in range(2)]
        found = await asyncio.gather(*both, return_exceptions=True)
        assert [type(one) for one in found] == [Unknown, Unknown]
