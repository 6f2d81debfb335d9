"""Native code that reads what a peer wrote: TLS and WebSocket.

Arrow is in test_hostile_arrow.py; tests/fuzz covers llhttp, expat, msgspec and zlib.
"""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from onibus.server import tls
from tests.server.processes import Served, served
from tests.server.test_hostile_arrow import peak_bytes

MB = 1 << 20
#: Clients that say something else than hello.
HELLOS = 400
GROWN_BYTES_MAX = 64 * MB


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("tls")
    with served("--tls", "--data", data, "--log-level", "error") as server:
        yield server


def hello() -> bytes:
    """Return the first bytes of a client that speaks TLS."""
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(coming, going, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return going.read()


def said(port: int, data: bytes) -> bytes:
    """Return what a server says to some bytes, until it closes or says nothing for a while."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), 30) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        try:
            while some := sock.recv(65_536):
                found += some
        except ConnectionError:
            pass
    return found


def test_a_handshake_may_be_anything(server: Served) -> None:
    chance, good = random.Random(5), hello()
    assert said(server.port, good)[:1] == b"\x16"
    before = peak_bytes(server)
    ports = [server.port, int(server.ready["amqp"].rpartition(":")[2])]
    for number in range(HELLOS):
        data = bytearray(good)
        for _ in range(chance.choice((1, 2, 8))):
            at = chance.randrange(1, len(data))
            data[at] = chance.choice((0, 0xFF, chance.randrange(256)))
        if number % 4 == 0:
            del data[chance.randrange(1, len(data)) :]
        if number % 7 == 0:
            data += chance.randbytes(20_000)
        said(ports[number % 2], bytes(data))
    trusting = ssl.create_default_context(cafile=server.ready["certificate"])
    with server.client(verify=trusting) as client:
        assert client.get("/livez").status_code == 200
    assert server.process.poll() is None
    assert peak_bytes(server) - before < GROWN_BYTES_MAX


def test_keys_are_not_made_again_and_nothing_is_compressed(tmp_path: Path) -> None:
    context = tls.context(*tls.self_made(tmp_path, "127.0.0.1"))
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION


UPGRADE = b"""GET /$servicebus/websocket HTTP/1.1\r
host: localhost\r
connection: Upgrade\r
upgrade: websocket\r
sec-websocket-version: 13\r
sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r
sec-websocket-protocol: AMQPWSB10\r
sec-websocket-extensions: permessage-deflate; client_max_window_bits\r
\r
"""


def test_messages_of_a_websocket_are_not_compressed() -> None:
    """The offer is not taken, and a frame that is compressed nevertheless ends the connection."""
    with served("--ephemeral", "--log-level", "error") as server:
        frame = b"\xc2\x88" + bytes(4) + bytes(8)
        answer, _, frames = said(server.port, UPGRADE + frame).partition(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101")
    assert b"extensions" not in answer.lower()
    # A close, for an error of the protocol.
    assert (frames[:1], frames[2:4]) == (b"\x88", b"\x03\xea"), frames
