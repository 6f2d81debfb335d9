"""Bad names, settings, messages, tokens and numbers: a typed error, and nothing is changed."""

from __future__ import annotations

import os
from datetime import datetime
from enum import IntEnum
from typing import Any

import pytest

from onibus import Bus, Message
from onibus.core.errors import (
    EntityExists,
    EntityNotFound,
    InvalidArgument,
    InvalidName,
    InvalidOperation,
    LockLost,
    MessageNotFound,
    MessageTooLarge,
    Refused,
    SessionLockLost,
    Unchangeable,
)
from tests.bus_helpers import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    ManualClock,
    get,
    get_one,
    msg,
    one_held,
    pass_ms,
    picture,
    run,
    send,
)


class Colour(IntEnum):
    """A whole number that is not a plain one."""

    RED = 2**70


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 261,
        "a b",
        "a?b",
        "a#b",
        "a\\b",
        "ä",
        "/a",
        "a/",
        "a//b",
        "-a",
        "a.",
        "a\n",
        "$dead",
        "a\0b",
        "a/../b",
        "a/./b",
        None,
        5,
        b"q",
        ["q"],
    ],
)
@run
async def test_names(clock: ManualClock, name: Any) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        with pytest.raises(InvalidName):
            await bus.create_queue(name)
        assert bus.queues() == []


@run
async def test_names_that_are_allowed_and_mean_the_same_in_any_case(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        for name in ("a", "7", "x" * 260, "Orders/EU-1_x.y~z"):
            await bus.create_queue(name)
        with pytest.raises(EntityExists):
            await bus.create_queue("ORDERS/eu-1_x.y~z")
        await send(bus, "oRDERS/EU-1_X.Y~Z", "x")
        assert bus.queue("orders/eu-1_x.y~z").active_count == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"duplicate_detection_window_ms": 20 * SECOND - 1},
        {"duplicate_detection_window_ms": 7 * DAY + 1},
        {"lock_duration_ms": 5 * MINUTE + 1},
        {"lock_duration_ms": SECOND - 1},
        {"lock_duration_ms": "1 minute"},
        {"lock_duration_ms": None},
        {"max_delivery_count": 0},
        {"default_time_to_live_ms": 0},
        {"default_time_to_live_ms": -1},
        {"max_size_bytes": 0},
        {"max_message_bytes": 1 << 40},
        {"auto_delete_on_idle_ms": 5 * MINUTE - 1},
        {"retry_backoff_ms": -1},
        {"requires_session": "yes"},
        {"status": "asleep"},
        {"no_such_setting": 1},
        {"user_metadata": "\ud800"},
        {"user_metadata": "x" * 1_025},
        {"content_based_deduplication": True},
        {"one_message_per_group": True},
        {"strict_attempts": True},
        {"deduplication_scope": "messageGroup"},
    ],
)
@run
async def test_settings(clock: ManualClock, settings: dict[str, Any]) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "x")
        before = picture(bus, "q")
        with pytest.raises(InvalidArgument):
            await bus.create_queue("new", **settings)
        with pytest.raises((InvalidArgument, Unchangeable)):
            await bus.change_queue("q", **settings)
        assert picture(bus, "q") == before
        assert bus.queues() == ["q"]


@pytest.mark.parametrize(
    "settings",
    [
        {"enable_partitioning": True},
        {"requires_session": False},
        {"requires_duplicate_detection": False},
        {"duplicate_detection_window_ms": HOUR},
    ],
)
@run
async def test_settings_of_fifo_queues(clock: ManualClock, settings: dict[str, Any]) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        with pytest.raises(InvalidArgument):
            await bus.create_queue("q", fifo=True, **settings)
        assert bus.queues() == []


@pytest.mark.parametrize(
    "name",
    ["requires_duplicate_detection", "requires_session", "enable_partitioning", "fifo"],
)
@run
async def test_what_is_fixed_at_creation(clock: ManualClock, name: str) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        with pytest.raises(Unchangeable):
            await bus.change_queue("q", **{name: True, "max_delivery_count": 3})
        assert bus.queue("q").settings.max_delivery_count == 10


