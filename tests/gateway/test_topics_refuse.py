"""What topics and subscriptions refuse: names, calls for another kind, and settings."""

from __future__ import annotations

from typing import Any

import pytest

from onibus import Bus
from onibus.core.errors import (
    EntityExists,
    EntityNotFound,
    InvalidArgument,
    InvalidName,
    InvalidOperation,
    MessageNotFound,
    Unchangeable,
)
from tests.bus_helpers import MINUTE, ManualClock, bodies, get, msg, partition_at, run, send
from tests.gateway.topic_helpers import sound, there, topic_with


@pytest.mark.promise("B3")
@run
async def test_names(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        (name,) = await topic_with(bus, "Alpha", topic="Area/Topic")
        assert name == "area/topic/subscriptions/alpha"
        assert bus.topics() == ["area/topic"]
        await send(bus, "AREA/topic", "1")
        assert bodies(await get(bus, "Area/Topic/Subscriptions/ALPHA")) == ["1"]
        for bad in ("", "a/b", "x" * 51, "-a", "a b", 5, None):
            with pytest.raises(InvalidName):
                await bus.create_subscription("area/topic", bad)  # type: ignore[arg-type]
        for create in (bus.create_queue, bus.create_topic):
            with pytest.raises(InvalidName):
                await create("area/topic/subscriptions/beta")
            with pytest.raises(EntityExists):
                await create("area/TOPIC")
        with pytest.raises(EntityExists):
            await bus.create_subscription("area/topic", "ALPHA")
        await bus.create_queue("q")
        with pytest.raises(InvalidOperation):
            await bus.create_subscription("q", "s")
        for unknown in ("nothing", 5):
            with pytest.raises(EntityNotFound):
                await bus.create_subscription(unknown, "s")  # type: ignore[arg-type]


@pytest.mark.promise("B3")
@run
async def test_each_call_is_for_its_kind(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        (name,) = await topic_with(bus, "s")
        await bus.create_queue("q")
        for look, wrong in ((bus.queue, "t"), (bus.topic, "q"), (bus.subscription, "t")):
            with pytest.raises(EntityNotFound):
                look(wrong)
        for call, wrong in (
            (bus.delete_queue, "t"),
            (bus.delete_topic, name),
            (bus.delete_subscription, "q"),
        ):
            with pytest.raises(EntityNotFound):
                await call(wrong)
        with pytest.raises(InvalidOperation):
            await bus.send(name, msg("x"))
        with pytest.raises(InvalidOperation):
            await bus.schedule(name, msg("x"), clock.wall() + MINUTE)
        for receiving in (
            bus.receiver("t").receive(),
            bus.receiver("t", dead_letters=True).receive(),
            bus.receiver("t").receive_deferred([1]),
            bus.accept_session("t"),
            bus.accept_session(name),
            bus.fifo_receiver("t").receive(),
            bus.fifo_receiver(name).receive(),
        ):
            with pytest.raises(InvalidOperation):
                await receiving
        with pytest.raises(MessageNotFound):
            await bus.undefer("t", [1])
        with pytest.raises(EntityNotFound):
            await bus.send("nothing", msg("x"))
        assert (bus.sessions("t"), bus.peek("t")) == ([], [])
        sound(bus)


@pytest.mark.promise("D5", "X2")
@run
async def test_ids_are_forgotten_at_the_topic_only(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        (name,) = await topic_with(bus, "s", requires_duplicate_detection=True)
        await bus.send("t", msg("1", message_id="m"))
        with pytest.raises(InvalidOperation):
            await bus.purge(name, forget_ids=True)
        assert there(bus, name) == ["1"]
        assert (await bus.send("t", msg("2", message_id="m"))).duplicate_of == 1
        await bus.purge("t", forget_ids=True)
        await bus.send("t", msg("3", message_id="m"))
        assert there(bus, name) == ["1", "3"]


@pytest.mark.promise("B3", "D4")
@run
async def test_settings_are_checked(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        (name,) = await topic_with(bus, "s")
        for_topics: list[dict[str, Any]] = [
            {"lock_duration_ms": 5_000},
            {"requires_session": True},
            {"fifo": True},
        ]
        for bad in for_topics:
            with pytest.raises(InvalidArgument):
                await bus.create_topic("u", **bad)
        for_subscriptions: list[dict[str, Any]] = [
            {"max_size_bytes": 5},
            {"lock_duration_ms": 5},
            {"status": "asleep"},
        ]
        for bad in for_subscriptions:
            with pytest.raises(InvalidArgument):
                await bus.create_subscription("t", "u", **bad)
        with pytest.raises(Unchangeable):
            await bus.change_topic("t", requires_duplicate_detection=True)
        with pytest.raises(Unchangeable):
            await bus.change_subscription(name, requires_session=True)
        assert (bus.topics(), bus.topic("t").subscriptions) == (["t"], (name,))
        assert partition_at(bus, "t").subscriptions.keys() == {0, bus.broker.find(name).number}
