"""Connections on a socket: keys that are replaced, clients that do not read, and their timer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from onibus import Bus, Message
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.frames import PROTOCOL_HEADER, SASL, SASL_HEADER, Cutter, frame
from onibus.protocols.amqp.serving import AmqpConnections
from onibus.security.keys import AccessKey, Keyring
from tests.amqp.raw_client import attach
from tests.bus_helpers import run

_NAME, _SECRET = "orders-in", "0123456789abcdef"


@asynccontextmanager
async def _listening(keys: Keyring | None) -> AsyncIterator[tuple[Bus, AmqpConnections, int]]:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        connections = AmqpConnections(bus, keys)
        server = await asyncio.get_running_loop().create_server(connections, "127.0.0.1", 0)
        try:
            yield bus, connections, server.sockets[0].getsockname()[1]
        finally:
            connections.abort()
            server.close()
            await server.wait_closed()


class _Client:
    """Speaks by streams."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._cutter = Cutter(1 << 20)
        self._reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self, idle_ms: int = 0) -> None:
        """Come in with a name and its secret, and open a session."""
        self._reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        shown = to.binary(f"\0{_NAME}\0{_SECRET}".encode())
        self.writer.write(SASL_HEADER)
        await self._header()
        init = say.performative(0x41, [to.symbol("PLAIN"), shown, to.NULL])
        self.writer.write(frame(0, init, SASL))
        await self.expect(0x44)
        idle = to.uint(idle_ms) if idle_ms else to.NULL
        opened = [to.string("me"), to.NULL, to.uint(65_536), to.NULL, idle]
        self.writer.write(PROTOCOL_HEADER + frame(0, say.performative(say.OPEN, opened)))
        await self._header()
        windows = [to.uint(0), to.uint(1 << 30), to.uint(1 << 30)]
        self.say(say.performative(say.BEGIN, [to.NULL, *windows]))
        await self.expect(say.BEGIN)

    def say(self, performative: bytes) -> None:
        self.writer.write(frame(0, performative))

    async def _header(self) -> None:
        while self._cutter.header() is None:
            self._cutter.feed(await self._reader.readexactly(1))

    async def expect(self, code: int) -> list[Any]:
        """Return the fields of the next performative of that kind; 0 is an empty frame."""
        while True:
            for _, _, body in self._cutter.frames(1):
                found, fields, _ = say.read_list(body) if body else (0, [], 0)
                if found == code:
                    return fields
                break
            else:
                data = await self._reader.read(1 if code == 0x44 else 65_536)
                assert data, "the server has closed the connection"
                self._cutter.feed(data)


@run
async def test_keys_that_are_replaced_end_what_they_allowed() -> None:
    kept = AccessKey(name=_NAME, primary=_SECRET)
    keys = Keyring([kept])
    async with _listening(keys) as (bus, _, port):
        client = _Client(port)
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
        keys.replace([AccessKey(name=_NAME, primary="f" * 16)])
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
    async with _listening(None) as (_, connections, port):
        client = _Client(port)
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
async def test_the_timer_goes_by_what_comes_first() -> None:
    keys = Keyring([AccessKey(name=_NAME, primary=_SECRET)])
    async with _listening(keys) as (_, connections, port):
        client = _Client(port)
        await client.open(idle_ms=1_000)
        [one] = connections.open
        # Not when the handshake would have been given up.
        assert one._due <= asyncio.get_running_loop().time() + 1
        assert await client.expect(0) == []
        client.writer.close()
