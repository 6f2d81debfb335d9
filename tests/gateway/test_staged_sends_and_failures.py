"""Staged sends over restarts, failures and deletions: published once, or not at all (R6)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pyarrow as pa
import pytest

from onibus import Bus
from onibus.core.errors import (
    EntityNotFound,
    NotStaged,
    OnibusError,
    PartitionOffline,
    Unknown,
)
from onibus.core.path import bulk
from onibus.core.records import PRODUCERS, STAGED
from onibus.directory import works
from onibus.shard.replies import KeptReply
from onibus.shard.runner import run as run_steps
from tests.bus_helpers import (
    HOUR,
    KEYS,
    MINUTE,
    SECOND,
    ManualClock,
    crash,
    get_one,
    msg,
    partition_at,
    pass_ms,
    peek_everything,
    pull,
    run,
    settle,
)
from tests.gateway.fragile import (
    FragileDisks,
    crash_everywhere,
    fail_everywhere,
    nothing_staged,
    quiet,
)
from tests.gateway.staging_helpers import listed, publish, stage
from tests.gateway.topic_helpers import sound, there

stores = pytest.mark.parametrize("stores", [("a",), ("a", "b")])


@pytest.mark.promise("R6")
@run
async def test_a_lease_that_ends_while_it_is_published(clock: ManualClock) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("p", enable_partitioning=True)
        rows = [msg(key, partition_key=key) for key in KEYS]
        await bus.stage("p", rows, producer="spark", batch=0, task=0, attempt=0, lease_ms=MINUTE)
        # The decision is on its way when the lease ends and a store goes down.
        clock.advance(MINUTE)
        published, discarded = KeptReply(), KeptReply()
        run_steps(bus.broker.producers.publish("p", "spark", 0, [(0, 0)]), published)
        bus.broker.tick()
        run_steps(bus.broker.producers.discard("p", "spark", None), discarded)
        pull(bus, "b")
        await settle(bus)
        assert isinstance(published.error, Unknown)
        assert discarded.value == 0
        await pass_ms(bus, clock, SECOND)
        await quiet(bus)
        assert sorted(there(bus, "p")) == sorted(KEYS)
        nothing_staged(disks)
        sound(bus)


@pytest.mark.promise("R6")
@pytest.mark.parametrize("crashed", [False, True])
@stores
@run
async def test_a_restart_between_staging_and_publishing(
    clock: ManualClock, stores: tuple[str, ...], crashed: bool
) -> None:
    disks = FragileDisks()
    bus = await disks.bus(clock, *stores)
    await bus.create_queue("p", enable_partitioning=True, requires_duplicate_detection=True)
    rows = [msg(key, partition_key=key, message_id="m") for key in KEYS]
    await bus.stage("p", rows, producer="spark", batch=0, task=0, attempt=0)
    if crashed:
        crash(bus)
    else:
        await bus.close()
    async with disks.bus(clock, *stores) as bus:
        assert there(bus, "p") == []
        assert listed(bus, "p") == [(0, 0, 0, 0, 16)]
        assert await publish(bus, (0, 0), queue="p") == (16, 0, False)
        assert there(bus, "p") == KEYS
        await settle(bus)
        nothing_staged(disks)


@pytest.mark.promise("R6")
@run
async def test_a_store_that_is_down_in_between(clock: ManualClock) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("p", enable_partitioning=True)
        rows = [msg(key, partition_key=key) for key in KEYS]
        await bus.stage("p", rows, producer="spark", batch=0, task=0, attempt=0)
        pull(bus, "b")
        with pytest.raises(PartitionOffline):
            await bus.stage("p", rows, producer="spark", batch=0, task=1, attempt=0)
        # It is decided; the store that is down does its part when it is up again.
        with pytest.raises(Unknown):
            await publish(bus, (0, 0), queue="p")
        assert await publish(bus, (0, 0), queue="p") == (0, 0, True)
        await settle(bus)
        assert len(there(bus, "p")) == 8
        await pass_ms(bus, clock, SECOND)
        assert there(bus, "p") == KEYS
        await quiet(bus)
        nothing_staged(disks)
        sound(bus)


@pytest.mark.promise("R6")
@pytest.mark.parametrize("restarted", [False, True])
@run
async def test_the_named_order_outlives_a_decision_in_doubt(
    clock: ManualClock, restarted: bool
) -> None:
    disks = FragileDisks()
    bus = await disks.bus(clock, "a", "b")
    await bus.create_queue("q")
    await stage(bus, 0, "staged first")
    await stage(bus, 1, "named first")
    disks.open["namespace"].fail_next(kept=True)
    with pytest.raises(Unknown):
        await publish(bus, (1, 0), (0, 0))
    if restarted:
        crash(bus)
        bus = await disks.bus(clock, "a", "b")
    else:
        await pass_ms(bus, clock, SECOND)
    await quiet(bus)
    assert [one.body for one in peek_everything(bus, "q")] == [b"named first", b"staged first"]
    await bus.close()


@pytest.mark.promise("R6")
@run
async def test_discarding_when_the_namespace_is_down_leaves_the_lease(clock: ManualClock) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await stage(bus, 0, "x")
        disks.open["namespace"].fail_next(kept=False)
        with pytest.raises(Unknown):
            await bus.create_queue("r")
        with pytest.raises(PartitionOffline):
            await bus.discard("q", producer="spark")
        with pytest.raises(PartitionOffline):
            await publish(bus, (0, 0))
        await pass_ms(bus, clock, SECOND)
        await pass_ms(bus, clock, 10 * MINUTE)
        assert await publish(bus, (0, 0)) == (1, 0, False)


@pytest.mark.promise("R6", "R8")
@run
async def test_an_entity_that_was_deleted_and_made_again(clock: ManualClock) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("p", enable_partitioning=True)
        rows = [msg(key, partition_key=key) for key in KEYS]
        for batch in (0, 1):
            await bus.stage("p", rows, producer="spark", batch=batch, task=0, attempt=0)
        await publish(bus, (0, 0), queue="p")
        await bus.delete_queue("p")
        await bus.create_queue("p", enable_partitioning=True)
        assert bus.staged("p") == []
        with pytest.raises(NotStaged):
            await publish(bus, (0, 0), batch=1, queue="p")
        await quiet(bus)
        await pass_ms(bus, clock, SECOND)
        # What was staged in it went with it, and so did what its producers had published.
        nothing_staged(disks)
        assert disks.rows("namespace", PRODUCERS) == {}
        await bus.stage("p", rows, producer="spark", batch=0, task=0, attempt=0)
        assert await publish(bus, (0, 0), queue="p") == (16, 0, False)


@pytest.mark.promise("R6")
@run
async def test_an_entity_that_is_deleted_while_something_is_staged_or_published(
    clock: ManualClock,
) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        rows = [msg(key, partition_key=key) for key in KEYS]
        for published in (False, True):
            await bus.create_queue("p", enable_partitioning=True)
            await bus.stage("p", rows, producer="spark", batch=0, task=0, attempt=0)
            ask = (
                publish(bus, (0, 0), queue="p")
                if published
                else bus.stage("p", rows, producer="spark", batch=0, task=1, attempt=0)
            )
            first = asyncio.ensure_future(ask)
            await bus.delete_queue("p")
            with contextlib.suppress(EntityNotFound, Unknown):
                await first
            await quiet(bus)
            await pass_ms(bus, clock, SECOND)
            for name in ("a", "b"):
                assert disks.rows(name, STAGED) == {}
    async with disks.bus(clock, "a", "b") as bus:
        await pass_ms(bus, clock, 2 * HOUR)
        await quiet(bus)
        nothing_staged(disks)


async def staged_batch(bus: Bus) -> None:
    await bus.create_queue("p", enable_partitioning=True, requires_duplicate_detection=True)
    await bus.send("p", msg("0/0", partition_key=KEYS[0], message_id="0"))


async def stage_and_publish(bus: Bus, _: Any) -> None:
    for task in range(2):
        rows = [
            msg(f"{task}/{at}", partition_key=KEYS[at], message_id=str(task)) for at in range(4)
        ]
        await bus.stage("p", rows, producer="spark", batch=0, task=task, attempt=0)
    await bus.publish("p", producer="spark", batch=0, attempts=[(0, 0), (1, 0)])


async def published_once(bus: Bus, made: Any) -> bool:
    """Whatever happened: doing all of it again gives each row once."""
    found = sorted(there(bus, "p"))
    everything = sorted(f"{task}/{at}" for task in range(2) for at in range(4))
    assert found in (everything, ["0/0"])
    await bus.discard("p", producer="spark")
    await stage_and_publish(bus, made)
    assert sorted(there(bus, "p")) == everything
    assert [m.sequence_number & 0xFFFF for m in peek_everything(bus, "p")] == [1, 2] * 4
    await bus.discard("p", producer="spark")
    await quiet(bus)
    return found == everything


@pytest.mark.promise("R6", "S3")
@stores
@run
async def test_a_crash_at_any_step(clock: ManualClock, stores: tuple[str, ...]) -> None:
    await crash_everywhere(clock, staged_batch, stage_and_publish, published_once, stores)


@pytest.mark.promise("R6", "S3")
@run
async def test_a_store_fails_at_any_step(clock: ManualClock) -> None:
    await fail_everywhere(clock, staged_batch, stage_and_publish, published_once)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage even a few rows of columns as blocks, and never keep them in memory."""
    monkeypatch.setattr(bulk, "STAGED_ROWS_MIN", 1)
    monkeypatch.setattr(works, "KEPT_BYTES_MAX", 0)


