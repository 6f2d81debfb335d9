"""Quotas of readers, claims, producers and staged pieces: what a client can leave is bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onibus import Bus, Quotas
from onibus.core.errors import InvalidArgument, QuotaExceeded
from onibus.directory import producers
from tests.bus_helpers import HOUR, Disks, ManualClock, crash, pass_ms, run, send
from tests.gateway.staging_helpers import listed, publish, stage

QUOTAS = Quotas(readers=2, claims=2, producers=2, staged=3)


@pytest.mark.promise("R2", "R8")
@run
async def test_one_more_reader_than_the_quota_is_rejected(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock, quotas=QUOTAS) as bus:
        await bus.create_queue("q")
        for name in ("a", "b"):
            await bus.create_reader("q", name)
        with pytest.raises(QuotaExceeded, match="q has 2 named readers"):
            await bus.create_reader("q", "c")
        await bus.delete_reader("q", "a")
        await bus.create_reader("q", "c")


@pytest.mark.promise("R5", "R8")
@run
async def test_one_more_open_claim_than_the_quota_is_rejected(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock, quotas=QUOTAS) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2", "3")
        claims = [await bus.claim("q", name, 1) for name in ("a", "b")]
        with pytest.raises(QuotaExceeded, match="q has 2 open claims"):
            await bus.claim("q", "c", 1)
        assert claims[0] is not None
        await bus.commit_claim("q", "a", claims[0].number)
        assert await bus.claim("q", "c", 1) is not None


@run
async def test_a_reader_that_finds_nothing_to_claim_is_not_kept(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        for number in range(10):
            assert await bus.claim("q", f"reader-{number}", 1) is None
        assert list(bus.broker.claims.readers.values()) == [{}]


@run
async def test_a_reader_whose_hold_is_rejected_is_not_kept(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        with pytest.raises(InvalidArgument):
            await bus.hold_claims("q", "reader", token="t", query="x" * 1_000)
        assert not any(bus.broker.claims.readers.values())


@pytest.mark.promise("R6")
@run
async def test_one_more_staged_piece_than_the_quota_is_rejected(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock, quotas=QUOTAS) as bus:
        await bus.create_queue("q")
        for task in range(3):
            await stage(bus, task, f"m{task}")
        with pytest.raises(QuotaExceeded, match="q has 3 staged pieces"):
            await stage(bus, 3, "m3")
        assert await publish(bus, (0, 0), (1, 0)) == (2, 0, False)
        assert listed(bus) == []
        await stage(bus, 0, "n", batch=1)


@pytest.mark.promise("R6")
@run
async def test_pieces_whose_leases_expired_leave_room(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock, "a", "b", quotas=QUOTAS)
    await bus.create_queue("q")
    for task in range(3):
        await stage(bus, task, f"m{task}", lease_ms=HOUR)
    crash(bus)
    async with disks.bus(clock, "a", "b", quotas=QUOTAS) as bus:
        with pytest.raises(QuotaExceeded):
            await stage(bus, 3, "m3")
        await pass_ms(bus, clock, HOUR)
        await stage(bus, 3, "m3")


Step = Callable[[Bus, str], Awaitable[Any]]


async def _stages(bus: Bus, producer: str) -> None:
    await stage(bus, 0, producer, producer=producer)


async def _publishes_nothing(bus: Bus, producer: str) -> None:
    await bus.publish("q", producer=producer, batch=0, attempts=[])


@pytest.mark.promise("R6")
@pytest.mark.parametrize("step", [_stages, _publishes_nothing])
@run
async def test_one_more_producer_than_the_quota_is_rejected(clock: ManualClock, step: Step) -> None:
    async with Bus.ephemeral(clock=clock, quotas=QUOTAS) as bus:
        await bus.create_queue("q")
        for name in ("a", "b"):
            await step(bus, name)
        with pytest.raises(QuotaExceeded, match="q has 2 producers"):
            await step(bus, "c")
        await bus.forget_producer("q", "a")
        await step(bus, "c")


@run
async def test_pieces_of_other_producers_cost_a_publish_nothing(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        for number in range(50):
            await stage(bus, number, f"m{number}", producer=f"producer-{number}")
        await stage(bus, 0, "mine")
        looked: list[int] = []
        found = producers._converted

        def counted(notes: dict[int, Any]) -> Any:
            looked.append(len(notes))
            return found(notes)

        monkeypatch.setattr(producers, "_converted", counted)
        assert await publish(bus, (0, 0)) == (1, 0, False)
        assert looked == [1]
