"""Messages that come due or expire: at their time, in their order, and slice by slice."""

from __future__ import annotations

import pytest

from onibus import Bus
from onibus.core.errors import (
    LockLost,
)
from onibus.core.path.expire import DUE_A_SLICE
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    SECOND,
    ManualClock,
    bodies,
    get,
    msg,
    pass_ms,
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


async def many_due_in_a_minute(bus: Bus, count: int) -> None:
    await bus.create_queue("q")
    due = bus.broker.clock.wall() + MINUTE
    batch = [msg(f"{n}", scheduled_enqueue_time_ms=due) for n in range(count)]
    await bus.send_batch("q", batch)


class UnevenClock(ManualClock):
    """The two clocks of a machine, of which one ticks in the middle of the other's milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.tenths = 0

    def wall(self) -> int:
        return super().wall() + self.tenths // 10

    def monotonic(self) -> int:
        return super().monotonic() + (self.tenths + 5) // 10


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
        assert bus.broker.find("q").partitions[0].online().subscription.active_count() == count


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
