"""Lists that clients can make long: they are made in slices, and deleted things are left out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onibus import Bus, Message
from onibus.protocols.http.api import overview, receivers
from onibus.protocols.http.api.overview import described
from tests.bus_helpers import run
from tests.server.http_helpers import serving

COUNT = 30
_sleep = asyncio.sleep


class Turns:
    """Counts how often a handler lets other clients have their turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(asyncio, "sleep", self._count)
        monkeypatch.setattr(overview, "_READERS_A_SLICE", 10)
        monkeypatch.setattr(overview, "_GROUPS_A_SLICE", 10)
        monkeypatch.setattr(overview, "_SLICE", 10)
        monkeypatch.setattr(receivers, "_LOOKS_A_SLICE", 110)
        monkeypatch.setattr("onibus.gateway.searching.A_SLICE", 10)

    async def _count(self, seconds: float) -> None:
        self.count += not seconds
        await _sleep(seconds)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


async def with_readers(bus: Bus) -> None:
    await bus.create_queue("q")
    for at in range(COUNT):
        await bus.create_reader("q", f"r{at:02}")


async def with_sessions(bus: Bus) -> None:
    await bus.create_queue("q", requires_session=True)
    for at in range(COUNT):
        await bus.send("q", Message(session_id=f"s{COUNT - at:02}"))


async def with_locks(bus: Bus) -> None:
    await bus.create_queue("q")
    await bus.send_batch("q", [Message() for _ in range(COUNT)])
    receiver = bus.receiver("q")
    for _ in range(COUNT):
        await receiver.receive(1)


async def with_groups(bus: Bus) -> None:
    await bus.create_queue("q", fair_delivery=True)
    await bus.send_batch("q", [Message(session_id=f"g{at:02}") for at in range(COUNT)])
    await bus.receiver("q").receive(COUNT)


@pytest.mark.parametrize(
    ("fill", "path", "name"),
    [
        (with_readers, "/entities/q/readers", "readers"),
        (with_readers, "/readers", "readers"),
        (with_sessions, "/entities/q/sessions", "sessions"),
        (with_locks, "/entities/q/receivers", "locks"),
        (with_groups, "/entities/q/groups", "groups"),
    ],
    ids=["readers", "all-readers", "sessions", "locks", "groups"],
)
@run
async def test_others_have_their_turn_while_a_long_list_is_made(
    turns: Turns, fill: Any, path: str, name: str
) -> None:
    bus = await Bus.ephemeral()
    await fill(bus)
    async with serving(bus=bus) as client:
        turns.count = 0
        found = (await client.do("GET", path))[name]
        assert turns.count >= COUNT // 10 - 1
        assert len(found) == COUNT
        if name == "sessions":
            assert [one["session_id"] for one in found] == [f"s{at + 1:02}" for at in range(COUNT)]


@pytest.mark.parametrize("gone", ["reader", "subscription", "recreated"])
@run
async def test_a_reader_that_goes_while_others_are_described_is_left_out(
    monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    monkeypatch.setattr(overview, "_READERS_A_SLICE", 2)
    async with Bus.ephemeral() as bus:
        await bus.create_topic("t")
        await bus.create_subscription("t", "s")
        name = "t/subscriptions/s"
        for at in range(4):
            await bus.create_reader(name, f"r{at}", log="outcomes")
        entity = bus.broker.find(name)

        async def sleep(_: float) -> None:
            monkeypatch.undo()
            if gone == "reader":
                await bus.delete_reader(name, "r2")
                return
            await bus.delete_subscription(name)
            if gone == "recreated":
                await bus.create_subscription("t", "s")

        monkeypatch.setattr(asyncio, "sleep", sleep)
        shown = await described(bus.broker, [(entity, one) for one in entity.readers.values()])
        names = [one.name for one in shown]
        assert names == (["r0", "r1", "r3"] if gone == "reader" else ["r0"])