async def stage_columns_and_publish(bus: Bus, _: Any) -> None:
    for task in range(2):
        rows = {
            "body": [f"{task}/{at}".encode() for at in range(4)],
            "partition_key": KEYS[:4],
            "message_id": [str(task)] * 4,
        }
        names: dict[str, Any] = {"producer": "spark", "batch": 0, "attempt": 0}
        await bus.stage_arrow("p", pa.table(rows), task=task, **names)
    await bus.publish("p", producer="spark", batch=0, attempts=[(0, 0), (1, 0)])


@pytest.mark.promise("R6", "S3", "D10")
@pytest.mark.usefixtures("small_blocks")
@stores
@run
async def test_a_crash_at_any_step_of_columns(clock: ManualClock, stores: tuple[str, ...]) -> None:
    # One row repeats what was sent before: its block is written again without it.
    await crash_everywhere(clock, staged_batch, stage_columns_and_publish, published_once, stores)


@pytest.mark.promise("R6", "S3", "D10")
@pytest.mark.usefixtures("small_blocks")
@run
async def test_a_store_fails_at_any_step_of_columns(clock: ManualClock) -> None:
    await fail_everywhere(clock, staged_batch, stage_columns_and_publish, published_once)


@pytest.mark.promise("R6", "R8")
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("crashed", [False, True])
@run
async def test_columns_of_a_deleted_entity_leave_nothing(clock: ManualClock, crashed: bool) -> None:
    disks = FragileDisks()
    bus = await disks.bus(clock, "a", "b")
    await staged_batch(bus)
    rows = pa.table({"body": [b"x"] * 4, "partition_key": KEYS[:4], "message_id": ["1"] * 4})
    await bus.stage_arrow("p", rows, producer="spark", batch=0, task=0, attempt=0)
    assert disks.rows("a", STAGED)
    assert disks.rows("b", STAGED)
    if crashed:
        # The namespace forgets the entity, and the power goes before the stores do.
        disks.cut_power(1)
        with contextlib.suppress(OnibusError):
            await bus.delete_queue("p")
        crash(bus)
        disks.mend()
        bus = await disks.bus(clock, "a", "b")
    else:
        await bus.delete_queue("p")
    await quiet(bus)
    await pass_ms(bus, clock, 2 * HOUR)
    await quiet(bus)
    assert bus.queues() == []
    nothing_staged(disks)
    await bus.close()


