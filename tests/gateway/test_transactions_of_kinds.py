"""Transactions of messages of all kinds: scheduled, of topics, of sessions, dead letters (B5)."""

from __future__ import annotations

import pytest

from onibus import Bus, Rule
from onibus.core.errors import (
    EntityNotFound,
    InvalidOperation,
    SessionLockLost,
)
from tests.bus_helpers import (
    MINUTE,
    Disks,
    ManualClock,
    bodies,
    get,
    get_one,
    msg,
    numbers,
    pass_ms,
    peek_everything,
    run,
    send,
)
from tests.gateway.fragile import quiet
from tests.gateway.topic_helpers import dead, sound, states, there, topic_with

stores = pytest.mark.parametrize("stores", [("a",), ("a", "b")])


@pytest.mark.promise("B5", "D8", "S5", "S6")
@stores
@run
async def test_scheduled_messages(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        for name in ("q0", "q1"):
            await bus.create_queue(name)
        due = clock.wall() + MINUTE
        async with bus.transaction() as tx:
            for name in ("q0", "q1"):
                await tx.send(name, msg("later", scheduled_enqueue_time_ms=due))
        assert states(bus, "q0") == states(bus, "q1") == [("later", "scheduled")]
        await bus.cancel_scheduled("q0", [1])
        await pass_ms(bus, clock, MINUTE)
        assert (numbers(await get(bus, "q0")), numbers(await get(bus, "q1"))) == ([], [2])


@pytest.mark.promise("B5", "B3")
@stores
@run
async def test_a_topic_as_target_and_its_subscription_as_source(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        left, right = await topic_with(bus, "left", "right")
        await bus.create_queue("q")
        await bus.create_queue("r")
        await send(bus, "t", "first")
        held = await get_one(bus, left)
        async with bus.transaction() as tx:
            await tx.complete(left, held)
            await tx.send("t", msg("second"))
            await tx.send("q", msg("to q"))
            await tx.send("r", msg("to r"))
        assert there(bus, left) == ["second"]
        assert there(bus, right) == ["first", "second"]
        assert (there(bus, "q"), there(bus, "r")) == (["to q"], ["to r"])
        with pytest.raises(InvalidOperation):
            await bus.transaction().send(left, msg())
        with pytest.raises(InvalidOperation):
            await bus.transaction().complete("t", held)


@pytest.mark.promise("B5")
@run
async def test_a_subscription_or_queue_that_was_deleted_before_the_commit(
    clock: ManualClock,
) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        left, right = await topic_with(bus, "left", "right")
        await bus.create_queue("q")
        await bus.create_queue("r")
        await send(bus, "t", "first")
        held = await get_one(bus, left)
        tx, other = bus.transaction(), bus.transaction()
        await tx.complete(left, held)
        await other.send_batch("q", [msg("x")])
        for one in (tx, other):
            await one.send("r", msg("x"))
        await bus.delete_subscription(left)
        await bus.delete_queue("q")
        await bus.create_queue("q")
        for one in (tx, other):
            with pytest.raises(EntityNotFound):
                await one.commit()
        assert (there(bus, "q"), there(bus, "r"), there(bus, right)) == ([], [], ["first"])
        sound(bus)


@pytest.mark.promise("B5")
@run
async def test_a_deleted_subscription_is_named_before_a_lost_lock(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a") as bus:
        left, right = await topic_with(bus, "left", "right")
        await send(bus, "t", "first")
        tx = bus.transaction()
        for name in (right, left):
            await tx.complete(name, await get_one(bus, name))
        await bus.delete_subscription(left)
        await pass_ms(bus, clock, MINUTE)
        with pytest.raises(EntityNotFound):
            await tx.commit()


@pytest.mark.promise("B5")
@run
async def test_the_first_entity_that_refuses_is_named(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a") as bus:
        tx = bus.transaction()
        for name in ("deleted", "disabled"):
            await bus.create_queue(name)
            await tx.send(name, msg("x"))
        await bus.delete_queue("deleted")
        await bus.change_queue("disabled", status="send-disabled")
        with pytest.raises(EntityNotFound):
            await tx.commit()


@pytest.mark.promise("B5")
@stores
@run
async def test_dead_letters_are_settled_in_a_transaction(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("in")
        await bus.create_queue("out")
        await send(bus, "in", "0", "1", "2")
        for message in await get(bus, "in"):
            await bus.receiver("in").dead_letter(message, reason="bad")
        done, back, later = await get(bus, "in", dead_letters=True)
        tx = bus.transaction()
        with pytest.raises(InvalidOperation):
            await tx.dead_letter("in", done)
        await tx.complete("in", done)
        await tx.abandon("in", back)
        await tx.defer("in", later)
        await tx.send("out", msg("mended"))
        await tx.commit()
        assert [
            (m.body, m.state, m.delivery_count)
            for m in peek_everything(bus, "in", dead_letters=True)
        ] == [(b"1", "dead-lettered", 0), (b"2", "dead-lettered deferred", 0)]
        assert there(bus, "out") == ["mended"]
        sound(bus)


@pytest.mark.promise("B5", "B4")
@stores
@run
async def test_messages_of_sessions(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("s", requires_session=True)
        await bus.create_queue("out")
        await bus.send_batch("s", [msg(text, session_id="x") for text in "01234"])
        session = await bus.accept_session("s", "x")
        zero, one, two = await session.receive(3)
        async with bus.transaction() as tx:
            await tx.complete(session, zero)
            await tx.abandon(session, one)
            await tx.defer(session, two)
            await tx.send("out", msg("result"))
        # The session is held as before, and goes on in order.
        assert bodies(await session.receive(5)) == ["1", "3", "4"]
        (deferred,) = await session.receive_deferred([3])
        async with bus.transaction() as tx:
            await tx.complete(session, deferred)
            await tx.send("out", msg("again"))
        assert there(bus, "out") == ["result", "again"]
        sound(bus)


@pytest.mark.promise("B5", "B4")
@run
async def test_a_session_lock_that_was_lost(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("s", requires_session=True)
        await bus.create_queue("out")
        await send(bus, "s", "0", session_id="x")
        session = await bus.accept_session("s", "x")
        (held,) = await session.receive()
        tx = bus.transaction()
        await tx.complete(session, held)
        await tx.send("out", msg("result"))
        await session.close()
        with pytest.raises(SessionLockLost):
            await tx.commit()
        assert there(bus, "out") == []
        assert bodies(await (await bus.accept_session("s")).receive()) == ["0"]


@pytest.mark.promise("B5", "F10")
@stores
@run
async def test_messages_of_fifo_queues(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("f", fifo=True, content_based_deduplication=True)
        await bus.create_queue("out")
        await bus.send_batch("f", [msg(text, session_id="g") for text in "0123"])
        receiver = bus.fifo_receiver("f")
        zero, one = await receiver.receive(2)
        tx = bus.transaction()
        await tx.complete(receiver, zero)
        await tx.abandon(receiver, one)
        await tx.send("out", msg("result"))
        await tx.send("f", msg("4", session_id="g"))
        assert await receiver.receive(5) == []
        await tx.commit()
        assert bodies(await receiver.receive(5)) == ["1", "2", "3", "4"]
        assert there(bus, "out") == ["result"]
        sound(bus)


@pytest.mark.promise("P11")
@run
async def test_rules_of_partitioned_topics_are_no_part_of_transactions(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        (left,) = await topic_with(bus, "left", enable_partitioning=True)
        rules = bus.subscription(left).rules
        for act in (
            lambda tx: tx.create_rule(left, Rule("more")),
            lambda tx: tx.change_rule(left, rules[0]),
            lambda tx: tx.delete_rule(left, rules[0].name),
        ):
            transaction = bus.transaction()
            with pytest.raises(InvalidOperation, match="partitioned"):
                await act(transaction)
            with pytest.raises(InvalidOperation):
                await transaction.commit()
            await transaction.rollback()
        assert bus.subscription(left).rules == rules


@pytest.mark.promise("B5", "B1")
@stores
@run
async def test_the_last_delivery_is_counted_in_a_transaction(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        for name in ("q0", "q1"):
            await bus.create_queue(name, max_delivery_count=1)
            await send(bus, name, "once")
        held = {name: await get_one(bus, name) for name in ("q0", "q1")}
        async with bus.transaction() as tx:
            await tx.abandon("q0", held["q0"])
            await tx.defer("q1", held["q1"])
        for name in ("q0", "q1"):
            assert dead(bus, name) == [("once", "MaxDeliveryCountExceeded")]
        await quiet(bus)
        sound(bus)
