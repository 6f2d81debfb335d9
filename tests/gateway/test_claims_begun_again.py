"""A claim that failed, and the next one, which gets its number."""

from __future__ import annotations

import asyncio

import pytest

from onibus.core.errors import PartitionOffline
from tests.bus_helpers import Disks, ManualClock, run
from tests.gateway.test_claims_over_stores import STORES, everything, fill, hold_up, reopen


@pytest.mark.promise("R5")
@run
async def test_what_a_failed_claim_left_is_not_taken_for_the_next_one(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, *STORES) as bus:
        texts = await fill(bus)
        # Its holds are on the disk of b, and it does not know.
        disks.open["b"].fail_next(kept=True)
        with pytest.raises(PartitionOffline):
            await bus.claim("q", "r", 100)
        started, go_on = hold_up(disks.open["a"], bus)
        claiming = asyncio.create_task(bus.claim("q", "r", 3))
        await started.wait()
        await reopen(bus, "b")
        go_on.set()
        claim = await claiming
        assert claim is not None
        assert claim.number == 1
        assert bus.queue("q").held_count == claim.count == 3, "nothing else is held"
        await bus.commit_claim("q", "r", 1)
        assert len(await everything(bus)) == len(texts) - 3
