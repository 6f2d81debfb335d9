"""A server of AMQP within the test, and a client of it that speaks by asyncio's streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from onibus import Bus
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.frames import PROTOCOL_HEADER, SASL, SASL_HEADER, Cutter, frame
from onibus.protocols.amqp.serving import AmqpConnections
from onibus.security.keys import Keyring

NAME, SECRET = "orders-in", "0123456789abcdef"


@asynccontextmanager
async def listening(keys: Keyring | None) -> AsyncIterator[tuple[Bus, AmqpConnections, int]]:
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


class StreamClient:
    """Speaks by streams."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._cutter = Cutter(1 << 20)
        self._reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self, idle_ms: int = 0) -> None:
        """Come in with a name and its secret, and open a session."""
        self._reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        shown = to.binary(f"\0{NAME}\0{SECRET}".encode())
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

    async def expect_end(self) -> None:
        """Wait until the server has closed the connection."""
        while await self._reader.read(65_536):
            pass
