"""`com.microsoft:server-timeout` on management requests: answered in time, whatever a disk does."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onibus import Bus
from onibus.core.records import WriteBatch
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.service_bus import sections
from onibus.store.memory import MemoryStore
from tests.amqp.peer import Peer
from tests.amqp.raw_client import message
from tests.bus_helpers import MINUTE, PATIENCE_S, Disks, ManualClock, bodies, run, send

TIMEOUT = "com.microsoft:server-timeout"


class SlowStore(MemoryStore):
    """A store whose commits wait until they may continue."""

    def __init__(self, name: str, may: threading.Event) -> None:
        super().__init__(name, None)
        self._may = may

    def commit(self, batch: WriteBatch) -> None:
        assert self._may.wait(PATIENCE_S)
        super().commit(batch)


class SlowDisks(Disks):
    """Stores in memory that hang at a chosen time."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()
        self.may.set()

    def _store(self, name: str, _known: bool = False) -> MemoryStore:
        store = self.open[name] = SlowStore(name, self.may)
        return store


@asynccontextmanager
async def hanging(clock: ManualClock) -> AsyncIterator[tuple[Peer, Bus, SlowDisks]]:
    """Open a connection to a bus with a queue of three messages, whose disks hang from now on."""
    disks = SlowDisks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", *"123")
        peer = Peer(bus)
        peer.greet()
        peer.open_requests("q/$management")
        disks.may.clear()
        try:
            yield peer, bus, disks
        finally:
            disks.may.set()


def delete_all(count: int = 100) -> dict[str, bytes]:
    return {"message-count": to.int_(count), "enqueued-time-utc": to.timestamp(1 << 45)}


def ask(peer: Peer, operation: str, body: dict[str, bytes], timeout: bytes) -> None:
    """Make a request with a server timeout."""
    named: Any = {TIMEOUT: timeout}
    peer.feed(peer.framed_request(operation, body, **named))


@pytest.mark.parametrize("encode", [to.uint, to.ulong], ids=["uint", "ulong"])
@run
async def test_a_request_that_takes_too_long_is_answered_in_time(encode: type) -> None:
    clock = ManualClock()
    async with hanging(clock) as (peer, bus, disks):
        ask(peer, "batch-delete-messages", delete_all(), encode(2_000))
        clock.advance(1_999)
        bus.broker.tick()
        assert [one.code for one in peer.heard() if one.code == say.TRANSFER] == []
        assert peer.connection.under_way == 1
        clock.advance(1)
        bus.broker.tick()
        told, _ = await peer.response()
        assert (told["statusCode"], told["errorCondition"]) == (408, "com.microsoft:timeout")
        assert "2000 ms" in told["statusDescription"]
        assert "its outcome is unknown" in told["statusDescription"]
        assert peer.connection.under_way == 0
        disks.may.set()
        # It is answered once, and the next request is answered as ever.
        status, _ = await peer.request(
            "peek-message", {"from-sequence-number": to.long(0), "message-count": to.int_(9)}
        )
        assert status in (200, 204)


@run
async def test_a_request_that_is_answered_in_time_leaves_no_timer() -> None:
    clock = ManualClock()
    async with hanging(clock) as (peer, bus, disks):
        disks.may.set()
        ask(peer, "batch-delete-messages", delete_all(2), to.uint(60_000))
        told, body = await peer.response()
        assert (told["statusCode"], body) == (200, {"message-count": 2})
        clock.advance(MINUTE)
        bus.broker.tick()
        assert [one for one in peer.heard() if one.code == say.TRANSFER] == []
        assert bodies(bus.peek("q")) == ["3"]


@run
async def test_a_schedule_that_takes_too_long_is_unknown_and_may_be_done() -> None:
    clock = ManualClock()
    async with hanging(clock) as (peer, bus, disks):
        due = to.map_([to.symbol("x-opt-scheduled-enqueue-time"), to.timestamp(1 << 45)])
        content = to.binary(sections.section(sections.ANNOTATIONS, due) + message(b"later"))
        body = {"messages": to.list_([to.text_map({"message": content})])}
        ask(peer, "schedule-message", body, to.uint(1_000))
        clock.advance(1_000)
        bus.broker.tick()
        told, _ = await peer.response()
        assert (told["statusCode"], told["errorCondition"]) == (408, "com.microsoft:timeout")
        disks.may.set()


@pytest.mark.parametrize(
    "timeout",
    [to.uint(0), to.string("soon"), to.int_(-1), to.ulong(1 << 40), to.NULL],
    ids=["none left", "text", "negative", "too long", "null"],
)
@run
async def test_without_a_time_that_makes_sense_nothing_bounds_a_request(timeout: bytes) -> None:
    clock = ManualClock()
    async with hanging(clock) as (peer, bus, disks):
        ask(peer, "batch-delete-messages", delete_all(), timeout)
        clock.advance(10 * MINUTE)
        bus.broker.tick()
        assert [one for one in peer.heard() if one.code == say.TRANSFER] == []
        disks.may.set()
        told, body = await peer.response()
        assert (told["statusCode"], body) == (200, {"message-count": 3})
