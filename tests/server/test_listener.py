"""The port itself: small answers do not wait, and nobody's silence holds up the end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from onibus.operation.peers import Peers
from onibus.protocols.http.connections import Connections
from onibus.protocols.http.messages import Request, Respond, Response
from onibus.server.listener import Listener
from tests.bus_helpers import PATIENCE_S, run, until


class Noting(asyncio.Protocol):
    """Notes who came."""

    came: list[Any]

    def connection_made(self, transport: Any) -> None:
        self.came.append(transport)


@run
async def test_small_answers_do_not_wait_for_others() -> None:
    Noting.came = []
    listener = Listener(lambda peer: Noting())
    await listener.start("localhost", 0)
    _, writer = await asyncio.open_connection("localhost", listener.port)
    await until(lambda: Noting.came)
    sock = Noting.came[0].get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    listener.close()
    writer.close()


@run
async def test_a_connection_that_is_evicted_as_soon_as_it_is_accepted_leaves_nothing() -> None:
    peers = Peers(connections_max=1)
    listener = Listener(Connections(Never(), peers=peers), peers=peers)
    await listener.start("127.0.0.1", 0)
    # The loop accepts all of them in one turn: only the last one stays.
    socks = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(10)]
    await until(lambda: peers.evicted >= 9 and peers.count <= 1)
    for sock in socks[:-1]:
        sock.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionError):
            assert sock.recv(1) == b""
    socks[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        socks[-1].recv(1)
    for sock in socks:
        sock.close()
    listener.close()
    await until(lambda: not peers.count)


class Never:
    """An app that hears and does not answer."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    def __call__(self, request: Request, respond: Respond) -> None:
        self.heard.set()

    def look(self, request: Request) -> Response | None:
        return None


@run
async def test_what_is_never_answered_can_be_cut_off() -> None:
    app = Never()
    connections = Connections(app)
    listener = Listener(connections)
    await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await app.heard.wait()
    listener.close()
    draining = asyncio.ensure_future(connections.drain(60))
    await asyncio.sleep(0.05)
    assert not draining.done()
    connections.abort()
    await draining
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
