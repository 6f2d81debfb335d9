"""Things that went wrong once, each kept from coming back."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from onibus import Bus
from onibus.core.errors import (
    Damaged,
    InvalidOperation,
    LockLost,
    PartitionOffline,
    StoreFailed,
)
from onibus.core.path.expire import DUE_A_SLICE
from onibus.core.records import BLOCK_INDEX, BLOCKS
from tests.bus_helpers import (
    HOUR,
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


class CreepingClock(ManualClock):
    """A clock that moves on a little whenever it is asked."""

    creeping = False

    def monotonic(self) -> int:
        if self.creeping:
            self.advance(1)
        return super().monotonic()


@pytest.mark.promise("B1", "S5")
@run
async def test_what_is_found_does_not_come_due_before_it_is_acted_on() -> None:
    clock = CreepingClock()
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=SECOND)
        await bus.send_batch("q", [msg(f"{n}") for n in range(3)])
        receiver = bus.receiver("q")
        for ahead in range(12):
            held = await receiver.receive(3)
            clock.advance(SECOND - ahead)
            clock.creeping = True
            try:
                await receiver.complete(held)
            except LockLost:
                clock.creeping = False
                assert bus.queue("q").active_count == 3, "refused: nothing has changed"
                await pass_ms(bus, clock, SECOND)
                continue
            clock.creeping = False
            assert bus.queue("q").active_count == 0
            await bus.send_batch("q", [msg(f"{n}") for n in range(3)])


async def many_due_in_a_minute(bus: Bus, count: int) -> None:
    await bus.create_queue("q")
    due = bus.broker.clock.wall() + MINUTE
    batch = [msg(f"{n}", scheduled_enqueue_time_ms=due) for n in range(count)]
    await bus.send_batch("q", batch)


@pytest.mark.promise("S6")
@run
async def test_many_that_come_due_let_others_have_their_turn() -> None:
    clock = CreepingClock()
    async with Bus.ephemeral(clock=clock) as bus:
        await many_due_in_a_minute(bus, 3 * DUE_A_SLICE)
        clock.advance(MINUTE)
        clock.creeping = True  # each slice takes its time
        bus.broker.tick()
        clock.creeping = False
        assert bus.queue("q").scheduled_count == DUE_A_SLICE, "one slice by time, one by the look"


@pytest.mark.promise("X10")
@run
async def test_a_bus_whose_time_is_moved_does_all_that_comes_due() -> None:
    async with Bus.ephemeral() as bus:
        count = 3 * DUE_A_SLICE + 1
        await many_due_in_a_minute(bus, count)
        await bus.advance(MINUTE)
        assert bus.broker.find("q").seats[0].online().subscription.active_count() == count


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
            await asyncio.wait_for(bus.send("q", msg("1")), 5)
        await pass_ms(bus, clock, SECOND)
        assert (await bus.send("q", msg("2"))).sequence_number == 1


class UnevenClock(ManualClock):
    """The two clocks of a machine, of which one ticks in the middle of the other's milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.tenths = 0

    def wall(self) -> int:
        return super().wall() + self.tenths // 10

    def monotonic(self) -> int:
        return super().monotonic() + (self.tenths + 5) // 10


@pytest.mark.promise("S6")
@run
async def test_messages_scheduled_for_one_moment_come_in_the_order_of_their_numbers() -> None:
    clock = UnevenClock()
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        due = clock.wall() + MINUTE
        for n in range(40):
            await bus.schedule("q", msg(f"{n}"), due)
            clock.tenths += 3
        await pass_ms(bus, clock, MINUTE)
        assert bodies(await get(bus, "q")) == [f"{n}" for n in range(40)]
        clock.jump(-HOUR)
        await send(bus, "q", "a clock that was set counts")
        assert bus.broker.clock.wall() == clock.wall()


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


@run
async def test_receivers_that_were_cancelled_are_forgotten(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        receiver = bus.receiver("q")
        for _ in range(200):
            waiting = asyncio.create_task(receiver.receive(wait_ms=60 * MINUTE))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert len(bus.broker.find("q").waiters) <= 32


@pytest.mark.promise("F10", "L2")
@run
async def test_a_fifo_queue_as_a_session_and_by_number(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("f", fifo=True)
        await bus.send("f", msg("1", session_id="g", message_id="1"))
        async with await bus.accept_session("f", "g") as session:
            (held,) = await session.receive()
            with pytest.raises(InvalidOperation):
                await session.renew(held)
            await session.defer(held)
        fifo = bus.fifo_receiver("f")
        assert await fifo.receive() == []
        (deferred,) = await fifo.receive_deferred([held.sequence_number])
        await fifo.complete(deferred)
        assert peek_everything(bus, "f") == []


@pytest.mark.promise("B2", "S6")
@run
async def test_masses_that_expire_or_come_due_take_several_slices(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        for n in range(40):
            await bus.send_batch("q", [msg(f"{n}", time_to_live_ms=SECOND) for _ in range(3)])
        due = clock.wall() + SECOND
        await bus.send_batch("q", [msg("", scheduled_enqueue_time_ms=due) for _ in range(2_500)])
        clock.advance(SECOND)
        assert len(await bus.receiver("q").receive(10)) == 0, "nothing that has expired"
        await pass_ms(bus, clock, 10)
        for _ in range(2_500 // DUE_A_SLICE):
            await pass_ms(bus, clock, 100)
        assert bus.queue("q").scheduled_count == 0
        assert bus.queue("q").active_count == 2_500
