"""A whole server in this process, fed byte streams through pairs of sockets.

Everything is as in `onibus serve` but for the listeners and the disk. A new server replaces it
after some inputs, so that their changes do not add up and every block of inputs begins alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from onibus import Bus, Message
from onibus.core.rules.rule import Rule, SqlFilter
from onibus.protocols.http.limits import Limits
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import Keyring
from onibus.server.server import Server
from tests.fuzz.registry import BLOCK
from tests.fuzz.requests import Request

#: Nothing takes so long, whatever else the machine does: a connection that is not closed is stuck.
_PATIENCE_S = 120.0
_MB = 1 << 20
#: Small, so that an input of some kilobytes comes near to them.
LIMITS = Limits(body_bytes_max=8 * _MB, all_bodies_bytes_max=32 * _MB, answer_bytes_max=_MB)


#: Where a stream has these, a message, a session and a receipt that are really held are put: as
#: long as these are, so that no length changes.
HELD, SESSION, HANDLE = "message".ljust(32, "@"), "session".ljust(32, "@"), "receipt".ljust(48, "@")
_NAMES = {"q", "p", "s", "f.fifo", "t", "t/subscriptions/u"}


class Answer(NamedTuple):
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes


class Service:
    """A server, and its clients."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._bus: Bus | None = None
        self._fed = 0
        self._held: dict[bytes, bytes] = {}
        self._server: Server
        #: a server of the same bus that asks for credentials
        self._strict: Server

    def begin(self) -> None:
        """Let the next input find a new server."""
        self._fed = 0

    def next(self) -> None:
        """Begin another input: with a new server, if the one before has seen enough of them."""
        if self._fed % BLOCK == 0 or not self._is_whole():
            self._loop.run_until_complete(self._renew())
        self._fed += 1

    def _is_whole(self) -> bool:
        """Return whether nothing was deleted that inputs are about."""
        bus = self._bus
        return bus is not None and bus.broker.namespace.entities.keys() >= _NAMES

    def http(self, stream: bytes, *, strict: bool = False) -> bytes:
        """Return what the listener of the native API and of management answers."""
        server = self._strict if strict else self._server
        return self._feed(server._connections, stream)

    def sqs(self, stream: bytes, *, strict: bool = False) -> bytes:
        """Return what the listener of SQS answers."""
        server = self._strict if strict else self._server
        return self._feed(server.sqs, stream)

    def _feed(self, listener: Any, stream: bytes) -> bytes:
        # Some streams come in pieces, with a pause after each.
        for name, value in self._held.items():
            stream = stream.replace(name, value)
        check = zlib.crc32(stream)
        piece = len(stream) if check & 0x300 else 1 + (check >> 10) % 700
        return self._loop.run_until_complete(self._converse(listener, stream, piece or 1))

    async def _converse(self, factory: Any, stream: bytes, piece: int) -> bytes:
        loop, said = self._loop, bytearray()
        theirs, ours = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        async with asyncio.timeout(_PATIENCE_S):
            with ours:
                await loop.connect_accepted_socket(factory, theirs)
                sending = loop.create_task(_send(loop, ours, stream, piece))
                with contextlib.suppress(ConnectionError):
                    while some := await loop.sock_recv(ours, 1 << 16):
                        said += some
                await sending
        return bytes(said)

    async def _check(self, bus: Bus) -> None:
        """Send and receive a message: the server still works, and holds nothing any more."""
        await self._ask("/v1/entities/kept/messages", {"body": "well"})
        answer = await self._ask("/v1/entities/kept/receive", {"delete": True})
        assert answer["messages"][0]["body"] == "well"
        assert not bus.alarms, bus.alarms
        for server in (self._server, self._strict):
            for connections in (server._connections, server.sqs):
                async with asyncio.timeout(_PATIENCE_S):
                    # One that was refused while it sent ahead stays for two seconds.
                    while connections.open:
                        await asyncio.sleep(0.01)
                assert server.app.bodies.held_bytes == 0

    async def _renew(self) -> None:
        """Begin again: entities of each kind, and messages in each state."""
        if self._bus is not None:
            await self._check(self._bus)
            await self._strict.stop(0)
            await self._server.stop(0)
        self._bus = bus = await Bus.ephemeral()
        self._server = Server(bus, None, amqp_port=0, limits=LIMITS)
        keys = KeptKeys(bus, Keyring(development=True))
        self._strict = Server(bus, keys, amqp_port=0, limits=LIMITS)
        # No input has its name, or deletes it but by guessing.
        await bus.create_queue("kept")
        await fill(bus)
        self._held = await self._hold()

    async def _hold(self) -> dict[bytes, bytes]:
        """Receive what inputs may settle."""
        message = await self._ask("/v1/entities/q/receive", {})
        session = await self._ask("/v1/entities/s/sessions/accept", {"session_id": "a"})
        wanted = [("x-amz-target", "AmazonSQS.ReceiveMessage"), ("host", "localhost")]
        asked = Request("POST", "/", wanted, b'{"QueueUrl": "/000000000000/q"}')
        said = await self._converse(self._server.sqs, asked.bytes(), 1 << 16)
        [received] = answers(said)
        found = {
            HELD: message["messages"][0]["token"],
            SESSION: session["token"],
            HANDLE: json.loads(received.body)["Messages"][0]["ReceiptHandle"],
        }
        assert all(len(name) == len(value) for name, value in found.items()), found
        return {name.encode(): value.encode() for name, value in found.items()}

    async def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a request that must succeed."""
        content = json.dumps(body).encode()
        request = Request("POST", path, [("host", "localhost")], content)
        said = await self._converse(self._server._connections, request.bytes(), 1 << 16)
        [answer] = answers(said)
        assert answer.status == 200, answer
        return json.loads(answer.body)


async def fill(bus: Bus) -> None:
    """Make what inputs are about."""
    kept = {"retention_ms": 600_000}
    await bus.create_queue("q", requires_duplicate_detection=True, **kept)
    await bus.create_queue("p", enable_partitioning=True, **kept)
    await bus.create_queue("s", requires_session=True, **kept)
    await bus.create_queue("f.fifo", fifo=True, **kept)
    await bus.create_topic("t", **kept)
    rule = Rule(name="r", filter=SqlFilter("n = 1 OR sys.Label LIKE 'a%'"))
    await bus.create_subscription("t", "u", rules=[rule])
    for number in range(6):
        await bus.send("q", Message(body=b"%d" % number, message_id=str(number)))
    async with bus.receiver("q") as receiver:
        first, second = await receiver.receive(2)
        await receiver.defer(first)
        await receiver.dead_letter(second, reason="why")
    await bus.send("s", Message(body=b"x", session_id="a"))
    await bus.send("t", Message(body=b"x", properties={"n": 1}))


async def _send(
    loop: asyncio.AbstractEventLoop, ours: socket.socket, stream: bytes, piece: int
) -> None:
    # The server may close before it has read everything.
    with contextlib.suppress(OSError):
        for at in range(0, len(stream), piece):
            await loop.sock_sendall(ours, stream[at : at + piece])
            await asyncio.sleep(0)
        ours.shutdown(socket.SHUT_WR)


def answers(said: bytes, stream: bytes = b"") -> Iterator[Answer]:
    """Yield the responses in what a server said to a stream; they must be well formed."""
    while said:
        head, found, said = said.partition(b"\r\n\r\n")
        assert found, head
        line, *lines = head.decode("latin-1").split("\r\n")
        version, status = line.split(" ")[:2]
        assert version == "HTTP/1.1", line
        headers = dict(one.split(": ", 1) for one in lines)
        body = b""
        # A response to HEAD has the length of a body, and none.
        bodiless = b"HEAD" in stream and (not said or said.startswith(b"HTTP/1.1 "))
        if bodiless:
            pass
        elif headers.get("transfer-encoding") == "chunked":
            body, said = _chunks(said)
        elif "content-length" in headers:
            length = int(headers["content-length"])
            assert len(said) >= length, "the response is cut off"
            body, said = said[:length], said[length:]
        yield Answer(int(status), headers, body)
        if status == "101":
            return


def _chunks(said: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, said = said.partition(b"\r\n")
        length = int(size, 16)
        body, said = body + said[:length], said[length + 2 :]
        if not length:
            return body, said
