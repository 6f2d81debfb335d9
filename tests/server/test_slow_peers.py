"""Every listener ends slow peers: silent ones, slow senders and slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
import uvloop

from onibus import Bus, Message
from onibus.protocols.amqp import connection as amqp_connection
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp import serving, websocket
from onibus.protocols.amqp.service_bus import client as amqp_client
from onibus.protocols.http.limits import Limits
from onibus.security.keys import ROOT_NAME, AccessKey, Keyring
from onibus.server import tls
from onibus.server.server import Server
from tests.amqp.raw_client import attach
from tests.server import strangers
from tests.server.http_helpers import get, post
from tests.server.strangers import SECRET, UPGRADE, amqp_open, websocket_frame

#: Every deadline of the server in these tests.
SECONDS = 0.3
LIMITS = Limits(
    head_seconds=SECONDS,
    body_seconds=SECONDS,
    body_rate_min=1 << 20,
    idle_seconds=SECONDS,
    write_seconds=SECONDS,
    linger_seconds=SECONDS,
)
#: Much longer, for busy machines.
PATIENCE_S = 120
BIG = 1 << 20


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp_connection, "HANDSHAKE_S", SECONDS)
    monkeypatch.setattr(amqp_connection, "_PATIENCE_S", SECONDS)
    monkeypatch.setattr(amqp_client, "NAMELESS_S", SECONDS)
    monkeypatch.setattr(serving, "LINGER_S", SECONDS)
    monkeypatch.setattr(websocket, "LINGER_S", SECONDS)


@asynccontextmanager
async def served(
    secure: ssl.SSLContext | None = None, limits: Limits = LIMITS
) -> AsyncIterator[Server]:
    """Run a server on all listeners, including AMQPS if TLS is given."""
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        await bus.create_queue("big", max_message_bytes=2 * BIG)
        for _ in range(20):
            await bus.send("big", Message(body=bytes(BIG)))
        keys = Keyring([AccessKey(name=ROOT_NAME, primary=SECRET)])
        async with Server(
            bus,
            keys,
            http_port=0,
            amqp_port=0,
            amqps_port=None if secure is None else 0,
            sqs_port=0,
            tls=secure,
            limits=limits,
        ) as server:
            yield server


class Slow:
    """A peer that sends some bytes at once, then byte by byte, and may read nothing."""

    def __init__(self, at_once: bytes, drops: bytes = b"", *, reads: bool = True) -> None:
        self.at_once = at_once
        self.drops: Iterator[int] = cycle(drops) if drops else iter(())
        self.reads = reads
        self.connected = False

    async def talk(self, port: int, secure: ssl.SSLContext | None) -> None:
        """Send until the connection ends."""
        name = None if secure is None else "localhost"
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=secure, server_hostname=name, limit=1_000
        )
        self.connected = True
        reading = asyncio.ensure_future(self._read(reader))
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            writer.write(self.at_once)
            while not reading.done():
                for drop in self.drops:
                    writer.write(bytes([drop]))
                    break
                await asyncio.sleep(0.02)
        reading.cancel()
        writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            if not self.reads:
                await asyncio.sleep(3_600)
            while await reader.read(65_536):
                pass


def of_http() -> dict[str, Slow]:
    known = strangers.authorization()
    head = get("/v1/queues", known)
    chunks = get(strangers.SEND, known, "transfer-encoding: chunked", method="POST")
    ask = post("/v1/entities/big/peek", {"limit": 1}, known)
    return {
        "silent": Slow(b""),
        "a head in drops": Slow(b"", head[:-2] + b"x: y\r\n" * 1_000),
        "a body in drops": Slow(post(strangers.SEND, b"x" * 100_000, known)[:-99_999], b"x"),
        "a body in drops of nobody": Slow(post(strangers.SEND, b"x" * 100_000)[:-99_999], b"x"),
        "chunks in drops": Slow(chunks, b"1\r\nx\r\n"),
        "silent after a request": Slow(head),
        "drops after a request": Slow(head, head),
        "drops after a refusal": Slow(b"nonsense\r\n\r\n", b"x"),
        "answers unread": Slow(ask * 50, reads=False),
        "an answer unread, and the last": Slow(
            post("/v1/entities/big/peek", {"limit": 1}, known, "connection: close"), reads=False
        ),
        "an upgrade in drops": Slow(b"", UPGRADE[:-2] + b"x: y\r\n" * 1_000),
    }


def of_sqs(port: int) -> dict[str, Slow]:
    whole = strangers.sqs_request(port, "SendMessage", QueueUrl="q", MessageBody="x" * 1_000)
    head = whole.index(b"\r\n\r\n") + 4
    return {
        "silent": Slow(b""),
        "a head in drops": Slow(b"", whole[: head - 2] + b"x: y\r\n" * 1_000),
        "a head, and nothing": Slow(whole[:head]),
        "a body in drops": Slow(whole[: head + 10], b"x"),
        "silent after a request": Slow(whole),
    }


def of_amqp() -> dict[str, Slow]:
    credit = say.flow(0, 1_000, 0, (0, 0, 100, False))
    nameless = say.performative(0x41, [to.symbol("ANONYMOUS"), to.NULL, to.NULL])
    opened = amqp_open()
    anonymous = opened[:8] + struct.pack(">IBBH", 8 + len(nameless), 2, 1, 0) + nameless
    return {
        "silent": Slow(b""),
        "a handshake in drops": Slow(b"", opened),
        "a frame in drops": Slow(opened[:8] + b"\0\0\1\0\2\1\0\0", b"x"),
        "opened, and no token": Slow(anonymous + opened[opened.index(b"AMQP", 8) :]),
        "messages unread": Slow(
            amqp_open(attach(0, say.RECEIVER, "big", "me"), credit), reads=False
        ),
        "opened, and silent": Slow(opened),
    }


def of_websocket() -> dict[str, Slow]:
    wrapped = {
        name: Slow(UPGRADE + websocket_frame(slow.at_once), reads=slow.reads)
        for name, slow in of_amqp().items()
    }
    ping = websocket_frame(b"", 9)
    return {
        **wrapped,
        "a frame in drops": Slow(UPGRADE + websocket_frame(amqp_open())[:20], b"x"),
        "pings and nothing else": Slow(UPGRADE, ping),
        "closed, and nothing read": Slow(
            UPGRADE
            + websocket_frame(
                amqp_open(
                    attach(0, say.RECEIVER, "big", "me"), say.flow(0, 1_000, 0, (0, 0, 100, False))
                )
            )
            + websocket_frame(b"", 8),
            reads=False,
        ),
    }


def of_handshakes() -> dict[str, Slow]:
    begun = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)
    return {
        "silent": Slow(b""),
        "a handshake in drops": Slow(b"", begun),
        "a handshake begun": Slow(begun[:20]),
    }


async def check(server: Server, secure: ssl.SSLContext | None) -> None:
    """Check that the server ends all slow peers."""
    http, amqp, sqs = server.http_port, server.amqp_port, server.sqs_port
    assert amqp is not None
    assert sqs is not None
    peers = [
        *((f"HTTP: {name}", http, slow) for name, slow in of_http().items()),
        *((f"WebSocket: {name}", http, slow) for name, slow in of_websocket().items()),
        *((f"AMQP: {name}", amqp, slow) for name, slow in of_amqp().items()),
        *((f"SQS: {name}", sqs, slow) for name, slow in of_sqs(sqs).items()),
    ]
    if server.amqps_port is not None:
        amqps = server.amqps_port
        peers += [(f"AMQPS: {name}", amqps, slow) for name, slow in of_amqp().items()]
        peers += [
            (f"TLS on {port}: {name}", port, slow)
            for port in (http, amqp, amqps, sqs)
            for name, slow in of_handshakes().items()
        ]
    tasks = {
        name: asyncio.ensure_future(slow.talk(port, None if name.startswith("TLS") else secure))
        for name, port, slow in peers
    }
    try:
        async with asyncio.timeout(PATIENCE_S):
            while server.peers.count or not all(slow.connected for _, _, slow in peers):
                await asyncio.sleep(0.01)
    except TimeoutError:
        left = [name for name, task in tasks.items() if not task.done()]
        raise AssertionError(f"{server.peers.count} are left, of {left}") from None
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


def test_slow_peers_are_ended_on_every_listener() -> None:
    async def run() -> None:
        async with served() as server:
            await check(server, None)

    uvloop.run(run())


def test_slow_peers_are_ended_on_every_listener_with_tls(tmp_path: Path) -> None:
    files = tls.self_made(tmp_path, "127.0.0.1")

    async def run() -> None:
        async with served(tls.context(*files)) as server:
            await check(server, ssl.create_default_context(cafile=files[0]))

    uvloop.run(run())


def test_who_has_said_nothing_yet_is_not_idle() -> None:
    async def run() -> None:
        async with served(limits=replace(LIMITS, idle_seconds=3_600)) as server:
            ports = [port for port in (server.http_port, server.sqs_port) if port is not None]
            silent = [asyncio.ensure_future(Slow(b"").talk(port, None)) for port in ports]
            known = get("/v1/queues", strangers.authorization())
            status, tries = b"", []
            while status != b"200":
                # On a busy machine even this request may come too late.
                reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
                tries.append(writer)
                writer.write(known)
                status = (await reader.readline())[9:12]
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*silent)
                while server.peers.count > 1:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(2 * SECONDS)
            assert server.peers.count == 1
            for writer in tries:
                writer.close()

    uvloop.run(run())
