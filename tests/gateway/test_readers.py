"""Named readers: what they have not passed is kept for them, and losses are told (R2, R8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onibus import Bus, Filter, errors
from onibus.core.records import READERS
from tests.bus_helpers import (
    DAY,
    HOUR,
    MINUTE,
    Disks,
    ManualClock,
    crash,
    index_in,
    keys_of,
    msg,
    partition_at,
    pass_ms,
    pull,
    reopen_store,
    run,
    send,
    settle,
)
from tests.log_helpers import consume, outcomes, texts, tidy


def rows_kept(bus: Bus) -> int:
    return sum(place.rows for place in partition_at(bus, "q").log.places)


@pytest.mark.promise("R2")
@run
async def test_what_a_reader_has_not_passed_is_kept_for_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "before")
        await consume(bus, "q")
        info = await bus.create_reader("q", "r")
        assert (info.positions, info.lag, info.lost) == ((2,), (0,), (None,))
        await send(bus, "q", "a", "b")
        await consume(bus, "q")
        await send(bus, "q", "c", "d")
        await bus.purge("q")
        tidy(bus)
    async with Bus.open(tmp_path, clock=clock) as bus:
        tidy(bus)
        await settle(bus)
        everything = [(2, "a"), (3, "b"), (4, "c"), (5, "d")]
        assert await texts(bus, "q", 2, reader="r") == everything
        assert bus.queue("q").size_bytes == 0, "it does not count to the quota"
        assert bus.readers("q")[0].lag == (4,)
        await bus.move_reader("q", "r", [4], info.incarnation)
        await pass_ms(bus, clock, 5_000)
        assert rows_kept(bus) == 2, "what it has passed goes by itself"
        assert await texts(bus, "q", 4) == everything[2:]
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bus.readers("q")[0].positions == (4,), "positions are durable"
        await bus.delete_reader("q", "r")
        await pass_ms(bus, clock, 5_000)
        assert rows_kept(bus) == 0
        assert bus.readers("q") == []


@pytest.mark.promise("R2")
@run
async def test_the_slowest_of_several_readers_and_the_retention_decide(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        first = await bus.create_reader("q", "first")
        await bus.create_reader("q", "second", start="earliest")
        await send(bus, "q", *"abcd")
        await consume(bus, "q")
        await bus.move_reader("q", "first", [5], first.incarnation)
        await bus.move_reader("q", "second", [3], first.incarnation)
        tidy(bus)
        assert rows_kept(bus) == 4, "the retention keeps them"
        await pass_ms(bus, clock, 2 * HOUR)
        assert rows_kept(bus) == 2, "the second reader keeps these"
        assert bus.log_positions("q").earliest == (3,)
        late = await bus.create_reader("q", "late", start="latest")
        assert late.positions == (5,)
        at = await bus.create_reader("q", "at", start=[4])
        assert (at.positions, at.lag) == ((4,), (1,))
        with pytest.raises(errors.LogGap) as gap:
            await bus.create_reader("q", "gone", start=[1])
        assert (gap.value.first, gap.value.last) == (1, 2)
        assert [info.name for info in bus.readers("q")] == ["at", "first", "late", "second"]


@pytest.mark.promise("R2")
@pytest.mark.parametrize("limit", ["age", "bytes"])
@run
async def test_a_reader_past_its_limit_is_told_what_it_has_lost(
    clock: ManualClock, limit: str
) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        limits = {"age": {"reader_age_ms_max": DAY}, "bytes": {"reader_bytes_max": 2_500}}[limit]
        await bus.create_queue("q", **limits)
        info = await bus.create_reader("q", "slow")
        await bus.create_reader("q", "fast")
        await send(bus, "q", "a" * 1_000, "b" * 1_000)
        await consume(bus, "q")
        await pass_ms(bus, clock, DAY - MINUTE)
        assert [number for number, _ in await texts(bus, "q", 1, reader="slow")] == [1, 2]
        assert bus.readers("q")[1].lost == (None,)
        await bus.move_reader("q", "fast", [3], info.incarnation)
        await send(bus, "q", "c" * 1_000, "d" * 1_000)
        await consume(bus, "q")
        await pass_ms(bus, clock, 2 * MINUTE)
    async with disks.bus(clock) as bus:
        tidy(bus)
        fast, slow = bus.readers("q")
        assert slow.lost == ((1, 2),)
        assert slow.positions == (1,), "it is not moved behind its back"
        assert (fast.lost, fast.lag) == ((None,), (2,))
        with pytest.raises(errors.ReaderBehind, match="'slow' was left behind") as lost:
            await texts(bus, "q", 1, reader="slow")
        assert (lost.value.first, lost.value.last) == (1, 2)
        with pytest.raises(errors.LogGap) as gap:
            await texts(bus, "q", 1)
        assert not isinstance(gap.value, errors.ReaderBehind)
        await bus.move_reader("q", "slow", [3], info.incarnation)
        assert [number for number, _ in await texts(bus, "q", 3, reader="slow")] == [3, 4]
        assert bus.readers("q")[1].lost == (None,)


@pytest.mark.promise("R2")
@run
async def test_what_waits_to_be_delivered_is_not_counted_to_a_reader(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", reader_bytes_max=100, reader_age_ms_max=MINUTE)
        await bus.create_reader("q", "r")
        await send(bus, "q", "x" * 1_000, "y" * 1_000)
        await pass_ms(bus, clock, HOUR)
        assert bus.readers("q")[0].lost == (None,)
        assert len(await texts(bus, "q", 1, reader="r")) == 2, "old and large, and still there"
        await consume(bus, "q", 1)
        tidy(bus)
        assert bus.readers("q")[0].lost == ((1, 1),)


@pytest.mark.promise("R2")
@run
async def test_a_position_that_is_not_durable_lets_nothing_go(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    await bus.create_queue("q")
    info = await bus.create_reader("q", "r")
    await send(bus, "q", "a", "b")
    await consume(bus, "q")
    await settle(bus)
    disks.open["namespace"].fail_next(kept=False)
    with pytest.raises(errors.Unknown):
        await bus.move_reader("q", "r", [3], info.incarnation)
    tidy(bus)
    await settle(bus)
    crash(bus)
    async with disks.bus(clock) as bus:
        tidy(bus)
        assert bus.readers("q")[0].positions == (1,)
        assert await texts(bus, "q", 1, reader="r") == [(1, "a"), (2, "b")]


@pytest.mark.promise("R2")
@run
async def test_moves_asked_for_while_another_is_on_its_way(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q")
        info = await bus.create_reader("q", "r")
        await send(bus, "q", *"abcdef")
        await consume(bus, "q")
        moves = [bus.move_reader("q", "r", [n], info.incarnation) for n in (2, 3, 3, 6)]
        await asyncio.gather(*moves)
        await pass_ms(bus, clock, 5_000)
        assert bus.readers("q")[0].positions == (6,)
        assert rows_kept(bus) == 1


@pytest.mark.promise("R2")
@run
async def test_a_reader_made_while_messages_are_on_their_way_misses_none(
    clock: ManualClock,
) -> None:
    """A topic without subscriptions: its rows go at once where nobody reads by name."""
    disks = Disks()
    bus = await disks.bus(clock)
    await bus.create_topic("t")
    sends = [asyncio.ensure_future(bus.send("t", msg(f"{n}"))) for n in range(50)]
    await asyncio.sleep(0)
    making = asyncio.ensure_future(bus.create_reader("t", "r", start="latest"))
    sends += [asyncio.ensure_future(bus.send("t", msg(f"{n}"))) for n in range(50, 100)]
    start = (await making).positions[0]
    numbers = [one.sequence_number for one in await asyncio.gather(*sends)]
    crash(bus)
    async with disks.bus(clock) as bus:
        found = [number for number, _ in await texts(bus, "t", start, reader="r")]
        assert found == [number for number in numbers if number >= start]
        assert len(found) >= 50


@pytest.mark.promise("R2")
@run
async def test_a_reader_is_not_ahead_of_what_a_failed_commit_left(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "a")
        await settle(bus)
        disks.open["main"].fail_next(kept=False)
        lost = asyncio.ensure_future(bus.send("q", msg("lost")))
        while partition_at(bus, "q").log.next_ordinal == 2:
            await asyncio.sleep(0)
        with pytest.raises(errors.Unknown):
            await bus.create_reader("q", "r", start="latest")
        with pytest.raises(errors.Unknown):
            await lost
        assert bus.readers("q") == []
        assert disks.open["namespace"].tables[READERS] == {}
        await reopen_store(bus, "main")
        assert (await bus.create_reader("q", "r", start="latest")).positions == (2,)
        await send(bus, "q", "b")
        assert await texts(bus, "q", 2, reader="r") == [(2, "b")]


@pytest.mark.promise("R2", "R8")
@run
async def test_readers_of_partitions_of_which_one_store_is_down(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock, stores=["one", "two"]) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        info = await bus.create_reader("q", "r")
        up, down = index_in(bus, "q", "one"), index_in(bus, "q", "two")
        for index in (up, down):
            await bus.send("q", msg("x", partition_key=keys_of(index)[0]))
        await consume(bus, "q")
        tidy(bus)
        await settle(bus)
        pull(bus, "two")
        moved = list(info.positions)
        moved[up] += 1
        await bus.move_reader("q", "r", moved, info.incarnation)
        (now,) = bus.readers("q")
        assert (now.positions[up], now.lag[up]) == (moved[up], 0)
        assert (now.positions[down], now.lag[down]) == (moved[down], None)
        moved[down] += 1
        with pytest.raises(errors.PartitionOffline):
            await bus.move_reader("q", "r", moved, info.incarnation)
        with pytest.raises(errors.PartitionOffline):
            await bus.create_reader("q", "another")
        await reopen_store(bus, "two")
        tidy(bus)
        assert len(await texts(bus, "q", info.positions[down], partition=down)) == 1
        await bus.move_reader("q", "r", moved, info.incarnation)
        tidy(bus)
        assert bus.readers("q")[0].lag == (0,) * 16


@pytest.mark.promise("R8")
@run
async def test_an_idle_reader_goes_by_itself(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        info = await bus.create_reader("q", "idle", idle_ms=HOUR)
        await bus.create_reader("q", "patient")
        await send(bus, "q", "a")
        await consume(bus, "q")
        await pass_ms(bus, clock, HOUR - 1)
        await texts(bus, "q", 1, reader="idle")
        await pass_ms(bus, clock, HOUR - 1)
        await bus.move_reader("q", "idle", [1], info.incarnation)
        await pass_ms(bus, clock, HOUR - 1)
    clock.advance(5 * HOUR)
    async with disks.bus(clock) as bus:
        await settle(bus)
        assert [one.name for one in bus.readers("q")] == ["idle", "patient"], "down is not idle"
        await pass_ms(bus, clock, HOUR)
        assert [one.name for one in bus.readers("q")] == ["patient"]
        assert len(disks.open["namespace"].tables[READERS]) == 1


@pytest.mark.promise("R8")
@run
async def test_deleting_an_entity_removes_its_readers(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_topic("t")
        name = await bus.create_subscription("t", "s")
        old = await bus.create_reader("t", "r", idle_ms=HOUR)
        await bus.create_reader(name, "o", log="outcomes")
        assert len(disks.open["namespace"].tables[READERS]) == 2
        await bus.delete_topic("t")
        assert disks.open["namespace"].tables[READERS] == {}
        await bus.create_topic("t")
        assert bus.readers("t") == []
        with pytest.raises(errors.EntityNotFound):
            await bus.delete_reader("t", "r")
        await bus.create_reader("t", "r")
        with pytest.raises(errors.EntityReplaced):
            await bus.move_reader("t", "r", [1], old.incarnation)
        await pass_ms(bus, clock, 2 * HOUR)
        assert [one.name for one in bus.readers("t")] == ["r"]


@pytest.mark.promise("R8")
@run
async def test_an_entity_that_is_deleted_while_a_reader_of_it_is_made(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        made, _ = await asyncio.gather(
            bus.create_reader("q", "r"), bus.delete_queue("q"), return_exceptions=True
        )
        if isinstance(made, BaseException):
            assert isinstance(made, errors.EntityNotFound)
        assert bus.queues() == []
    async with disks.bus(clock) as bus:
        assert disks.open["namespace"].tables[READERS] == {}, "nothing is left of it"


@pytest.mark.promise("R8")
@run
async def test_a_subscription_that_is_deleted_while_its_reader_moves(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_topic("t")
        name = await bus.create_subscription("t", "s")
        info = await bus.create_reader(name, "r", log="outcomes")
        await send(bus, "t", "a")
        await consume(bus, name)
        await asyncio.gather(
            bus.delete_subscription(name),
            bus.move_reader(name, "r", [2], info.incarnation),
            bus.create_reader(name, "another", log="outcomes"),
            return_exceptions=True,
        )
        await settle(bus)
        assert bus.topic("t").subscriptions == ()
        await send(bus, "t", "b")
        assert bus.alarms == []


@pytest.mark.promise("R2", "R4")
@run
async def test_a_reader_of_outcomes_keeps_them(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "unseen")
        await consume(bus, "q")
        assert await outcomes(bus, "q") == [], "nobody wanted to know"
        info = await bus.create_reader("q", "r", log="outcomes")
        assert info.positions == (1,)
        await send(bus, "q", *"abc")
        await consume(bus, "q")
        tidy(bus)
        assert rows_kept(bus) == 0, "the messages themselves need not be kept"
        expected = [(1, 2, "completed"), (2, 3, "completed"), (3, 4, "completed")]
        assert await outcomes(bus, "q", reader="r") == expected
        await send(bus, "q", "d")
        await consume(bus, "q")
        await bus.move_reader("q", "r", [3], info.incarnation)
        tidy(bus)
        await settle(bus)
    async with disks.bus(clock) as bus:
        assert bus.readers("q")[0].lag == (2,)
        assert await outcomes(bus, "q", 4, reader="r") == [(4, 5, "completed")]
        await bus.move_reader("q", "r", [5], info.incarnation)
        tidy(bus)
        with pytest.raises(errors.ReaderBehind):
            await outcomes(bus, "q", 2, reader="r")
        with pytest.raises(errors.InvalidOperation, match="reads outcomes"):
            await texts(bus, "q", 6, reader="r")
        await bus.delete_reader("q", "r")
        await send(bus, "q", "e")
        await consume(bus, "q")
        assert bus.log_positions("q", log="outcomes").latest == (5,), "not numbered either"


@pytest.mark.promise("R2")
@run
async def test_a_reader_of_outcomes_past_its_limit_is_told_what_it_has_lost(
    clock: ManualClock,
) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", reader_age_ms_max=HOUR, reader_bytes_max=500)
        await bus.create_reader("q", "r", log="outcomes")
        for n in range(100):
            await send(bus, "q", f"{n}")
            await consume(bus, "q")
        tidy(bus)
        (info,) = bus.readers("q")
        assert info.lost[0] is not None
        assert info.lost[0][0] == 1
        assert 0 < info.lost[0][1] < 99, "the latest are kept"
        await pass_ms(bus, clock, 2 * HOUR)
        assert bus.readers("q")[0].lost == ((1, 100),)
        with pytest.raises(errors.ReaderBehind) as lost:
            await outcomes(bus, "q", reader="r")
        assert (lost.value.first, lost.value.last) == (1, 100)


@run
async def test_compaction_and_purge_leave_what_a_reader_wants(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q")
        for first in (0, 15, 30):
            await bus.send_batch("q", [msg(f"{first + n}" + "x" * 900) for n in range(15)])
        info = await bus.create_reader("q", "r", start=[21])
        async with bus.receiver("q") as receiver:
            held = await receiver.receive(40)
            await receiver.complete(*[message for message in held if message.sequence_number % 4])
        await bus.purge("q", Filter(body_contains=b"44"))
        tidy(bus)
        await settle(bus)
        with pytest.raises(errors.LogGap):
            await texts(bus, "q", 1)
        assert bus.log_positions("q").earliest == (16,), "a block that it wants part of stays whole"
        assert [number for number, _ in await texts(bus, "q", 21)] == list(range(21, 46))
        await bus.move_reader("q", "r", [46], info.incarnation)
        tidy(bus)
        assert rows_kept(bus) < 25
        (info,) = bus.readers("q")
        assert (info.lost, info.lag) == ((None,), (0,))


@run
async def test_a_reader_of_messages_belongs_to_the_topic(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_topic("t")
        name = await bus.create_subscription("t", "s")
        with pytest.raises(errors.InvalidOperation, match="read that of t"):
            await bus.create_reader(name, "r")
        await bus.create_reader(name, "r", log="outcomes")
        await bus.create_reader("t", "r")
        await send(bus, "t", "a")
        await consume(bus, name)
        assert await outcomes(bus, name, reader="r") == [(1, 1, "completed")]
        assert await texts(bus, "t", reader="r") == [(1, "a")]


@pytest.mark.promise("R2", "R4")
@pytest.mark.parametrize("kind", ["queue", "subscription"])
@run
async def test_a_position_in_outcomes_that_are_not_recorded_is_a_gap(
    clock: ManualClock, kind: str
) -> None:
    async with Disks().bus(clock) as bus:
        name = sent_to = "q"
        if kind == "queue":
            await bus.create_queue("q")
        else:
            sent_to = "t"
            await bus.create_topic("t")
            name = await bus.create_subscription("t", "s")
        await bus.create_reader(name, "r", log="outcomes")
        await send(bus, sent_to, "a", "b")
        await consume(bus, name)
        await bus.create_reader(name, "second", log="outcomes", start=[3])
        await bus.delete_reader(name, "second")
        await bus.delete_reader(name, "r")
        with pytest.raises(errors.LogGap, match="records no outcomes") as gap:
            await bus.create_reader(name, "r", log="outcomes", start=[3])
        assert (gap.value.first, gap.value.last) == (3, 3)
        await bus.create_reader(name, "r", log="outcomes")