@pytest.mark.parametrize(
    "fields",
    [
        {"body": "text"},
        {"body": None},
        {"body": bytearray(b"x")},
        {"message_id": "x" * 129},
        {"message_id": 5},
        {"message_id": "\ud800"},
        {"session_id": "x" * 129},
        {"session_id": b"s"},
        {"partition_key": "x" * 129},
        {"partition_key": "\ud800"},
        {"time_to_live_ms": 0},
        {"time_to_live_ms": -1},
        {"time_to_live_ms": 1.5},
        {"time_to_live_ms": "1"},
        {"time_to_live_ms": True},
        {"scheduled_enqueue_time_ms": -1},
        {"scheduled_enqueue_time_ms": "noon"},
        {"properties": {"a": [1]}},
        {"properties": {"a": {"b": 1}}},
        {"properties": {"a": Ellipsis}},
        {"properties": {"a": 2**63}},
        {"properties": {"a": Colour.RED}},
        {"properties": {"a": datetime(2020, 1, 1)}},
        {"properties": {"a": "\ud800"}},
        {"properties": {5: "a"}},
        {"properties": [("a", 1)]},
        {"properties": []},
        {"properties": None},
        {"subject": 5},
        {"correlation_id": b"x"},
        {"content_type": ["text"]},
        {"to": 1.5},
        {"reply_to": {"a": 1}},
        {"reply_to_session_id": True},
        {"format": None},
        {"enqueued_sequence_number": "7"},
        {"received_before": -1},
        {"received_before": "1"},
        {"dead_letter_of": 7},
        {"dead_letter_of": (1, "7")},
        {"dead_letter_of": (1, 2, 3)},
        {"dead_letter_of": (1, -1)},
    ],
    ids=str,
)
@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_fields_of_messages(
    clock: ManualClock, fields: dict[str, Any], partitioned: bool
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue(
            "q", requires_duplicate_detection=True, enable_partitioning=partitioned
        )
        await send(bus, "q", "good", message_id="1")
        before = picture(bus, "q")
        bad = Message(**({"message_id": "2"} | fields))
        with pytest.raises(InvalidArgument):
            await bus.send("q", bad)
        with pytest.raises(InvalidArgument):
            await bus.send_batch("q", [msg("fine", message_id="3"), bad])
        assert picture(bus, "q") == before
        (sent,) = await send(bus, "q", "fine", message_id="3")
        assert sent.duplicate_of is None
        assert len(bus.peek("q") + await get(bus, "q")) >= 2, "and it still gives out"


@pytest.mark.parametrize("bad", ["text", None, b"bytes", {"body": b""}, 5])
@run
async def test_what_is_no_message(clock: ManualClock, bad: Any) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        with pytest.raises(InvalidArgument):
            await bus.send("q", bad)
        with pytest.raises(InvalidArgument):
            await bus.send_batch("q", [msg("fine"), bad])
        with pytest.raises(InvalidArgument):
            await bus.schedule("q", bad, clock.wall() + MINUTE)
        for batch in ([], bad, [msg()] * 10_001):
            with pytest.raises(InvalidArgument):
                await bus.send_batch("q", batch)
        assert picture(bus, "q")[2] == []


@run
async def test_messages_that_contradict_their_entity(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_session=True, max_message_bytes=1_000)
        with pytest.raises(InvalidOperation):
            await bus.send("q", msg("no session"))
        with pytest.raises(InvalidOperation):
            await bus.send("q", msg(session_id="a", partition_key="b"))
        with pytest.raises(MessageTooLarge):
            await bus.send("q", msg("x" * 1_000, session_id="a"))
        assert picture(bus, "q")[2] == []


@run
async def test_an_unknown_entity(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        for call in (
            lambda: bus.send("no", msg()),
            lambda: bus.send(None, msg()),  # type: ignore[arg-type]
            lambda: bus.change_queue("no", max_delivery_count=3),
            lambda: bus.delete_queue("no"),
            lambda: bus.accept_session("no"),
            lambda: bus.cancel_scheduled("no", [1]),
            lambda: bus.undefer("no", [1]),
            lambda: bus.purge("no"),
        ):
            with pytest.raises(EntityNotFound):
                await call()
        for look in (
            bus.queue,
            bus.peek,
            bus.receiver,
            bus.fifo_receiver,
            bus.sessions,
            bus.duplicates,
        ):
            with pytest.raises(EntityNotFound):
                look("no")


def settlings(bus: Bus, token: Any) -> list[Any]:
    receiver = bus.receiver("q")
    return [
        lambda: receiver.complete(token),
        lambda: receiver.abandon(token),
        lambda: receiver.defer(token),
        lambda: receiver.dead_letter(token),
        lambda: receiver.renew(token),
    ]


@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_garbage_for_tokens(clock: ManualClock, partitioned: bool) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        held = await one_held(bus, enable_partitioning=partitioned)
        before = picture(bus, "q")
        flipped = bytes([held.token[0] ^ 0x10, *held.token[1:]])
        garbage = [
            b"",
            b"x",
            b"\0" * 16,
            b"\xff" * 16,
            held.token[:-1],
            held.token + b"\0",
            held.token[:-1] + bytes([held.token[-1] ^ 1]),
            flipped,
            os.urandom(16),
        ]
        for token in garbage:
            for settle in settlings(bus, token):
                with pytest.raises(LockLost):
                    await settle()
        for token in (None, "text", 5, {held.token}):
            for settle in settlings(bus, token):
                with pytest.raises(InvalidArgument):
                    await settle()
        for settle in settlings(bus, bus.peek("q")[0]):
            with pytest.raises(LockLost):
                await settle()
        for tokens in ([held, held], [held, b"\0" * 16]):
            with pytest.raises((InvalidArgument, LockLost)):
                await bus.receiver("q").complete(*tokens)
        assert picture(bus, "q") == before
        await bus.receiver("q").complete(held)


@run
async def test_tokens_of_others_and_of_the_past(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        held = await one_held(bus)
        foreign = await one_held(bus, "other")
        await bus.delete_queue("q")
        earlier = held
        held = await one_held(bus)
        await pass_ms(bus, clock, MINUTE)
        stale, held = held, await get_one(bus, "q")
        settled = await get_one(bus, "q")
        await bus.receiver("q").abandon(settled)
        before = picture(bus, "q")
        for message in (foreign, earlier, stale, settled):
            for settle in settlings(bus, message):
                with pytest.raises(LockLost):
                    await settle()
        assert picture(bus, "q") == before
        await bus.receiver("q").complete(held)


@run
async def test_equal_numbers_and_epochs_are_not_equal_tokens(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        first, other = await one_held(bus), await one_held(bus, "other")
        assert (first.sequence_number, first.token[:12]) == (1, other.token[:12])
        with pytest.raises(LockLost):
            await bus.receiver("q").complete(other)
        await bus.delete_queue("q")
        again = await one_held(bus)
        assert again.token[:12] == first.token[:12]
        with pytest.raises(LockLost):
            await bus.receiver("q").complete(first)
        assert bus.queue("q").held_count == bus.queue("other").held_count == 1


@run
async def test_tokens_of_a_session_that_is_held_no_more(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_session=True)
        await send(bus, "q", "x", session_id="s")
        session = await bus.accept_session("q")
        (held,) = await session.receive()
        await session.close()
        before = picture(bus, "q")
        for call in (
            lambda: session.receive(),
            lambda: session.renew_lock(),
            lambda: session.get_state(),
            lambda: session.set_state(b""),
            lambda: session.close(),
            lambda: session.complete(held),
            lambda: session.receive_deferred([1]),
        ):
            with pytest.raises(SessionLockLost):
                await call()
        assert picture(bus, "q") == before


@run
async def test_a_session_of_an_earlier_incarnation(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_session=True)
        await send(bus, "q", "old", session_id="s")
        session = await bus.accept_session("q", "s")
        await bus.delete_queue("q")
        for again in (False, True):
            if again:
                await bus.create_queue("q", requires_session=True)
                await send(bus, "q", "new", session_id="s")
            for call in (
                lambda: session.receive(),
                lambda: session.renew_lock(),
                lambda: session.set_state(b"x"),
                lambda: session.close(),
            ):
                with pytest.raises(EntityNotFound):
                    await call()
        assert [(i.session_id, i.state) for i in bus.sessions("q")] == [("s", None)]


@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_numbers_that_do_not_exist(clock: ManualClock, partitioned: bool) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=partitioned)
        sent = (await send(bus, "q", "active"))[0].sequence_number
        done = (await send(bus, "q", "done"))[0].sequence_number
        for message in await get(bus, "q"):
            if message.body == b"done":
                await bus.receiver("q").complete(message)
        before = picture(bus, "q")
        calls = (
            lambda numbers: bus.cancel_scheduled("q", numbers),
            lambda numbers: bus.undefer("q", numbers),
            lambda numbers: bus.receiver("q").receive_deferred(numbers),
        )
        for call in calls:
            for number in (0, -1, sent, done, 99, 1 << 48, 1 << 63, 1 << 100, None, "1", 1.0):
                with pytest.raises(MessageNotFound):
                    await call([number])
            for numbers in ([], None, 5, [1] * 10_001):
                with pytest.raises(InvalidArgument):
                    await call(numbers)
        assert picture(bus, "q") == before


@run
async def test_cancelling_twice(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        number = await bus.schedule("q", msg(), clock.wall() + MINUTE)
        await bus.cancel_scheduled("q", [number])
        with pytest.raises(MessageNotFound):
            await bus.cancel_scheduled("q", [number])


def test_every_refusal_says_whether_to_try_again() -> None:
    kinds: list[type[Refused]] = [Refused, *Refused.__subclasses__()]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(isinstance(kind.retryable, bool) for kind in kinds)
