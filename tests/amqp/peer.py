"""A connection without a network: what a peer says goes in, what the server says comes out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from onibus import Bus
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.connection import Connection
from onibus.protocols.amqp.decode import decode
from onibus.protocols.amqp.frames import PROTOCOL_HEADER, Cutter, frame
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.client import Client
from onibus.security.keys import Doorkeeper
from onibus.shard.clock import Clock
from tests.amqp.raw_client import attach, transfer


class Heard(NamedTuple):
    """A performative that the server said."""

    channel: int
    code: int
    fields: list[Any]
    payload: bytes

    @property
    def condition(self) -> str:
        """The condition of the error in a close, an end or a detach."""
        error = self.fields[2 if self.code == say.DETACH else 0]
        return str(error.value[0])


class Peer:
    """One connection to a bus."""

    def __init__(self, bus: Bus, keys: Doorkeeper | None = None) -> None:
        self.connection = Connection("test", 0.0)
        self.client = Client(bus, keys, self.connection)
        self.connection.application = self.client
        self._cutter = Cutter(1 << 20)
        self._requests = 1_000

    def feed(self, content: bytes, piece: int = 0) -> None:
        """Send bytes, whole or in pieces."""
        for at in range(0, len(content), piece or max(len(content), 1)):
            self.connection.feed(content[at : at + piece] if piece else content, 0.0)

    def say(self, performative: bytes, channel: int = 0) -> None:
        self.feed(frame(channel, performative))

    def greet(self) -> None:
        """Open the connection and a session."""
        self.feed(PROTOCOL_HEADER)
        self.say(say.performative(say.OPEN, [to.string("peer"), to.NULL, to.uint(65_536)]))
        self.begin(0)
        self.headers(1)

    def begin(self, channel: int) -> None:
        windows = [to.uint(0), to.uint(1 << 30), to.uint(1 << 30)]
        self.say(say.performative(say.BEGIN, [to.NULL, *windows]), channel)

    def attach(self, handle: int, role: bool, address: str, **more: Any) -> None:
        self.say(attach(handle, role, address, address, **more))

    def flow(self, handle: int, credit: int, count: int = 0, drain: bool = False) -> None:
        self.say(say.flow(0, 1 << 30, 0, (handle, count, credit, drain)))

    def open_requests(self, address: str, handle: int = 100) -> None:
        """Attach the two links by which requests about an entity go and are answered."""
        self.attach(handle, say.RECEIVER, address)
        self.attach(handle + 1, say.SENDER, address)
        self.flow(handle, 100)
        self.heard()

    async def request(
        self,
        operation: str,
        body: dict[str, bytes],
        handle: int = 100,
        state: bytes = to.NULL,
        **properties: bytes,
    ) -> tuple[int, Any]:
        """Make a request; return the status of its answer, and its body."""
        told, value = await self.ask(operation, body, handle, state, **properties)
        return told["statusCode"], value

    async def ask(
        self,
        operation: str,
        body: dict[str, bytes],
        handle: int = 100,
        state: bytes = to.NULL,
        **properties: bytes,
    ) -> tuple[dict[str, Any], Any]:
        """Make a request; return the application properties of its answer, and its body."""
        self.feed(self.framed_request(operation, body, handle, state, **properties))
        return await self.response()

    async def response(self) -> tuple[dict[str, Any], Any]:
        """Return the application properties of an answer, and its body."""
        [answer] = await self.hear(say.TRANSFER)
        found = {code: value for code, _, value, _ in sections.split(answer.payload)}
        told, _ = decode(answer.payload, found[sections.APPLICATION_PROPERTIES])
        return told, decode(answer.payload, found[sections.VALUE])[0]

    def say_request(self, operation: str, body: dict[str, bytes], handle: int = 100) -> None:
        self.feed(self.framed_request(operation, body, handle))

    def framed_request(
        self,
        operation: str,
        body: dict[str, bytes],
        handle: int = 100,
        state: bytes = to.NULL,
        **properties: bytes,
    ) -> bytes:
        given = {name.replace("_", "-"): value for name, value in properties.items()}
        named = to.text_map({"operation": to.string(f"com.microsoft:{operation}"), **given})
        payload = sections.section(sections.APPLICATION_PROPERTIES, named)
        payload += sections.section(sections.VALUE, to.text_map(body))
        self._requests += 1
        return frame(0, transfer(handle + 1, self._requests, payload, state=state))

    async def declare(self, handle: int) -> bytes:
        """Open a transaction at a coordinator of its own; return its id, encoded."""
        self.say(
            attach(handle, say.SENDER, "me", "", terminus=say.performative(say.COORDINATOR, []))
        )
        self.heard()
        told = await self.coordinate(handle, say.performative(say.DECLARE, [to.NULL]))
        return to.binary(told.value[0])

    async def coordinate(self, handle: int, asked: bytes) -> Any:
        """Tell a coordinator something; return the outcome."""
        self._requests += 1
        self.say(transfer(handle, self._requests, sections.section(sections.VALUE, asked)))
        [told] = await self.hear(say.DISPOSITION)
        return told.fields[4]

    def headers(self, count: int) -> list[bytes]:
        """Return the protocol headers that come next."""
        self._cutter.feed(self.connection.take(0.0))
        found = [self._cutter.header() for _ in range(count)]
        return [header for header in found if header is not None]

    def heard(self) -> list[Heard]:
        """Return what the server has said since."""
        self._cutter.feed(self.connection.take(0.0))
        return [
            Heard(channel, code, fields, body[at:])
            for _, channel, body in self._cutter.frames()
            if body
            for code, fields, at in [say.read_list(body)]
        ]

    async def hear(self, code: int, count: int = 1) -> list[Heard]:
        """Wait for performatives of one kind."""
        found: list[Heard] = []
        while len(found) < count:
            found += [one for one in self.heard() if one.code == code]
            await asyncio.sleep(0)
        return found


@asynccontextmanager
async def greeted(clock: Clock | None = None, **settings: Any) -> AsyncIterator[tuple[Peer, Bus]]:
    """Open a connection and a session to a bus with one queue."""
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", **settings)
        peer = Peer(bus)
        peer.greet()
        peer.heard()
        yield peer, bus
