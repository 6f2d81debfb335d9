"""Stores, namespaces and disks that are missing, replaced or unreachable."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from onibus import Bus
from onibus.core.errors import (
    Damaged,
    PartitionOffline,
    StoreFailed,
)
from onibus.core.records import BLOCK_INDEX, BLOCKS
from tests.bus_helpers import (
    MINUTE,
    SECOND,
    ManualClock,
    bodies,
    get,
    index_in,
    keys_of,
    msg,
    pass_ms,
    peek_everything,
    run,
    send,
)


async def two_stores_with_messages(tmp_path: Path, clock: ManualClock) -> dict[str, Path]:
    stores = {"a": tmp_path / "a", "b": tmp_path / "b"}
    async with Bus.open(tmp_path, clock=clock, stores=stores) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        await bus.send_batch("q", [msg(f"{n}", partition_key=f"{n}") for n in range(32)])
    return stores


@pytest.mark.parametrize("mount_point", [False, True])
@run
async def test_a_store_that_is_missing_is_not_made_anew_and_comes_back(
    tmp_path: Path, clock: ManualClock, mount_point: bool
) -> None:
    stores = await two_stores_with_messages(tmp_path, clock)
    shutil.move(tmp_path / "b", tmp_path / "elsewhere")
    if mount_point:
        stores["b"].mkdir()
    async with Bus.open(tmp_path, clock=clock, stores=stores) as bus:
        assert bus.queue("q").availability == "limited"
        assert any("mounted" in alarm for alarm in bus.alarms)
        await pass_ms(bus, clock, SECOND)
        if mount_point:
            stores["b"].rmdir()
        assert not stores["b"].exists(), "nothing was put into its place"
        shutil.move(tmp_path / "elsewhere", tmp_path / "b")
        await pass_ms(bus, clock, SECOND)
        assert bus.queue("q").availability == "available"
        assert len(peek_everything(bus, "q")) == 32


@run
async def test_an_empty_store_in_the_place_of_a_full_one_is_noticed(
    tmp_path: Path, clock: ManualClock
) -> None:
    stores = await two_stores_with_messages(tmp_path, clock)
    shutil.move(tmp_path / "b", tmp_path / "elsewhere")
    async with Bus.open(tmp_path / "another", clock=clock, stores=stores):
        pass
    async with Bus.open(tmp_path, clock=clock, stores=stores) as bus:
        assert bus.queue("q").availability == "limited"
        assert isinstance(bus.broker.stores["b"].error, Damaged)
        assert any("mounted" in alarm for alarm in bus.alarms)


@run
async def test_stores_with_messages_are_not_emptied_by_a_namespace_that_is_new(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Found by asking what happens when the directory of the data is the one not mounted."""
    stores = await two_stores_with_messages(tmp_path, clock)
    with pytest.raises(Damaged, match="is not in the namespace"):
        await Bus.open(tmp_path / "another", clock=clock, stores=stores)
    async with Bus.open(tmp_path, clock=clock, stores=stores) as bus:
        assert len(peek_everything(bus, "q")) == 32


@run
async def test_files_that_are_taken_away_under_a_running_bus_are_missed(
    tmp_path: Path, clock: ManualClock
) -> None:
    stores = await two_stores_with_messages(tmp_path, clock)
    async with Bus.open(tmp_path, clock=clock, stores=stores) as bus:
        (key,) = keys_of(index_in(bus, "q", "b"), 1)
        held = await get(bus, "q")
        shutil.move(tmp_path / "b", tmp_path / "elsewhere")
        for message in held:
            # Half of them into files of another name.
            await bus.receiver("q").complete(message)
        while bus.queue("q").availability == "available":
            await pass_ms(bus, clock, SECOND)
        with pytest.raises(PartitionOffline):
            await bus.send("q", msg("refused", partition_key=key))
        shutil.move(tmp_path / "elsewhere", tmp_path / "b")
        await pass_ms(bus, clock, SECOND)
        assert peek_everything(bus, "q") == [], "nothing that was acknowledged is lost"


@pytest.mark.promise("P5")
@run
async def test_a_store_whose_disk_cannot_be_asked_is_down(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Senders with a key were told of a fault of ours, for ever, and the store stayed up."""
    stores = await two_stores_with_messages(tmp_path, clock)
    async with Bus.open(tmp_path, clock=clock, stores=stores) as bus:
        (key,) = keys_of(index_in(bus, "q", "b"), 1)
        shutil.move(tmp_path / "b", tmp_path / "elsewhere")
        with pytest.raises(PartitionOffline):
            await bus.send("q", msg("keyed", partition_key=key))
        assert bus.queue("q").availability == "limited"
        await send(bus, "q", *map(str, range(16)))
        shutil.move(tmp_path / "elsewhere", tmp_path / "b")
        await pass_ms(bus, clock, SECOND)
        assert len(peek_everything(bus, "q")) == 48


@run
async def test_a_namespace_that_is_taken_away_is_not_made_anew(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A new one would have no entities, and what had been theirs would go."""
    stores = {"a": tmp_path / "a"}
    async with Bus.open(tmp_path / "bus", clock=clock, stores=stores) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "x")
        shutil.move(tmp_path / "bus", tmp_path / "elsewhere")
        bus.broker.namespace._down(StoreFailed("pulled"))
        await pass_ms(bus, clock, 2 * SECOND)
        assert bus.queues() == ["q"]
        shutil.move(tmp_path / "elsewhere", tmp_path / "bus")
        await pass_ms(bus, clock, SECOND)
        await bus.create_queue("another")
        assert bodies(await get(bus, "q")) == ["x"]


@pytest.mark.promise("B7")
@run
async def test_being_down_is_not_being_idle(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", auto_delete_on_idle_ms=5 * MINUTE)
        await bus.send("q", msg("1"))
    clock.advance(10 * MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        await pass_ms(bus, clock, SECOND)
        assert bodies(await get(bus, "q")) == ["1"]
        await pass_ms(bus, clock, 6 * MINUTE)
        assert bus.queues() == []


@run
async def test_a_disk_that_does_not_say_how_full_it_is_leaves_nobody_waiting(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        loop = bus.broker.stores["main"].loop
        assert loop is not None

        def broken(_directory: str) -> int:
            raise OSError("input/output error")

        loop.store._free_bytes = broken  # type: ignore[attr-defined]
        with pytest.raises(PartitionOffline):
            await bus.send("q", msg("1"))
        await pass_ms(bus, clock, SECOND)
        assert (await bus.send("q", msg("2"))).sequence_number == 1


@run
async def test_the_blocks_of_a_deleted_queue_go_also_after_a_crash(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path / "here", clock=clock) as bus:
        await bus.create_queue("q")
        for n in range(20):
            await bus.send("q", msg(f"{n}"))
        await bus.delete_queue("q")
        shutil.copytree(tmp_path / "here", tmp_path / "copy")
    async with Bus.open(tmp_path / "copy", clock=clock) as bus:
        await pass_ms(bus, clock, SECOND)
        loop = bus.broker.stores["main"].loop
        assert loop is not None
        assert list(loop.store.scan(BLOCK_INDEX)) == []
        assert list(loop.store.scan(BLOCKS)) == []
