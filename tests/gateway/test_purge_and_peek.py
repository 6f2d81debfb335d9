"""Purge (X2) and peek with a filter (X5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from onibus import Bus, Filter, ReceivedMessage
from onibus.core.block import NEVER
from onibus.core.marks import Marks
from onibus.core.runs import Runs
from onibus.core.subscription import Subscription
from onibus.gateway import settling
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    ManualClock,
    bodies,
    get,
    get_one,
    keys_of,
    msg,
    run,
    send,
)

BOTH = pytest.mark.parametrize("partitioned", [False, True])


async def one_of_each(bus: Bus, clock: ManualClock) -> None:
    """Leave three active messages, and one each that is deferred, scheduled, dead-lettered."""
    await send(bus, "q", "deferred", "dead", "active 1")
    receiver = bus.receiver("q")
    for message in await get(bus, "q"):
        if message.body == b"deferred":
            await receiver.defer(message)
        elif message.body == b"dead":
            await receiver.dead_letter(message)
        else:
            await receiver.abandon(message)
    await send(bus, "q", "active 2", "active 3")
    await bus.schedule("q", msg("scheduled"), clock.wall() + HOUR)


def counts(bus: Bus) -> tuple[int, int, int, int]:
    info = bus.queue("q")
    return (info.active_count, info.deferred_count, info.scheduled_count, info.dead_lettered_count)


@pytest.mark.promise("X2")
@BOTH
@pytest.mark.parametrize(
    ("state", "purged", "left"),
    [
        ("active", 3, (0, 1, 1, 1)),
        ("deferred", 1, (3, 0, 1, 1)),
        ("scheduled", 1, (3, 1, 0, 1)),
        ("dead-lettered", 1, (3, 1, 1, 0)),
        (None, 5, (0, 0, 0, 1)),
    ],
)
@run
async def test_purge_by_state(
    tmp_path: Path,
    clock: ManualClock,
    state: str | None,
    purged: int,
    left: tuple[int, int, int, int],
    partitioned: bool,
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=partitioned)
        await one_of_each(bus, clock)
        assert counts(bus) == (3, 1, 1, 1)
        assert await bus.purge("q", Filter(state=state)) == purged
        assert counts(bus) == left
        bus.broker.close()  # durable when it is told
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert counts(bus) == left
        assert await bus.purge("q", Filter(state=state)) == 0


@pytest.mark.promise("X2")
@run
async def test_purge_by_age_or_filter(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "old apple", "old pear")
        clock.advance(HOUR)
        await send(bus, "q", "new apple", "new pear")
        old_pears = Filter(enqueued_before_ms=clock.wall(), body_contains=b"pear")
        assert await bus.purge("q", old_pears) == 1
        assert [m.body for m in bus.peek("q")] == [b"old apple", b"new apple", b"new pear"]
        assert await bus.purge("q", Filter(enqueued_before_ms=clock.wall() - MINUTE)) == 1
        assert bodies(await get(bus, "q")) == ["new apple", "new pear"]


@pytest.mark.promise("X2")
@run
async def test_purge_of_many_leaves_what_is_held(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await bus.send_batch("q", [msg(f"{n}") for n in range(2_500)])
        held = await get_one(bus, "q")
        assert await bus.purge("q") == 2_499
        await bus.receiver("q").complete(held)
        assert bus.queue("q").active_count == bus.queue("q").size_bytes == 0


@pytest.mark.promise("X2", "D5")
@BOTH
@run
async def test_purge_forgets_ids_only_when_told(
    tmp_path: Path, clock: ManualClock, partitioned: bool
) -> None:
    batch = [msg(message_id=f"{n}") for n in range(20)]
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue(
            "q", requires_duplicate_detection=True, enable_partitioning=partitioned
        )
        await bus.send_batch("q", batch)
        assert await bus.purge("q") == 20
        assert all(s.duplicate_of is not None for s in await bus.send_batch("q", batch))
        assert await bus.purge("q", forget_ids=True) == 0
        bus.broker.close()
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert all(s.duplicate_of is None for s in await bus.send_batch("q", batch))
        assert all(s.duplicate_of is not None for s in await bus.send_batch("q", batch))


@pytest.mark.promise("X2", "B4")
@run
async def test_purge_of_one_session(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_session=True)
        await send(bus, "q", "1", "2", session_id="s")
        await send(bus, "q", "3", session_id="t")
        assert await bus.purge("q", Filter(session_id="s")) == 2
        assert [info.session_id for info in bus.sessions("q")] == ["t"]
        async with await bus.accept_session("q") as session:
            assert bodies(await session.receive(5)) == ["3"]


@pytest.mark.promise("X5")
@BOTH
@run
async def test_peek_with_a_filter(clock: ManualClock, partitioned: bool) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=partitioned)
        await one_of_each(bus, clock)
        clock.advance(MINUTE)
        (key,) = keys_of(9, 1)
        await bus.send("q", msg("an apple", session_id=key, message_id="a"))
        await bus.send("q", msg("a pear", session_id=key, message_id="b"))

        def found(**wanted: object) -> list[str]:
            where = Filter(**wanted)  # type: ignore[arg-type]
            return sorted(bodies(peek_all(bus, where)))

        assert found(state="deferred") == ["deferred"]
        assert found(state="scheduled") == ["scheduled"]
        assert found(state="dead-lettered") == ["dead"]
        assert found(state="active", enqueued_before_ms=clock.wall()) == [
            "active 1",
            "active 2",
            "active 3",
        ]
        assert found(enqueued_from_ms=clock.wall()) == ["a pear", "an apple"]
        assert found(session_id=key) == ["a pear", "an apple"]
        assert found(body_contains=b"app") == ["an apple"]
        assert found(message_id="b") == ["a pear"]
        assert found(body_contains=b"active", message_id="b") == []


def peek_all(bus: Bus, where: Filter) -> list:
    seen: list = []
    start = 0
    while page := bus.peek("q", start=start, limit=2, where=where):
        seen += page
        start = page[-1].sequence_number + 1
    return seen


@pytest.mark.promise("P7")
@run
async def test_peek_begins_at_the_lowest_number_and_skips_what_is_gone(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", *"abcdef")
        held = await get(bus, "q", 4)
        await bus.receiver("q").complete(held[0], held[2])
        assert [m.body for m in bus.peek("q")] == [b"b", b"d", b"e", b"f"]
        assert [m.body for m in bus.peek("q", start=3, limit=2)] == [b"d", b"e"]
        assert bus.peek("q", start=7) == bus.peek("q", start=10**9) == []
        assert bus.peek("q")[0].state == "locked"


@pytest.mark.promise("X5")
@run
async def test_a_filter_is_sought_in_slices_with_others_in_between(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = 0
    view = Subscription.view

    def counted(self: Subscription, *args: Any) -> ReceivedMessage:
        nonlocal views
        views += 1
        return view(self, *args)

    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        count = 4 * settling.PEEK_SLICE
        await bus.send_batch("q", [msg(f"{n}", message_id=f"{n}") for n in range(count)])
        monkeypatch.setattr(Subscription, "view", counted)
        for wanted, bodies_found in ((f"{count - 1}", [f"{count - 1}"]), ("nobody's", [])):
            views, turns = 0, [0]
            where = Filter(message_id=wanted)
            reply: asyncio.Future[list[ReceivedMessage]] = (
                asyncio.get_running_loop().create_future()
            )
            settling.peek_in_slices(bus.broker, "q", 0, 10, where, False, reply)
            while not reply.done():
                turns.append(views)
                await asyncio.sleep(0)
            turns.append(views)
            assert bodies(reply.result()) == bodies_found
            assert views == count
            assert max(after - before for before, after in pairwise(turns)) <= settling.PEEK_SLICE


@pytest.mark.promise("X2")
@pytest.mark.parametrize("state", ["deferred", "scheduled"])
@run
async def test_a_purge_of_what_is_set_aside_goes_through_it_once(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    looks = 0

    def counting(walk: Callable[..., Iterator[int]]) -> Callable[..., Iterator[int]]:
        def counted(*args: Any) -> Iterator[int]:
            nonlocal looks
            for ordinal in walk(*args):
                looks += 1
                yield ordinal

        return counted

    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        if state == "scheduled":
            due = clock.wall() + HOUR
            await bus.send_batch("q", [msg(scheduled_enqueue_time_ms=due) for _ in range(100)])
        else:
            await send(bus, "q", *[""] * 100)
            receiver = bus.receiver("q")
            for message in await receiver.receive(100):
                await receiver.defer(message)
        monkeypatch.setattr(settling, "PURGE_SLICE", 5)
        monkeypatch.setattr(Marks, "__iter__", counting(Marks.__iter__))
        monkeypatch.setattr(Runs, "ordinals", counting(Runs.ordinals))
        assert await bus.purge("q", Filter(state=state, message_id="nobody's")) == 0
        assert looks == 100


@pytest.mark.promise("L2", "L5")
@run
async def test_what_is_completed_before_its_time_is_set_aside_no_more(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "deferred for a while")
        receiver = bus.receiver("q")
        message = await get_one(bus, "q")
        await receiver.defer(message, delay_ms=MINUTE)
        await receiver.complete(*await receiver.receive_deferred([message.sequence_number]))
        assert peek_all(bus, Filter(state="deferred")) == []
        subscription = bus.broker.find("q").partitions[0].online().subscription
        assert (subscription.aside.count, subscription.next_due()) == (0, NEVER)
