"""Transactions: what is sent and settled in one happens together, or not at all (B5, P8)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onibus import Bus
from onibus.core.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    LockLost,
    MessageTooLarge,
    PartitionOffline,
    QuotaExceeded,
)
from onibus.core.limits import TRANSACTION_COUNT_MAX
from onibus.directory.quotas import Quotas
from tests.bus_helpers import (
    MINUTE,
    SECOND,
    Disks,
    ManualClock,
    bodies,
    get,
    get_one,
    keys_of,
    msg,
    pass_ms,
    peek_everything,
    picture,
    pull,
    run,
    send,
    settle,
)
from tests.gateway.fragile import nothing_held
from tests.gateway.topic_helpers import sound, states, there

stores = pytest.mark.parametrize("stores", [("a",), ("a", "b")])


@pytest.mark.promise("B5")
@stores
@run
async def test_all_verbs_together(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("in")
        await bus.create_queue("out")
        await send(bus, "in", "done", "back", "wait", "later", "soon", "dead")
        done, back, wait, later, soon, broken = await get(bus, "in")
        receiver = bus.receiver("in")
        tx = bus.transaction()
        await tx.complete(receiver, done)
        await tx.abandon(receiver, back, properties={"n": 1})
        await tx.abandon(receiver, wait, delay_ms=MINUTE)
        await tx.defer(receiver, later, properties={"n": 2})
        await tx.defer(receiver, soon, delay_ms=MINUTE)
        await tx.dead_letter(receiver, broken, reason="r", description="d", properties={"n": 3})
        await tx.send("out", msg("one"))
        await tx.send_batch("in", [msg("two"), msg("three")])
        assert [state for _, state in states(bus, "in")] == ["locked"] * 6
        assert peek_everything(bus, "out") == []
        sent = await tx.commit()
        assert [one.sequence_number for one in sent] == [1, 7, 8]
        assert there(bus, "out") == ["one"]
        assert states(bus, "in") == [
            ("back", "active"),
            ("wait", "delayed"),
            ("later", "deferred"),
            ("soon", "deferred"),
            ("two", "active"),
            ("three", "active"),
        ]
        assert [m.properties for m in peek_everything(bus, "in")][:3] == [{"n": 1}, {}, {"n": 2}]
        assert [m.delivery_count for m in peek_everything(bus, "in")] == [1, 1, 1, 1, 0, 0]
        (letter,) = peek_everything(bus, "in", dead_letters=True)
        assert (letter.dead_letter_reason, letter.dead_letter_description) == ("r", "d")
        assert letter.properties == {"n": 3}
        await pass_ms(bus, clock, MINUTE)
        assert bodies(await get(bus, "in")) == ["back", "wait", "soon", "two", "three"]
        sound(bus)
        await nothing_held(bus, clock)


@pytest.mark.promise("B5", "D10")
@stores
@run
async def test_a_rollback_leaves_everything_as_it_was(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("in")
        await bus.create_queue("out", requires_duplicate_detection=True)
        await send(bus, "in", "held")
        held = await get_one(bus, "in")
        before = picture(bus, "in"), picture(bus, "out")
        tx = bus.transaction()
        await tx.complete("in", held)
        await tx.send("out", msg("new", message_id="1"))
        await tx.rollback()
        assert (picture(bus, "in"), picture(bus, "out")) == before
        for act in (tx.commit(), tx.send("out", msg()), tx.complete("in", held)):
            with pytest.raises(InvalidOperation, match="rolled back"):
                await act
        await tx.rollback()
        # The lock is what it was, and the id is not recorded.
        await bus.receiver("in").complete(held)
        (sent,) = await send(bus, "out", "new", message_id="1")
        assert (sent.sequence_number, sent.duplicate_of) == (1, None)


@pytest.mark.promise("B5")
@stores
@run
async def test_a_lock_that_was_lost_before_the_commit(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("in", lock_duration_ms=5 * SECOND)
        await bus.create_queue("out")
        await send(bus, "in", "first", "second")
        first = await get_one(bus, "in")
        await pass_ms(bus, clock, 3 * SECOND)
        second = await get_one(bus, "in")
        tx = bus.transaction()
        await tx.complete("in", second, first)
        await tx.send("out", msg("new"))
        clock.advance(2 * SECOND)
        with pytest.raises(LockLost):
            await tx.commit()
        assert peek_everything(bus, "out") == []
        assert states(bus, "in") == [("first", "active"), ("second", "locked")]
        # Nothing was changed: what is left may be rolled back, or settled otherwise.
        await tx.rollback()
        await bus.receiver("in").complete(second)
        with pytest.raises(LockLost):
            await bus.transaction().complete("in", first)


@pytest.mark.promise("B5")
@run
async def test_a_message_that_was_settled_outside_before_the_commit(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("in")
        await bus.create_queue("out")
        await send(bus, "in", "once")
        held = await get_one(bus, "in")

        async def block() -> None:
            async with bus.transaction() as tx:
                await tx.complete("in", held)
                await tx.send("out", msg("new"))
                await bus.receiver("in").abandon(held)

        with pytest.raises(LockLost):
            await block()
        assert (there(bus, "in"), there(bus, "out")) == (["once"], [])


@pytest.mark.promise("P8")
@stores
@run
async def test_one_key_where_it_is_partitioned(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("p", enable_partitioning=True)
        await bus.create_queue("d", enable_partitioning=True, requires_duplicate_detection=True)
        await bus.create_queue("plain")
        one, other = keys_of(3)
        async with bus.transaction() as tx:
            await tx.send("p", msg("1", partition_key=one))
            await tx.send("p", msg("2", session_id=one))
            await tx.send("d", msg("3", message_id=other))
            await tx.send_batch("plain", [msg("4"), msg("5", partition_key=other)])
        assert sorted(there(bus, "p") + there(bus, "d") + there(bus, "plain")) == list("12345")
        # Two keys of one partition are two keys; no key is none; a MessageId is one only at "d".
        for wrong in (
            [msg("x", partition_key=one), msg("x", partition_key=other)],
            [msg("x", partition_key=one), msg("x")],
            [msg("x")],
            [msg("x", message_id="no key here")],
        ):
            tx = bus.transaction()
            await tx.send("plain", msg("x"))
            with pytest.raises(InvalidOperation):
                await tx.send_batch("p", wrong)
            for act in (tx.send("plain", msg("x")), tx.commit()):
                with pytest.raises(InvalidOperation):
                    await act
            await tx.rollback()
        assert len(there(bus, "p")) == 2
        assert there(bus, "plain") == ["4", "5"]


@pytest.mark.promise("P8")
@run
async def test_an_error_that_was_caught_does_not_let_the_rest_through(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("p", enable_partitioning=True)
        await bus.create_queue("plain")
        tx = bus.transaction()

        async def block() -> None:
            async with tx:
                await tx.send("plain", msg("x"))
                with pytest.raises(InvalidOperation):
                    await tx.send("p", msg("no key"))

        with pytest.raises(InvalidOperation, match="different keys"):
            await block()
        assert there(bus, "plain") == []
        with pytest.raises(InvalidOperation, match="rolled back"):
            await tx.commit()


@pytest.mark.promise("P8")
@stores
@run
async def test_sessions_one_where_partitioned_several_where_not(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("p", enable_partitioning=True, requires_session=True)
        await bus.create_queue("s", requires_session=True)
        async with bus.transaction() as tx:
            await tx.send_batch("s", [msg("1", session_id="x"), msg("2", session_id="y")])
            await tx.send_batch("p", [msg("3", session_id="x"), msg("4", session_id="x")])
        assert there(bus, "s") == ["1", "2"]
        assert there(bus, "p") == ["3", "4"]
        for name in ("s", "p"):
            tx = bus.transaction()
            with pytest.raises(InvalidOperation):
                await tx.send(name, msg("no session"))
        tx = bus.transaction()
        await tx.send("p", msg("5", session_id="x"))
        with pytest.raises(InvalidOperation, match="roll the transaction back"):
            await tx.send("p", msg("6", session_id="y"))
        await tx.rollback()
        assert there(bus, "p") == ["3", "4"]


@pytest.mark.promise("B5")
@run
async def test_a_hundred_messages(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await bus.send_batch("q", [msg("old")] * 60)
        held = await get(bus, "q")
        tx = bus.transaction()
        await tx.complete("q", *held)
        with pytest.raises(QuotaExceeded):
            await tx.send_batch("q", [msg("new")] * 41)
        await tx.send_batch("q", [msg("new")] * 40)
        for more in (tx.send("q", msg()), tx.complete("q", held[0])):
            with pytest.raises(QuotaExceeded):
                await more
        assert len(await tx.commit()) == TRANSACTION_COUNT_MAX - 60
        assert there(bus, "q") == ["new"] * 40


@pytest.mark.promise("B5")
@run
async def test_how_many_messages_can_be_set(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock, quotas=Quotas(transaction_messages=3)) as bus:
        await bus.create_queue("q")
        tx = bus.transaction()
        await tx.send_batch("q", [msg()] * 3)
        with pytest.raises(QuotaExceeded):
            await tx.send("q", msg())
        assert len(await tx.commit()) == 3


@pytest.mark.promise("B5")
@run
async def test_two_minutes(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("in", lock_duration_ms=5 * MINUTE)
        await bus.create_queue("out")
        await send(bus, "in", "held")
        held = await get_one(bus, "in")
        tx = bus.transaction()
        await tx.complete("in", held)
        clock.advance(2 * MINUTE - 1)
        await tx.send("out", msg("x"))
        clock.advance(1)
        for act in (tx.send("out", msg("x")), tx.commit(), tx.complete("in", held)):
            with pytest.raises(InvalidOperation, match="120 s"):
                await act
        await tx.rollback()
        assert there(bus, "out") == []
        await bus.receiver("in").complete(held)

        # A block that takes too long does not end as if it had been committed.
        async def block() -> None:
            async with bus.transaction() as late:
                await late.send("out", msg("x"))
                clock.advance(2 * MINUTE)

        with pytest.raises(InvalidOperation, match="120 s"):
            await block()
        assert there(bus, "out") == []


@pytest.mark.promise("B5")
@run
async def test_left_open_it_changes_nothing(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q", lock_duration_ms=MINUTE)
        await send(bus, "q", "held")
        tx = bus.transaction()
        await tx.complete("q", await get_one(bus, "q"))
        await tx.send("q", msg("new"))
        await pass_ms(bus, clock, MINUTE)
        assert [m.delivery_count for m in await get(bus, "q")] == [1]
    async with disks.bus(clock, "a", "b") as bus:
        assert there(bus, "q") == ["held"]


@pytest.mark.promise("B5")
@run
async def test_committed_twice(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        tx = bus.transaction()
        await tx.send("q", msg("x"))
        await tx.commit()
        for act in (tx.commit(), tx.rollback(), tx.send("q", msg("y"))):
            with pytest.raises(InvalidOperation, match="was committed"):
                await act
        assert there(bus, "q") == ["x"]
        # One that was committed inside its block is not committed again by its end.
        async with bus.transaction() as early:
            await early.send("q", msg("y"))
            await early.commit()
        assert there(bus, "q") == ["x", "y"]
        assert await bus.transaction().commit() == []


@pytest.mark.promise("B5")
@run
async def test_an_error_in_the_block_rolls_back(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("in")
        await bus.create_queue("out")
        await send(bus, "in", "held")
        held = await get_one(bus, "in")
        tx = bus.transaction()

        async def block() -> None:
            async with tx:
                await tx.complete("in", held)
                await tx.send("out", msg("x"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await block()
        with pytest.raises(InvalidOperation, match="rolled back"):
            await tx.commit()
        assert there(bus, "out") == []
        await bus.receiver("in").complete(held)


@pytest.mark.promise("B5")
@stores
@run
async def test_what_is_sent_wakes_receivers_at_the_commit_and_not_before(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("q0")
        await bus.create_queue("q1")
        waiting = [
            asyncio.create_task(bus.receiver(name).receive(wait_ms=MINUTE)) for name in ("q0", "q1")
        ]
        tx = bus.transaction()
        for name in ("q0", "q1"):
            await tx.send(name, msg(name))
        await settle(bus)
        assert not any(task.done() for task in waiting)
        await tx.commit()
        assert [bodies(await task) for task in waiting] == [["q0"], ["q1"]]


@pytest.mark.promise("D10")
@stores
@run
async def test_duplicates_are_found_at_the_commit(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        for name in ("q0", "q1"):
            await bus.create_queue(name, requires_duplicate_detection=True)
        tx = bus.transaction()
        for name in ("q0", "q1"):
            await tx.send_batch(
                name, [msg("tx", message_id="a"), msg("tx", message_id="b"), msg(message_id="b")]
            )
        # What is sent meanwhile comes first: ids are not recorded before the commit.
        (first,) = await send(bus, "q0", "outside", message_id="a")
        assert first.duplicate_of is None
        sent = await tx.commit()
        assert [one.duplicate_of for one in sent] == [1, None, 2, None, None, 2]
        assert [one.sequence_number for one in sent] == [1, 2, 2, 1, 2, 2]
        assert there(bus, "q0") == ["outside", "tx"]
        (again,) = await send(bus, "q1", "again", message_id="a")
        assert again.duplicate_of == 1


@pytest.mark.promise("B5")
@run
async def test_what_is_wrong_is_refused_when_it_is_added(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q", max_message_bytes=100)
        await bus.create_queue("paused", status="send-disabled")
        await send(bus, "q", "held")
        held = await get_one(bus, "q")
        tx = bus.transaction()
        refused: list[tuple[Any, type[Exception]]] = [
            (tx.send("q", msg("x" * 200)), MessageTooLarge),
            (tx.send("nowhere", msg()), EntityNotFound),
            (tx.send("paused", msg()), EntityDisabled),
            (tx.send("q", "text"), InvalidArgument),  # type: ignore[arg-type]
            (tx.send_batch("q", []), InvalidArgument),
            (tx.complete("q", b"no token"), LockLost),
            (tx.complete("q", held, held), InvalidArgument),
            (tx.abandon("q", held, delay_ms=-1), InvalidArgument),
            (tx.defer("q", held, properties={"n": object()}), InvalidArgument),
            (tx.defer("q", held, properties={"n": "\ud800"}), InvalidArgument),
            (tx.defer("q", held, properties={"\ud800": 1}), InvalidArgument),
            (tx.dead_letter("q", held, reason="x" * 5_000), InvalidArgument),
            (tx.dead_letter("q", held, description="\ud800"), InvalidArgument),
        ]
        for act, error in refused:
            with pytest.raises(error):
                await act
        await tx.send("q", msg("fine"))
        assert len(await tx.commit()) == 1
        assert states(bus, "q") == [("held", "locked"), ("fine", "active")]


@pytest.mark.promise("B5", "P5")
@run
async def test_a_partition_that_is_down_lets_nothing_happen(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q0")
        await bus.create_queue("q1")
        tx = bus.transaction()
        for name in ("q0", "q1"):
            await tx.send(name, msg(name))
        pull(bus, bus.broker.find("q1").stores[0])
        with pytest.raises(PartitionOffline):
            await tx.commit()
        assert there(bus, "q0") == []
        # Nothing was changed, so it may be tried again.
        await pass_ms(bus, clock, SECOND)
        await tx.commit()
        assert (there(bus, "q0"), there(bus, "q1")) == (["q0"], ["q1"])


@pytest.mark.promise("B5", "B7")
@stores
@run
async def test_what_changed_before_the_commit_counts(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("in")
        await bus.create_queue("full", max_size_bytes=2_000)
        await bus.create_queue("paused")
        await send(bus, "in", "held")
        held = await get_one(bus, "in")
        one, other = bus.transaction(), bus.transaction()
        await one.send("full", msg("x" * 1_000))
        await other.send("paused", msg("x"))
        for tx in (one, other):
            await tx.complete("in", held)
        await send(bus, "full", "y" * 1_500)
        await bus.change_queue("paused", status="disabled")
        with pytest.raises(QuotaExceeded):
            await one.commit()
        with pytest.raises(EntityDisabled):
            await other.commit()
        assert len(there(bus, "full")) == 1
        await bus.receiver("in").complete(held)
