"""Reference counting frees an ended connection at once; the garbage collector is off here."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from onibus import Bus, Message
from onibus.security.keys import ROOT_NAME, AccessKey, Keyring
from onibus.server import tls
from onibus.server.server import Server
from tests.bus_helpers import PATIENCE_S
from tests.server import strangers
from tests.server.strangers import SECRET, cut

#: Connections of each kind.
TIMES = 3
#: Modules whose objects belong to connections.
PARTS = ("onibus.protocols.", "onibus.operation.peers", "wsproto", "httptools", "uvloop.loop.TCP")


def parts() -> Counter[str]:
    """Return the number of objects that belong to connections, by type."""
    kinds = (type(one) for one in gc.get_objects())
    names = Counter(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    return Counter({name: count for name, count in names.items() if name.startswith(PARTS)})


@asynccontextmanager
async def served(secure: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Run a server on every protocol in this process, without garbage collection."""
    async with Bus.ephemeral() as bus:
        for name in ("q", "empty"):
            await bus.create_queue(name)
        await bus.create_queue("s", requires_session=True)
        await bus.create_queue("big", max_message_bytes=1 << 22)
        for _ in range(4):
            await bus.send("big", Message(body=bytes(1 << 21)))
        keys = Keyring([AccessKey(name=ROOT_NAME, primary=SECRET)])
        async with Server(bus, keys, http_port=0, amqp_port=0, sqs_port=0, tls=secure) as server:
            gc.collect()
            gc.freeze()  # skip the objects of the set-up
            gc.disable()
            try:
                yield server
            finally:
                gc.enable()
                gc.unfreeze()


async def settle(server: Server) -> None:
    """Wait until all connections and their requests have ended."""
    async with asyncio.timeout(PATIENCE_S):
        while server.peers.count or server.peers.bodies.held_bytes:
            await asyncio.sleep(0.001)


async def grown(before: Counter[str]) -> Counter[str]:
    """Return the objects that are new; the loop may take a few turns to free those of the last."""
    for _ in range(100):
        if not (more := parts() - before):
            break
        await asyncio.sleep(0.001)
    return more


def connected(port: int, sent: bytes, client: ssl.SSLContext | None) -> socket.socket:
    """Connect and send something."""
    sock = socket.create_connection(("127.0.0.1", port))
    if client is not None:
        sock = client.wrap_socket(sock, server_hostname="localhost")
    sock.sendall(sent)
    return sock


async def cut_some(server: Server, port: int, sent: bytes, client: ssl.SSLContext | None) -> None:
    """Connect a few times, send something, and cut the connections once it was read."""
    socks = [await asyncio.to_thread(connected, port, sent, client) for _ in range(TIMES)]
    await asyncio.sleep(0.02)
    for sock in socks:
        cut(sock)
    await settle(server)


async def check(
    server: Server,
    kinds: dict[str, bytes],
    port: int | None,
    client: ssl.SSLContext | None = None,
) -> None:
    """Check that nothing is left of connections that sent any of this and were cut."""
    assert port is not None
    left: dict[str, Counter[str]] = {}
    for name, sent in kinds.items():
        # The first rounds fill caches. A leak grows with every round.
        for _ in range(10):
            before = parts()
            await cut_some(server, port, sent, client)
            left[name] = await grown(before)
            if not left[name]:
                del left[name]
                break
    assert not left
    assert server.peers.bodies.held_bytes == 0
    assert server.peers.held_bytes == 0


async def of_http(server: Server, client: ssl.SSLContext | None) -> None:
    await check(server, strangers.http(), server.http_port, client)


async def of_amqp(server: Server, client: ssl.SSLContext | None) -> None:
    await check(server, strangers.amqp(), server.amqp_port, client)


async def of_websocket(server: Server, client: ssl.SSLContext | None) -> None:
    await check(server, strangers.websocket(), server.http_port, client)


async def of_sqs(server: Server, client: ssl.SSLContext | None) -> None:
    assert server.sqs_port is not None
    await check(server, strangers.sqs(server.sqs_port), server.sqs_port, client)


Check = Callable[[Server, "ssl.SSLContext | None"], Awaitable[None]]
ALL = pytest.mark.parametrize("protocol", [of_http, of_amqp, of_websocket, of_sqs])


@ALL
def test_nothing_keeps_a_connection_that_was_cut_off(protocol: Check) -> None:
    async def run() -> None:
        async with served() as server:
            await protocol(server, None)

    uvloop.run(run())


@ALL
def test_nothing_keeps_a_connection_over_tls(tmp_path: Path, protocol: Check) -> None:
    files = tls.self_made(tmp_path, "127.0.0.1")

    async def run() -> None:
        async with served(tls.context(*files)) as server:
            await protocol(server, ssl.create_default_context(cafile=files[0]))

    uvloop.run(run())


def test_nothing_keeps_a_connection_that_never_spoke_tls(tmp_path: Path) -> None:
    begun = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)

    async def run() -> None:
        async with served(tls.context(*tls.self_made(tmp_path, "127.0.0.1"))) as server:
            kinds = {"silent": b"", "part of a handshake": begun, "nonsense": b"\x16\x03\x01hello"}
            for port in (server.http_port, server.amqp_port, server.sqs_port):
                await check(server, kinds, port)

    uvloop.run(run())
