"""Connections on a socket: keys that are replaced, clients that do not read, and their timer."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from wsproto.connection import Connection as WebSocket
from wsproto.connection import ConnectionType
from wsproto.events import BytesMessage

from onibus import Message
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp import serving
from onibus.protocols.amqp.frames import PROTOCOL_HEADER, frame
from onibus.protocols.amqp.websocket import WebSocketBridge
from onibus.security.keys import AccessKey, Keyring
from tests.amqp.raw_client import attach, message, transfer
from tests.amqp.stream_client import NAME, SECRET, StreamClient, listening
from tests.bus_helpers import run


@run
async def test_keys_that_are_replaced_end_what_they_allowed() -> None:
    kept = AccessKey(name=NAME, primary=SECRET)
    keys = Keyring([kept])
    async with listening(keys) as (bus, _, port):
        client = StreamClient(port)
        await client.open()
        client.say(attach(0, say.RECEIVER, "q", "me"))
        client.say(say.flow(0, 1 << 30, 0, (0, 0, 10, False)))
        client.say(attach(1, say.SENDER, "me", "q"))
        await client.expect(say.ATTACH)
        await client.expect(say.ATTACH)
        # Of others nothing is ended.
        keys.replace([kept, AccessKey(name="another", primary="f" * 16)])
        await bus.send("q", Message(body=b"x"))
        await client.expect(say.TRANSFER)
        keys.replace([AccessKey(name=NAME, primary="f" * 16)])
        for _ in range(2):
            told = (await client.expect(say.DETACH))[2].value
            assert told[0] == "amqp:unauthorized-access"
        await bus.send("q", Message(body=b"x"))
        client.say(say.detach(0, None))
        client.say(attach(0, say.RECEIVER, "q", "me"))
        assert (await client.expect(say.DETACH))[2].value[0] == "amqp:unauthorized-access"
        assert bus.queue("q").held_count == 1
        client.writer.close()


@run
async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    async with listening(None) as (_, connections, port):
        client = StreamClient(port)
        await client.open()
        [one] = connections.open
        one.pause_writing()
        client.say(attach(0, say.RECEIVER, "q", "me"))
        await client.writer.drain()
        await asyncio.sleep(0.05)
        assert not one._transport.is_reading()
        assert one._connection.link_count == 0
        one.resume_writing()
        await client.expect(say.ATTACH)
        # One that keeps what it was told last unread is waited for a while, and then no more.
        one._connection.lost()
        one._write()
        assert one._timer is not None
        assert one._timer.when() <= asyncio.get_running_loop().time() + 5
        client.writer.close()


@run
async def test_a_sender_of_settled_deliveries_is_read_from_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server pauses it until its deliveries are stored, and sends no disposition for them."""
    monkeypatch.setattr(serving, "HELD_BYTES_MAX", 1_000)
    async with listening(None) as (bus, _, port):
        client = StreamClient(port)
        await client.open()
        client.say(attach(0, say.SENDER, "me", "q"))
        await client.expect(say.ATTACH)
        for number in range(1, 6):
            client.say(transfer(0, number, message(b"x" * 2_000), settled=True))
            async with asyncio.timeout(60):
                while bus.queue("q").active_count < number:
                    await asyncio.sleep(0.01)
        client.writer.close()


@run
async def test_a_client_that_is_idle_does_not_hold_up_a_stop() -> None:
    """The plain client of Python answers nothing until it is used again."""
    async with listening(None) as (_, connections, port):
        client = StreamClient(port)
        await client.open()
        await asyncio.wait_for(connections.drain(3_600), 60)
        assert connections.open == set()
        told = await client.expect(say.CLOSE)
        assert told[0].value[0] == "amqp:connection:forced"
        client.writer.close()


@pytest.mark.promise("B8")
@run
async def test_a_client_over_websocket_does_not_spoil_a_stop() -> None:
    async with listening(None) as (_, connections, _):
        loop = asyncio.get_running_loop()
        bridge = partial(WebSocketBridge, connections)
        peers = connections.peers
        server = await loop.create_server(lambda: bridge(peers.join()), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened = say.performative(say.OPEN, [to.string("me")])
        frames = WebSocket(ConnectionType.CLIENT)
        writer.write(frames.send(BytesMessage(data=PROTOCOL_HEADER + frame(0, opened))))
        assert PROTOCOL_HEADER in await reader.read(65_536)
        await asyncio.wait_for(connections.drain(3_600), 60)
        assert b"amqp:connection:forced" in await reader.read()
        writer.close()
        server.close()


@run
async def test_the_timer_goes_by_what_comes_first() -> None:
    keys = Keyring([AccessKey(name=NAME, primary=SECRET)])
    async with listening(keys) as (_, connections, port):
        client = StreamClient(port)
        await client.open(idle_ms=1_000)
        [one] = connections.open
        # Not when the handshake would have been given up.
        assert one._due <= asyncio.get_running_loop().time() + 1
        assert await client.expect(0) == []
        client.writer.close()
