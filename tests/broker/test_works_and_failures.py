"""Works over several stores: whatever fails, and whenever, all of it happens or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from onibus import Bus
from tests.broker.fragile import crash_everywhere, fail_everywhere
from tests.bus_helpers import ManualClock, bodies, get, msg, numbers, peek_everything, run, send


async def two_queues(bus: Bus) -> Any:
    """Make two queues, in two stores, with messages that are held."""
    for name in ("q0", "q1"):
        await bus.create_queue(name)
        await send(bus, name, *[f"{name}-{verb}" for verb in ("done", "back", "later", "dead")])
    return {name: await get(bus, name) for name in ("q0", "q1")}


async def settle_and_send(bus: Bus, held: Any) -> None:
    async with bus.transaction() as tx:
        for name, (done, back, later, dead) in held.items():
            await tx.complete(name, done)
            await tx.abandon(name, back, properties={"tried": True})
            await tx.defer(name, later)
            await tx.dead_letter(name, dead, reason="broken")
            await tx.send_batch(name, [msg("new-1"), msg("new-2")])


async def both_or_none(bus: Bus, _: Any) -> bool:
    found = []
    for name in ("q0", "q1"):
        left = peek_everything(bus, name)
        dead = peek_everything(bus, name, dead_letters=True)
        found.append("new-1" in bodies(left))
        if found[-1]:
            assert bodies(left) == [f"{name}-back", f"{name}-later", "new-1", "new-2"]
            assert [m.delivery_count for m in left] == [1, 1, 0, 0]
            assert left[0].properties == {"tried": True}
            assert left[1].state == "deferred"
            assert bodies(dead) == [f"{name}-dead"]
            assert dead[0].dead_letter_reason == "broken"
            assert numbers(left) == [2, 3, 5, 6]
        else:
            assert numbers(left) == [1, 2, 3, 4]
            assert dead == []
            assert all("deferred" not in m.state for m in left)
    assert found[0] == found[1]
    return found[0]


@pytest.mark.promise("B5", "S2", "S3")
@run
async def test_a_crash_in_a_transaction_over_two_stores(clock: ManualClock) -> None:
    assert await crash_everywhere(clock, two_queues, settle_and_send, both_or_none) > 4


@pytest.mark.promise("B5", "S2", "S3")
@run
async def test_a_crash_in_a_transaction_in_one_store(clock: ManualClock) -> None:
    commits = await crash_everywhere(
        clock, two_queues, settle_and_send, both_or_none, stores=("a",)
    )
    assert commits == 1


@pytest.mark.promise("B5", "S2", "S3")
@run
async def test_a_store_fails_in_a_transaction(clock: ManualClock) -> None:
    await fail_everywhere(clock, two_queues, settle_and_send, both_or_none)