@run
async def test_a_batch_in_doubt_is_not_called_missing(clock: ManualClock) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await stage(bus, 0, "x")
        disks.open["namespace"].fail_next(kept=True)
        with pytest.raises(Unknown):
            await publish(bus, (0, 0))
        # The row that decides is on the disk: "nothing was published" would be wrong.
        with pytest.raises(PartitionOffline):
            await publish(bus, (0, 0))
        await pass_ms(bus, clock, SECOND)
        assert await publish(bus, (0, 0)) == (0, 0, True)
        assert there(bus, "q") == ["x"]


@pytest.mark.parametrize("turns", range(12))
@run
async def test_what_is_staged_for_a_deleted_entity_leaves_nothing(
    clock: ManualClock, turns: int
) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        staged = asyncio.ensure_future(stage(bus, 0, "x"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await bus.delete_queue("q")
        with contextlib.suppress(EntityNotFound):
            await staged
        await quiet(bus)
        nothing_staged(disks)
        assert bus.broker.works._kept == 0
        assert bus.broker.disk.staged == 0


@pytest.mark.parametrize("turns", range(8))
@run
async def test_a_batch_published_while_its_entity_is_deleted_is_forgotten(
    clock: ManualClock, turns: int
) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await stage(bus, 0, "x")
        published = asyncio.ensure_future(publish(bus, (0, 0)))
        for _ in range(turns):
            await asyncio.sleep(0)
        await bus.delete_queue("q")
        with contextlib.suppress(Unknown, EntityNotFound):
            await published
        assert bus.broker.producers._last == {}
    async with disks.bus(clock, "a", "b") as bus:
        assert disks.rows("namespace", PRODUCERS) == {}
        assert bus.broker.producers._last == {}


class Unread(dict[int, Any]):
    """Holds that nothing may look through."""

    def values(self) -> Any:
        raise AssertionError


@run
async def test_discarding_looks_through_no_locks(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await bus.send_batch("q", [msg("locked"), msg("left")])
        await get_one(bus, "q")
        for task in range(3):
            await stage(bus, task, "x")
        subscription = partition_at(bus, "q").subscription
        monkeypatch.setattr(subscription, "holds", Unread(subscription.holds))
        assert await bus.discard("q", producer="spark") == 3
