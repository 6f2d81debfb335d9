"""New messages that wait, locks of any length, attributes of a queue, purging what is held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onibus import Bus, Message
from onibus.core.errors import InvalidArgument, InvalidOperation, UnknownToken
from onibus.core.inspection import Filter
from onibus.core.message import ReceivedMessage
from onibus.gateway import receiving, sending, settling
from onibus.gateway.transferring import SLICE_BYTES, Transferred, ends, transfer
from onibus.shard.runner import run as run_steps
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    SECOND,
    ManualClock,
    bodies,
    get,
    get_one,
    msg,
    numbers,
    pass_ms,
    run,
    send,
)


async def receive(bus: Bus, visibility_ms: int, limit: int = 10) -> list[ReceivedMessage]:
    """Receive from a queue under locks of that length."""
    received: list[ReceivedMessage] = await bus.ask(
        lambda reply: receiving.receive(
            bus.broker, "q", limit, 0, reply, visibility_ms=visibility_ms
        )
    )
    return received


async def delete_by(bus: Bus, *tokens: bytes) -> list[Any]:
    results: list[Any] = await bus.ask(
        lambda reply: settling.delete_each(bus.broker, "q", tokens, reply)
    )
    return results


@run
async def test_new_messages_wait_and_keep_their_numbers(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", delivery_delay_ms=10 * SECOND)
        sent = await send(bus, "q", "1", "2")
        await bus.ask(lambda reply: sending.send_one(bus.broker, "q", msg("now"), reply, 0))
        assert bodies(await get(bus, "q", delete=True)) == ["now"]
        assert [one.state for one in bus.peek("q")] == ["delayed"] * 2
        clock.advance(9 * SECOND)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert await get(bus, "q") == [], "they wait over a restart, too"
        await pass_ms(bus, clock, SECOND)
        received = await get(bus, "q")
        assert numbers(received) == [one.sequence_number for one in sent]
        assert [one.delivery_count for one in received] == [0, 0]


@pytest.mark.promise("F10")
@run
async def test_in_a_group_a_message_that_waits_keeps_its_place(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", fifo=True)
        receiver = bus.fifo_receiver("q")
        await bus.send("q", msg("1", session_id="g", message_id="1"))
        await bus.change_queue("q", delivery_delay_ms=10 * SECOND)
        await bus.send("q", msg("2", session_id="g", message_id="2"))
        await bus.change_queue("q", delivery_delay_ms=0)
        await bus.send("q", msg("3", session_id="g", message_id="3"))
        (first,) = await receiver.receive(10)
        assert first.body == b"1", "what came before is not blocked, what came after is"
        await receiver.complete(first)
        assert await receiver.receive(10) == []
        await pass_ms(bus, clock, 10 * SECOND)
        assert bodies(await receiver.receive(10)) == ["2", "3"]


@run
async def test_in_bulk_too_and_what_is_scheduled_waits_for_its_time_only(
    clock: ManualClock,
) -> None:
    import pyarrow as pa

    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", delivery_delay_ms=MINUTE)
        await bus.send_arrow("q", pa.table({"body": pa.array([b"1", b"2"], pa.binary())}))
        await bus.schedule("q", Message(body=b"due"), clock.wall() + 5 * SECOND)
        assert await get(bus, "q") == []
        await pass_ms(bus, clock, 5 * SECOND)
        assert bodies(await get(bus, "q", delete=True)) == ["due"]
        await pass_ms(bus, clock, MINUTE)
        assert bodies(await get(bus, "q", delete=True)) == ["1", "2"]


@run
async def test_delays_that_are_refused(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        with pytest.raises(InvalidArgument):
            await bus.create_queue("q", delivery_delay_ms=15 * MINUTE + 1)
        await bus.create_queue("q", enable_partitioning=True)
        with pytest.raises(InvalidOperation):
            await bus.ask(lambda reply: sending.send(bus.broker, "q", [msg("x")], reply, [SECOND]))
        await bus.create_topic("t")
        with pytest.raises(InvalidOperation):
            await bus.ask(lambda reply: sending.send_one(bus.broker, "t", msg("x"), reply, SECOND))


@run
async def test_a_receive_may_say_for_how_long_it_locks(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", lock_duration_ms=MINUTE)
        await send(bus, "q", "x")
        begun = clock.wall()
        (held,) = await receive(bus, 2 * HOUR)
        assert held.first_received_ms is not None
        assert held.first_received_ms >= begun
        await pass_ms(bus, clock, 2 * HOUR - 1)
        assert await get(bus, "q") == []
        await pass_ms(bus, clock, 1)
        again = await get_one(bus, "q")
        assert again.first_received_ms == held.first_received_ms, "the first receive is remembered"
        assert again.delivery_count == 1
        with pytest.raises(InvalidArgument):
            await receive(bus, 12 * HOUR + 1)


@run
async def test_nothing_is_held_for_longer_than_twelve_hours(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "x")
        (held,) = await receive(bus, HOUR)
        token = held.token
        assert token is not None

        async def hold(ms: int) -> None:
            await bus.ask(lambda reply: settling.renew_one(bus.broker, "q", token, reply, ms))

        clock.advance(HOUR // 2)
        await hold(11 * HOUR)
        with pytest.raises(InvalidArgument):
            await hold(12 * HOUR)
        await hold(0)
        await pass_ms(bus, clock, 0)
        assert bodies(await get(bus, "q")) == ["x"]


@run
async def test_the_first_receive_is_remembered_over_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "x")
        (held,) = await receive(bus, 0)
    clock.advance(MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        again = await get_one(bus, "q")
        assert again.first_received_ms == held.first_received_ms
        await bus.receiver("q").abandon(again, properties={"p": 1})
        third = await get_one(bus, "q")
        assert third.properties == {"p": 1}
        assert third.first_received_ms == held.first_received_ms


@run
async def test_a_token_that_ran_out_deletes_what_nobody_holds(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2", "3")
        late = [one.token or b"" for one in await receive(bus, 0)]
        (held,) = await receive(bus, MINUTE, 1)
        assert held.body == b"1"
        assert await delete_by(bus, late[0], late[1]) == [None, None]
        assert await delete_by(bus, held.token or b"", late[1]) == [None, None]
        assert bodies(bus.peek("q")) == ["3"]
    async with Bus.open(tmp_path, clock=clock) as bus:
        (known,) = await delete_by(bus, late[2])
        assert known is None
        assert bus.peek("q") == []
        await bus.create_queue("other")
        await send(bus, "other", "x")
        stranger = await get_one(bus, "other")
        wrong = await delete_by(bus, stranger.token or b"", b"x" * 16, b"short")
        assert all(isinstance(one, UnknownToken) for one in wrong)


@run
async def test_attributes_are_kept_and_bounded(tmp_path: Path, clock: ManualClock) -> None:
    kept = {"sqs.Tags": '{"a":"b"}'}
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", attributes=kept)
        for wrong in ({"": "x"}, {"a": 1}, {"a": "x" * 65_536}, {"x" * 129: ""}):
            with pytest.raises(InvalidArgument):
                await bus.change_queue("q", attributes=wrong)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bus.queue("q").settings.attributes == kept


@pytest.mark.promise("X2")
@run
async def test_a_purge_may_take_what_receivers_hold(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", fifo=True)
        for body in "123":
            await bus.send("q", msg(body, session_id=body, message_id=body))
        (held,) = await bus.fifo_receiver("q").receive(1)
        locked = await bus.accept_session("q", "2")
        (carried,) = await locked.receive()
        count = await bus.ask(
            lambda reply: settling.purge_all(bus.broker, "q", Filter(), False, reply, held=True)
        )
        assert count == 2
        assert bodies(bus.peek("q")) == ["2"], "what a session's lock holds stays"
        await locked.complete(carried)
        assert await delete_by(bus, held.token or b"") == [None], "it is gone already"


@pytest.mark.parametrize("stores", [("main",), ("a", "b", "c")])
@run
async def test_waiting_messages_are_transferred_whole(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    from tests.bus_helpers import Disks

    async with Disks().bus(clock, *stores) as bus:
        for name in ("from", "to"):
            await bus.create_queue(name, fifo=True)
        for group in "aab":
            number = len(bus.peek("from"))
            await bus.send("from", msg(f"{number}", session_id=group, message_id=f"m{number}"))
        # What the destination remembers does not keep a message out.
        await bus.send("to", msg("before", session_id="a", message_id="m2"))
        (held,) = await bus.fifo_receiver("from").receive(1)
        source = bus.broker.find("from")
        below = ends(source)
        await bus.send("from", msg("late", session_id="c", message_id="late"))

        async def move(limit: int) -> Transferred:
            done: Transferred = await bus.ask(
                lambda reply: run_steps(
                    transfer(
                        bus.broker,
                        source,
                        limit,
                        below,
                        lambda received: "to",
                        lambda received: received.message,
                    ),
                    reply,
                )
            )
            return done

        assert await move(10) == Transferred(1), "a group in flight stays together"
        assert bodies(bus.peek("to")) == ["before", "2"]
        await bus.fifo_receiver("from").complete(held)
        assert await move(10) == Transferred(1)
        assert await move(10) == Transferred(0), "what came later is not meant"
        assert bodies(bus.peek("to")) == ["before", "2", "1"]
        assert bodies(bus.peek("from")) == ["late"]


@run
async def test_a_transfer_is_bounded_in_bytes(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        for name in ("from", "to"):
            await bus.create_queue(name, max_message_bytes=2 * SLICE_BYTES)
        large = b"x" * (SLICE_BYTES // 2 - 1_000)
        for body in (b"x" * (SLICE_BYTES + 1), large, large, large):
            await bus.send("from", Message(body=body))
        source = bus.broker.find("from")
        below = ends(source)
        moved: list[int] = []
        while not moved or moved[-1]:
            done: Transferred = await bus.ask(
                lambda reply: run_steps(
                    transfer(
                        bus.broker, source, 100, below, lambda _: "to", lambda one: one.message
                    ),
                    reply,
                )
            )
            moved.append(done.moved)
        assert moved == [1, 2, 1, 0]


@pytest.mark.promise("F1")
@run
async def test_dead_letters_for_a_fifo_queue_are_not_dropped_there(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("morgue", fifo=True)
        await bus.create_queue(
            "q", fifo=True, max_delivery_count=1, forward_dead_letters_to="morgue"
        )
        receiver = bus.fifo_receiver("q")
        for body in ("first", "second"):
            await bus.send("q", msg(body, session_id="g", message_id="same"))
            await receiver.receive(1, visibility_ms=5 * MINUTE - 1)
            await pass_ms(bus, clock, 5 * MINUTE)
        found = bus.peek("morgue")
        assert bodies(found) == ["first", "second"]
        assert {one.properties["DeadLetterSource"] for one in found} == {"q"}
