"""Counters at the end of their range: 63 bits, or 48 in a partitioned entity (S8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onibus import Bus, Rule, SqlAction, TrueFilter
from onibus.bus import OpeningBus
from onibus.core.errors import MessageNotFound
from onibus.core.invariants import violations
from tests.bus_helpers import (
    KEYS,
    MINUTE,
    SECOND,
    ManualClock,
    bodies,
    crash,
    get,
    msg,
    numbers,
    partition_at,
    pass_ms,
    peek_everything,
    run,
    send,
)
from tests.log_helpers import consume, outcomes, texts
from tests.simulator.counters import set_counter

pytestmark = pytest.mark.promise("S8")


class Width:
    """A kind of entity by the width of its counter, and how messages reach its partition."""

    def __init__(self, partitioned: bool) -> None:
        self.partitioned = partitioned
        self.index = 3 if partitioned else 0
        self.base = self.index << 48
        self.span = 1 << (48 if partitioned else 63)
        self.key: dict[str, Any] = {"partition_key": KEYS[3]} if partitioned else {}
        self.session = KEYS[3]

    def near_the_end(self, bus: Bus, name: str, left: int) -> None:
        """Set the counter to that many numbers before its roll-over."""
        set_counter(bus.broker, name, self.span - left, self.index)

    def number(self, past: int) -> int:
        """Return the number so far past the roll-over, or before it."""
        return self.base + past % self.span

    def numbers(self, *past: int) -> list[int]:
        return [self.number(one) for one in past]


@pytest.fixture(params=[False, True], ids=["63 bits", "48 bits"])
def width(request: pytest.FixtureRequest) -> Width:
    return Width(request.param)


@pytest.fixture
def opened(tmp_path: Path, clock: ManualClock) -> Callable[[], OpeningBus]:
    return lambda: Bus.open(tmp_path, clock=clock)


def sound(bus: Bus, name: str, width: Width) -> None:
    assert violations(partition_at(bus, name, width.index)) == []


@pytest.mark.parametrize("clean", [True, False])
@run
async def test_the_order_does_not_wrap(
    opened: Callable[[], OpeningBus], width: Width, clean: bool
) -> None:
    expected = width.numbers(-3, -2, -1, 0, 1, 2)
    async with opened() as bus:
        await bus.create_queue("q", enable_partitioning=width.partitioned)
        width.near_the_end(bus, "q", 3)
        sent = await send(bus, "q", *"abcd", **width.key)
        assert [one.sequence_number for one in sent] == expected[:4]
        if not clean:
            crash(bus)
    async with opened() as bus:
        more = await bus.send_batch("q", [msg(text, **width.key) for text in "ef"])
        assert [one.sequence_number for one in more] == expected[4:]
        assert numbers(peek_everything(bus, "q")) == expected
        assert numbers(peek_everything(bus, "q", limit=1)) == expected, "page by page"
        received = await get(bus, "q")
        assert bodies(received) == list("abcdef")
        assert numbers(received) == expected
        sound(bus, "q", width)
    async with opened() as bus:
        receiver = bus.receiver("q")
        for message in received:
            await receiver.complete(message)
        assert bus.queue("q").active_count == 0
        sound(bus, "q", width)
    async with opened() as bus:
        assert numbers(peek_everything(bus, "q")) == []
        (sent_again,) = await send(bus, "q", "g", **width.key)
        assert sent_again.sequence_number == width.number(3)


@run
async def test_a_number_in_use_is_not_issued_again(
    opened: Callable[[], OpeningBus], clock: ManualClock, width: Width
) -> None:
    async with opened() as bus:
        await bus.create_queue("q", enable_partitioning=width.partitioned)
        await send(bus, "q", "1", "2", "3", **width.key)
        receiver = bus.receiver("q")
        first, second, third = await receiver.receive(3)
        await receiver.defer(first)
        await receiver.dead_letter(second, reason="why")
        await receiver.complete(third)
        due = clock.wall() + MINUTE
        assert await bus.schedule("q", msg("4", **width.key), due) == width.number(4)
        width.near_the_end(bus, "q", 1)
    async with opened() as bus:
        sent = await bus.send_batch("q", [msg(text, **width.key) for text in "abcd"])
        # 1 is deferred, 2 a dead-lettered message, 4 scheduled.
        given = [one.sequence_number for one in sent]
        assert given == width.numbers(-1, 0, 3, 5)
        everything = width.numbers(1, 4, -1, 0, 3, 5)
        for limit in (1, 2, 4, 100):
            assert numbers(peek_everything(bus, "q", limit=limit)) == everything
        sound(bus, "q", width)
    async with opened() as bus:
        receiver = bus.receiver("q")
        assert bodies(await receiver.receive_deferred([width.number(1)])) == ["1"]
        letters = peek_everything(bus, "q", dead_letters=True)
        assert numbers(letters) == [width.number(2)]
        await bus.cancel_scheduled("q", [width.number(4)])
        assert bodies(await receiver.receive(10)) == list("abcd")
        with pytest.raises(MessageNotFound):
            await receiver.receive_deferred([width.number(0)])
        sound(bus, "q", width)


@run
async def test_messages_are_scheduled_and_come_due_past_the_end(
    opened: Callable[[], OpeningBus], clock: ManualClock, width: Width
) -> None:
    async with opened() as bus:
        await bus.create_queue("q", enable_partitioning=width.partitioned)
        width.near_the_end(bus, "q", 2)
        due = clock.wall() + MINUTE
        given = [await bus.schedule("q", msg(text, **width.key), due) for text in "abcd"]
        assert given == width.numbers(-2, -1, 0, 1)
        await bus.cancel_scheduled("q", given[1:3])
        with pytest.raises(MessageNotFound):
            await bus.cancel_scheduled("q", [given[2]])
    clock.advance(2 * MINUTE)
    async with opened() as bus:
        await pass_ms(bus, clock, SECOND)
        received = await get(bus, "q")
        assert bodies(received) == ["a", "d"]
        assert numbers(received) == width.numbers(2, 3)


@run
async def test_sessions_keep_their_order(opened: Callable[[], OpeningBus], width: Width) -> None:
    async with opened() as bus:
        await bus.create_queue("q", requires_session=True, enable_partitioning=width.partitioned)
        width.near_the_end(bus, "q", 2)
        await send(bus, "q", *"abcd", session_id=width.session)
        async with await bus.accept_session("q", width.session) as session:
            held = await session.receive(2)
            assert numbers(held) == width.numbers(-2, -1)
            await session.defer(held[1])
            await session.abandon(held[0])
    async with opened() as bus:
        async with await bus.accept_session("q") as session:
            assert bodies(await session.receive(10)) == ["a", "c", "d"]
            (deferred,) = await session.receive_deferred([width.number(-1)])
            assert bodies([deferred]) == ["b"]
            await session.complete(deferred)
        (listed,) = bus.sessions("q")
        assert listed.ready_count == 3
        sound(bus, "q", width)


@run
async def test_duplicates_name_the_number_that_they_repeat(
    opened: Callable[[], OpeningBus], width: Width
) -> None:
    async with opened() as bus:
        await bus.create_queue(
            "q", requires_duplicate_detection=True, enable_partitioning=width.partitioned
        )
        width.near_the_end(bus, "q", 1)
        for name in "ab":
            await bus.send("q", msg(name, message_id=name, **width.key))
    async with opened() as bus:
        again = [
            await bus.send("q", msg(name, message_id=name, **width.key)) for name in ("a", "b")
        ]
        assert [one.duplicate_of for one in again] == width.numbers(-1, 0)
        listed = [number for _, _, number in bus.duplicates("q")]
        assert listed == width.numbers(-1, 0)
    async with opened() as bus:
        assert [number for _, _, number in bus.duplicates("q")] == listed


@run
async def test_the_log_is_read_past_the_end(opened: Callable[[], OpeningBus], width: Width) -> None:
    how = {"partition": width.index}
    async with opened() as bus:
        await bus.create_queue("q", enable_partitioning=width.partitioned, retention_ms=60 * MINUTE)
        width.near_the_end(bus, "q", 2)
        await bus.create_reader("q", "r", start="latest")
        await send(bus, "q", *"abcd", **width.key)
        await consume(bus, "q")
    async with opened() as bus:
        given = width.numbers(-2, -1, 0, 1)
        rows = list(zip(given, "abcd", strict=True))
        assert await texts(bus, "q", given[0], **how) == rows
        assert await texts(bus, "q", given[1], given[3], **how) == rows[1:3]
        assert await texts(bus, "q", given[2], **how) == rows[2:]
        ends = bus.log_positions("q")
        assert (ends.earliest[width.index], ends.latest[width.index]) == (given[0], width.number(2))
        assert bus.log_reach("q", width.index, given[0], 1 << 20) == width.number(2)
        (reader,) = bus.readers("q")
        assert reader.positions[width.index] == given[0]
        assert reader.lag[width.index] == 4
        positions = list(reader.positions)
        positions[width.index] = given[2]
        await bus.move_reader("q", "r", positions, reader.incarnation)
        (reader,) = bus.readers("q")
        assert reader.lag[width.index] == 2
        assert [one[1] for one in await outcomes(bus, "q", **how)] == given


@run
async def test_claims_hold_what_lies_on_both_sides(
    opened: Callable[[], OpeningBus], width: Width
) -> None:
    async with opened() as bus:
        await bus.create_queue("q", enable_partitioning=width.partitioned)
        width.near_the_end(bus, "q", 1)
        await send(bus, "q", *"abc", **width.key)
        claim = await bus.claim("q", "r", 10)
        assert claim is not None
    async with opened() as bus:
        assert numbers(await bus.read_claim("q", "r", claim.number)) == width.numbers(-1, 0, 1)
        letters = {width.number(0): ("why", None)}
        await bus.commit_claim("q", "r", claim.number, dead_letters=letters)
        assert numbers(peek_everything(bus, "q", dead_letters=True)) == [width.number(0)]
        assert bus.queue("q").active_count == 0
        sound(bus, "q", width)


@run
async def test_topics_deal_out_and_copy_past_the_end(
    opened: Callable[[], OpeningBus], width: Width
) -> None:
    async with opened() as bus:
        await bus.create_topic("t", enable_partitioning=width.partitioned)
        await bus.create_subscription("t", "all")
        copying = [Rule("plain", TrueFilter()), Rule("x", TrueFilter(), SqlAction("SET x = 1"))]
        await bus.create_subscription("t", "copies", rules=copying)
        width.near_the_end(bus, "t", 1)
        await send(bus, "t", "a", "b", **width.key)
    async with opened() as bus:
        await send(bus, "t", "c", **width.key)
        everything = "t/subscriptions/all"
        copies = "t/subscriptions/copies"
        assert numbers(peek_everything(bus, everything)) == width.numbers(-1, 1, 3)
        assert numbers(peek_everything(bus, copies)) == width.numbers(-1, 0, 1, 2, 3, 4)
        assert bodies(await get(bus, copies)) == list("aabbcc")
        await consume(bus, everything)
        sound(bus, "t", width)
    async with opened() as bus:
        assert numbers(peek_everything(bus, everything)) == []
        assert numbers(peek_everything(bus, copies)) == width.numbers(-1, 0, 1, 2, 3, 4)
        sound(bus, "t", width)


@run
async def test_forwarding_and_transactions_past_the_end(
    opened: Callable[[], OpeningBus], clock: ManualClock, width: Width
) -> None:
    async with opened() as bus:
        await bus.create_queue("target", enable_partitioning=width.partitioned)
        await bus.create_queue("q", enable_partitioning=width.partitioned)
        width.near_the_end(bus, "q", 1)
        width.near_the_end(bus, "target", 1)
        await send(bus, "q", "a", "b", **width.key)
        receiver = bus.receiver("q")
        first, second = await receiver.receive(2)
        async with bus.transaction() as transaction:
            await transaction.complete(receiver, first)
            await transaction.defer(receiver, second)
            await transaction.send("q", msg("c", **width.key))
        await bus.change_queue("q", forward_to="target")
        await pass_ms(bus, clock, 2 * SECOND)
        (forwarded,) = peek_everything(bus, "target")
        assert forwarded.sequence_number == width.number(-1)
        assert forwarded.message.enqueued_sequence_number == width.number(1)
        await bus.undefer("q", [width.number(0)])
        await pass_ms(bus, clock, 2 * SECOND)
    async with opened() as bus:
        there = peek_everything(bus, "target")
        assert numbers(there) == width.numbers(-1, 0)
        assert [one.message.enqueued_sequence_number for one in there] == width.numbers(1, 0)


@run
async def test_batches_in_arrow_cross_the_end(
    opened: Callable[[], OpeningBus], width: Width
) -> None:
    async with opened() as bus:
        await bus.create_queue("q", enable_partitioning=width.partitioned)
        width.near_the_end(bus, "q", 50)
        columns: dict[str, Any] = {"body": [b"%d" % n for n in range(100)]}
        if width.partitioned:
            columns["partition_key"] = [KEYS[3]] * 100
        sent = await bus.send_arrow("q", pa.table(columns))
        expected = width.numbers(*range(-50, 50))
        assert sent.sequence_number.to_pylist() == expected
    async with opened() as bus:
        assert numbers(peek_everything(bus, "q")) == expected
        received = await get(bus, "q")
        assert bodies(received) == [str(n) for n in range(100)]
        await bus.receiver("q").complete(*received)
        sound(bus, "q", width)


@run
async def test_fifo_groups_past_the_end(opened: Callable[[], OpeningBus]) -> None:
    width = Width(False)
    async with opened() as bus:
        await bus.create_queue("q", fifo=True)
        width.near_the_end(bus, "q", 1)
        for name in "abc":
            await bus.send("q", msg(name, message_id=name, session_id="g"))
        first = await bus.fifo_receiver("q").receive(2, attempt_id="one")
        assert numbers(first) == width.numbers(-1, 0)
    async with opened() as bus:
        receiver = bus.fifo_receiver("q")
        again = await receiver.receive(2, attempt_id="one")
        assert numbers(again) == numbers(first)
        await receiver.complete(*again)
        assert bodies(await receiver.receive(2)) == ["c"]
