"""Sequence numbers, timestamps and scheduled messages (S)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onibus import Bus, Filter
from onibus.core.errors import InvalidArgument, MessageNotFound, QuotaExceeded
from tests.bus_helpers import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    ManualClock,
    bodies,
    crash,
    get,
    get_one,
    keys_of,
    msg,
    numbers,
    pass_ms,
    peek_everything,
    picture,
    run,
    send,
)


@pytest.mark.promise("S1")
@run
async def test_the_broker_gives_number_and_time_never_the_client(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        clock.advance(1_234)
        claims: dict[str, Any] = {"enqueued_sequence_number": 77, "properties": {"n": 99}}
        sent = await bus.send("q", msg("x", **claims))
        message = await get_one(bus, "q")
        assert message.sequence_number == sent.sequence_number == 1
        assert message.enqueued_time_ms == clock.wall()


@pytest.mark.promise("S2")
@run
async def test_numbers_rise_by_one_in_the_order_of_acceptance(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await bus.create_queue("other")
        batch = await bus.send_batch("q", [msg(f"{n}") for n in range(50)])
        await send(bus, "other", "not counted here")
        single = await send(bus, "q", "50", "51")
        assert [one.sequence_number for one in batch + single] == list(range(1, 53))
        assert bodies(await get(bus, "q")) == [f"{n}" for n in range(52)]


@pytest.mark.promise("S2")
@run
async def test_where_partitioned_the_top_16_bits_are_the_partition(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        for index in range(16):
            (key,) = keys_of(index, 1)
            sent = await send(bus, "q", "x", "y", partition_key=key)
            assert [one.sequence_number >> 48 for one in sent] == [index, index]
            assert [one.sequence_number & (1 << 48) - 1 for one in sent] == [1, 2]
            assert all(one.sequence_number < 1 << 63 for one in sent), "signed for clients"


@pytest.mark.promise("S2")
@run
async def test_scheduling_takes_a_number_and_activation_another(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        assert await bus.schedule("q", msg("later"), clock.wall() + MINUTE) == 1
        await send(bus, "q", "now")
        await pass_ms(bus, clock, MINUTE)
        await send(bus, "q", "last")
        received = await get(bus, "q")
        assert numbers(received) == [2, 3, 4]
        assert bodies(received) == ["now", "later", "last"]
        await bus.receiver("q").dead_letter(received[1])
        assert numbers(await get(bus, "q", dead_letters=True)) == [3], "it is not renumbered"


@pytest.mark.promise("S3")
@pytest.mark.parametrize("clean", [True, False])
@run
async def test_no_gap_and_no_reuse_across_restarts_and_refusals(
    tmp_path: Path, clock: ManualClock, clean: bool
) -> None:
    seen: list[int] = []
    for _ in range(4):
        async with Bus.open(tmp_path, clock=clock) as bus:
            if not seen:
                await bus.create_queue("q", max_message_bytes=1_000)
            seen += [one.sequence_number for one in await send(bus, "q", "a", "b")]
            with pytest.raises(Exception, match="bytes"):
                await bus.send_batch("q", [msg("fits"), msg("x" * 2_000)])
            number = await bus.schedule("q", msg("s"), clock.wall() + DAY)
            await bus.cancel_scheduled("q", [number])
            await get(bus, "q", delete=True)
            seen.append(number)
            if not clean:
                crash(bus)
    assert seen == list(range(1, len(seen) + 1))


@pytest.mark.promise("S4")
@run
async def test_the_stamp_never_runs_backwards(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "noon")
        clock.jump(-HOUR)
        await send(bus, "q", "set back")
        clock.jump(2 * HOUR)
        await send(bus, "q", "set forward")
        clock.jump(-DAY)
    async with Bus.open(tmp_path, clock=clock) as bus:
        await send(bus, "q", "set back, restarted")
        start = clock.wall() + DAY - HOUR
        stamps = [message.enqueued_time_ms for message in bus.peek("q")]
        assert stamps == [start, start, start + HOUR, start + HOUR]


@pytest.mark.promise("S4")
@pytest.mark.parametrize("jump", [DAY, -DAY])
@run
async def test_a_clock_that_jumps_neither_fires_nor_freezes_durations(
    clock: ManualClock, jump: int
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=MINUTE)
        await send(bus, "q", "locked")
        await get_one(bus, "q")
        clock.jump(jump)
        await send(bus, "q", "mortal", time_to_live_ms=3 * MINUTE)
        await pass_ms(bus, clock, MINUTE - 1)
        assert bus.queue("q").held_count == 1
        await pass_ms(bus, clock, 1)
        assert bus.queue("q").held_count == 0, "the lock ended after its minute"
        await pass_ms(bus, clock, MINUTE)
        assert bus.queue("q").active_count == 2
        await pass_ms(bus, clock, MINUTE)
        assert bodies(await get(bus, "q")) == ["locked"]


@pytest.mark.promise("S6")
@run
async def test_a_scheduled_message_follows_a_clock_that_is_set(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        due = clock.wall() + DAY
        await bus.schedule("q", msg("later"), due)
        clock.jump(-HOUR)
        await pass_ms(bus, clock, DAY)
        assert bus.queue("q").scheduled_count == 1, "by the clock it is an hour early"
        clock.jump(HOUR - 1)
        await pass_ms(bus, clock, 0)
        assert bus.queue("q").scheduled_count == 1
        # The broker looks at the clock once a second.
        clock.jump(1)
        await pass_ms(bus, clock, SECOND)
        assert bus.queue("q").scheduled_count == 0
        (message,) = bus.peek("q")
        assert due <= message.enqueued_time_ms <= due + SECOND


@pytest.mark.promise("S4", "B7")
@run
async def test_a_clock_that_jumped_does_not_freeze_deletion_on_idle(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        clock.jump(365 * DAY)
        await bus.create_queue("q", auto_delete_on_idle_ms=5 * MINUTE)
        clock.jump(-365 * DAY)
        await pass_ms(bus, clock, 5 * MINUTE)
        assert bus.queues() == []


@pytest.mark.promise("S5")
@run
async def test_a_message_is_scheduled_by_its_property_or_by_the_call(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        due = clock.wall() + MINUTE
        sent = await bus.send("q", msg("by property", scheduled_enqueue_time_ms=due))
        number = await bus.schedule("q", msg("by call"), due)
        assert (sent.sequence_number, number) == (1, 2)
        await bus.schedule("q", msg("past"), clock.wall() - HOUR)
        await bus.schedule("q", msg("present"), clock.wall())
        assert bodies(await get(bus, "q", delete=True)) == ["past", "present"]
        await pass_ms(bus, clock, MINUTE)
        assert bodies(await get(bus, "q")) == ["by property", "by call"]


@pytest.mark.promise("S5")
@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_cancel_deletes_several_all_or_none(clock: ManualClock, partitioned: bool) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=partitioned)
        due = clock.wall() + MINUTE
        scheduled = [await bus.schedule("q", msg(f"{n}"), due) for n in range(5)]
        await bus.cancel_scheduled("q", scheduled[:1])
        before = picture(bus, "q")
        for wrong in (scheduled[0], 10**6, 1 << 60, -1):
            with pytest.raises(MessageNotFound):
                await bus.cancel_scheduled("q", [*scheduled[1:3], wrong])
        assert picture(bus, "q") == before, "all or none"
        await bus.cancel_scheduled("q", scheduled[1:3])
        await pass_ms(bus, clock, MINUTE)
        assert sorted(bodies(await get(bus, "q"))) == ["3", "4"]
        for number in scheduled:
            with pytest.raises(MessageNotFound):
                await bus.cancel_scheduled("q", [number])


@pytest.mark.promise("S6", "S7")
@run
async def test_a_receiver_learns_after_a_restart_that_a_message_was_scheduled(
    clock: ManualClock, tmp_path: Path
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await bus.schedule("q", msg("later"), clock.wall() + MINUTE)
        await bus.send("q", msg("past", scheduled_enqueue_time_ms=clock.wall() - HOUR))
        await pass_ms(bus, clock, MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        found = await get(bus, "q", 2)
        assert [(one.body, one.was_scheduled) for one in found] == [
            *((b"past", False), (b"later", True))
        ]


@pytest.mark.promise("S6")
@run
async def test_at_its_time_and_not_before_it_is_enqueued_as_if_sent_now(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        due = clock.wall() + MINUTE
        old = await bus.schedule("q", msg("x", time_to_live_ms=MINUTE), due)
        await pass_ms(bus, clock, MINUTE - 1)
        assert await get(bus, "q") == []
        await pass_ms(bus, clock, 1)
        (message,) = bus.peek("q")
        assert message.state == "active"
        assert message.sequence_number == old + 1
        assert message.enqueued_time_ms == due
        for lookup in ([old],):
            with pytest.raises(MessageNotFound):
                await bus.cancel_scheduled("q", lookup)
        await pass_ms(bus, clock, MINUTE - 1)
        assert bus.queue("q").active_count == 1, "its time to live counts from its activation"
        await pass_ms(bus, clock, 1)
        assert bus.queue("q").active_count == 0


@pytest.mark.promise("S6")
@run
async def test_messages_due_in_one_moment_come_in_the_order_of_their_times(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        for body, wait in (("c", 3), ("a", 1), ("b", 2), ("a2", 1)):
            await bus.schedule("q", msg(body), clock.wall() + wait * SECOND)
        await pass_ms(bus, clock, MINUTE)
        assert bodies(await get(bus, "q")) == ["a", "a2", "b", "c"]


@pytest.mark.promise("S7")
@pytest.mark.parametrize("clean", [True, False])
@run
async def test_scheduled_messages_are_peeked_survive_and_come_due_while_the_bus_is_down(
    tmp_path: Path, clock: ManualClock, clean: bool
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        for n, wait in enumerate((1, 2, 60)):
            await bus.schedule("q", msg(f"{n}"), clock.wall() + wait * MINUTE)
        assert [m.state for m in bus.peek("q")] == ["scheduled"] * 3
        if not clean:
            crash(bus)
    clock.advance(10 * MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        await pass_ms(bus, clock, 0)
        assert [(m.body, m.state) for m in bus.peek("q")] == [
            (b"2", "scheduled"),
            (b"0", "active"),
            (b"1", "active"),
        ]
        assert bodies(await get(bus, "q")) == ["0", "1"]
        assert numbers(peek_everything(bus, "q", where=Filter(state="scheduled"))) == [3]


@pytest.mark.promise("S3", "D9")
@run
async def test_a_full_queue_uses_up_no_number(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", max_size_bytes=500)
        await send(bus, "q", "x" * 300)
        with pytest.raises(QuotaExceeded):
            await send(bus, "q", "x" * 300)
        await get(bus, "q", delete=True)
        assert (await send(bus, "q", "y"))[0].sequence_number == 2


@pytest.mark.promise("S5")
@run
async def test_a_time_that_is_no_time_is_refused(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        for due in (-1, 1.5, "noon", 2**60):
            with pytest.raises(InvalidArgument):
                await bus.schedule("q", msg(), due)  # type: ignore[arg-type]
        assert bus.queue("q").scheduled_count == 0
