"""What one client can make the server do before others have their turn, counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onibus import Bus, Message
from onibus.gateway import settling
from onibus.operation.peers import LOCAL
from onibus.protocols.amqp import connection as connections
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp import serving
from onibus.protocols.amqp.frames import frame
from onibus.protocols.amqp.service_bus.settlement import SETTLED_A_SLICE
from onibus.protocols.amqp.serving import AmqpConnections, AmqpProtocol
from onibus.protocols.amqp.websocket import FRAMES_A_SLICE, WebSocketBridge
from tests.amqp.peer import Peer, greeted
from tests.amqp.raw_client import attach
from tests.bus_helpers import run
from tests.server.strangers import websocket_frame

PING = websocket_frame(b"", 9)
WINDOW = 1 << 30


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and whether the server reads."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reads = True

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Keep what was written."""

    abort = close

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Keep no limits."""

    def get_write_buffer_size(self) -> int:
        return 0


@pytest.mark.parametrize("frame", [PING, websocket_frame(b"")], ids=["pings", "empty frames"])
@run
async def test_tiny_websocket_frames_are_taken_in_slices(
    monkeypatch: pytest.MonkeyPatch, frame: bytes
) -> None:
    taken = 0
    take: Any = WebSocketBridge._take

    def counted(bridge: WebSocketBridge, one: Any) -> None:
        nonlocal taken
        taken += 1
        take(bridge, one)

    monkeypatch.setattr(WebSocketBridge, "_take", counted)
    # A busy machine takes long for a slice: only the count ends it here.
    monkeypatch.setattr(serving, "_TURN_S", 3_600)
    async with Bus.ephemeral() as bus:
        bridge, wire = WebSocketBridge(AmqpConnections(bus, None), LOCAL), Wire()
        bridge.connection_made(wire)
        count = 10 * FRAMES_A_SLICE
        bridge.data_received(frame * count)
        # The rest waits, and the server reads nothing more.
        assert taken == FRAMES_A_SLICE
        assert not wire.reads
        while not wire.reads:
            before = taken
            await asyncio.sleep(0)
            assert taken - before <= FRAMES_A_SLICE
        assert taken == count
        assert sum(one[0] == 0x8A for one in wire.written) == (count if frame == PING else 0)
        bridge.connection_lost(None)


@run
async def test_websocket_frames_wait_while_amqp_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed: list[bytes] = []
    monkeypatch.setattr(AmqpProtocol, "data_received", lambda _, data: passed.append(bytes(data)))
    async with Bus.ephemeral() as bus:
        bridge, wire = WebSocketBridge(AmqpConnections(bus, None), LOCAL), Wire()
        bridge.connection_made(wire)
        bridge.pause()
        bridge.data_received(websocket_frame(b"a") + websocket_frame(b"b"))
        assert not passed
        assert not wire.reads
        bridge.resume()
        await asyncio.sleep(0)
        assert passed == [b"a", b"b"]
        assert wire.reads
        bridge.connection_lost(None)


def open_with(peer: Peer, frame_max: int, window: int) -> None:
    """Open a connection whose client takes small frames, or few."""
    peer.feed(b"AMQP\x00\x01\x00\x00")
    peer.say(say.performative(say.OPEN, [to.string("peer"), to.NULL, to.uint(frame_max)]))
    windows = [to.uint(0), to.uint(window), to.uint(WINDOW)]
    peer.say(say.performative(say.BEGIN, [to.NULL, *windows]))
    peer.headers(1)


def body_of(heard: list[Any]) -> bytes:
    return b"".join(one.payload for one in heard if one.code == say.TRANSFER)


@run
async def test_a_large_delivery_is_cut_into_frames_in_slices() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        for letter in (b"a", b"b", b"c"):
            await bus.send("q", Message(body=letter * 900_000))
        peer = Peer(bus)
        open_with(peer, 512, WINDOW)
        peer.attach(0, say.RECEIVER, "q")
        peer.heard()
        # The drain ends behind the deliveries.
        peer.flow(0, 10, drain=True)
        found: list[Any] = []
        while not any(one.code == say.FLOW for one in found):
            some = peer.heard()
            assert len(some) <= connections._CUT_FRAMES + 1
            found += some
            await asyncio.sleep(0)
        *transfers, drained = found
        assert {one.code for one in transfers} == {say.TRANSFER}
        assert drained.fields[5:7] == [10, 0]
        bodies = body_of(transfers)
        assert [bodies.count(letter * 900_000) for letter in (b"a", b"b", b"c")] == [1, 1, 1]
        assert bodies.index(b"aaaa") < bodies.index(b"bbbb") < bodies.index(b"cccc")
        assert peer.connection.waiting_bytes == 0
        assert peer.connection.bodies.held_bytes == 0


@run
async def test_what_a_window_holds_back_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_WAITING_BYTES_MAX", 2_500_000)
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        for _ in range(10):
            await bus.send("q", Message(body=b"x" * 900_000))
        peer = Peer(bus)
        open_with(peer, 512, 1)
        for channel in range(1, 8):
            windows = [to.uint(0), to.uint(1), to.uint(WINDOW)]
            peer.say(say.performative(say.BEGIN, [to.NULL, *windows]), channel)
            peer.say(attach(0, say.RECEIVER, "q", "me"), channel)
            peer.say(say.flow(0, 1, 0, (0, 0, 1, False)), channel)
            for _ in range(3):
                peer.heard()
                await asyncio.sleep(0)
        # A delivery more than the bound was on its way when it was reached.
        assert 2_500_000 < peer.connection.waiting_bytes < 4_000_000
        assert bus.queue("q").held_count == 3
        # Others get theirs when a session with such a delivery ends.
        peer.say(say.end(None), 1)
        while bus.queue("q").held_count < 4:
            peer.heard()
            await asyncio.sleep(0)


@run
async def test_a_disposition_of_many_is_carried_out_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 3 * SETTLED_A_SLICE + 1
    sizes: list[int] = []
    settle: Any = settling.settle_each

    def counted(broker: Any, entity: str, tokens: list[bytes], *more: Any) -> Any:
        sizes.append(len(tokens))
        return settle(broker, entity, tokens, *more)

    monkeypatch.setattr(settling, "settle_each", counted)
    async with greeted() as (peer, bus):
        await bus.send_batch("q", [Message(body=b"x") for _ in range(count)])
        peer.attach(0, say.RECEIVER, "q")
        peer.flow(0, count)
        await peer.hear(say.TRANSFER, count)
        peer.say(say.disposition(say.RECEIVER, 0, count, say.accepted()))
        assert sizes == [SETTLED_A_SLICE]
        while bus.queue("q").held_count:
            await asyncio.sleep(0)
        assert sizes == [SETTLED_A_SLICE] * 3 + [1]


class Counting(dict[int, Any]):
    """Deliveries that count the passes over all of them."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()


@run
async def test_deliveries_of_ended_links_are_looked_for_once() -> None:
    async with greeted() as (peer, bus):
        await bus.send_batch("q", [Message(body=b"x") for _ in range(101)])
        for handle in range(40):
            peer.attach(handle, say.RECEIVER, "q")
            peer.flow(handle, 1)
            await peer.hear(say.TRANSFER)
        session = peer.connection.sessions[0]
        session.unsettled = counting = Counting(session.unsettled)
        for handle in range(39):
            peer.say(say.detach(handle, None))
        peer.heard()
        assert counting.looks == 1
        assert list(counting) == [39]


@run
async def test_links_take_several_turns() -> None:
    async with greeted() as (peer, _):
        many = b"".join(frame(0, attach(handle, say.RECEIVER, "q", "me")) for handle in range(200))
        peer.feed(many)
        assert peer.connection.is_behind
        assert 0 < peer.connection.link_count <= 50
        while peer.connection.is_behind:
            before = peer.connection.link_count
            peer.connection.read_on(0.0)
            assert peer.connection.link_count - before <= 50
            peer.heard()
        assert peer.connection.link_count == 200
