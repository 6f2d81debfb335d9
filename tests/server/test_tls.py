"""TLS: one port for TLS and plain text, certificates given and self-made, and bad clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from onibus import Bus
from onibus.core.errors import InvalidArgument
from onibus.protocols.http.limits import Limits
from onibus.server import tls
from onibus.server.server import Server
from tests.bus_helpers import PATIENCE_S, run, skip_seconds, until
from tests.server.server_helpers import ROOT, serving, signed


def contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the server's side of a self-made certificate, and that of a client that trusts it."""
    certificate, key = tls.self_made(directory, "127.0.0.1")
    return tls.context(certificate, key), ssl.create_default_context(cafile=certificate)


@run
async def test_one_port_speaks_tls_and_plain_text(tmp_path: Path) -> None:
    ours, theirs = contexts(tmp_path)
    async with serving(ROOT, tls=ours) as (server, plain):
        assert (await plain.get("/v1/keys", headers=signed())).status_code == 200
        for name in ("localhost", "127.0.0.1"):
            address = f"https://{name}:{server.http_port}"
            async with httpx.AsyncClient(
                base_url=address, verify=theirs, trust_env=False, timeout=PATIENCE_S
            ) as safe:
                for _ in range(2):
                    assert (await safe.get("/v1/keys", headers=signed())).status_code == 200
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as stranger:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.get(f"https://localhost:{server.http_port}/v1/keys")


@run
async def test_plain_text_is_refused_where_the_operator_wants_tls(tmp_path: Path) -> None:
    ours, theirs = contexts(tmp_path)
    async with serving(ROOT, tls=ours, plain_text=False) as (server, plain):
        refused = await plain.get("/v1/keys", headers=signed())
        assert (refused.status_code, refused.json()["type"]) == (403, "plain-text")
        address = f"https://localhost:{server.http_port}"
        async with httpx.AsyncClient(
            base_url=address, verify=theirs, trust_env=False, timeout=PATIENCE_S
        ) as safe:
            assert (await safe.get("/v1/keys", headers=signed())).status_code == 200


async def connected(server: Server) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.http_port))
    return sock


async def closed(sock: socket.socket) -> bool:
    """Tell that the other side has closed the connection; waits for it."""
    try:
        return await asyncio.get_running_loop().sock_recv(sock, 100) == b""
    except ConnectionError:
        return True


@run
async def test_who_says_nothing_or_nonsense_is_sent_away_and_others_are_served(
    tmp_path: Path,
) -> None:
    ours, _ = contexts(tmp_path)
    loop = asyncio.get_running_loop()
    async with serving(ROOT, tls=ours, limits=Limits(head_seconds=60)) as (server, client):
        silent = await connected(server)
        half = await connected(server)
        await loop.sock_sendall(half, b"\x16")
        nonsense = await connected(server)
        await loop.sock_sendall(nonsense, b"\x16\x03\x01\x00\x05hello")
        gone = await connected(server)
        gone.close()
        assert (await client.get("/v1/keys", headers=signed())).status_code == 200
        skip_seconds(61)
        assert await closed(silent)
        assert await closed(half)
        await loop.sock_recv(nonsense, 100)  # a TLS alert, or the end
        for sock in (silent, half, nonsense):
            sock.close()
        assert (await client.get("/v1/keys", headers=signed())).status_code == 200


@run
async def test_the_number_of_silent_connections_is_bounded(tmp_path: Path) -> None:
    ours, _ = contexts(tmp_path)
    limits = Limits(connections_max=3)
    async with serving(ROOT, tls=ours, limits=limits) as (server, _):
        silent = [await connected(server) for _ in range(4)]
        # The oldest silent connection makes room for the next.
        assert await closed(silent[0])
        for sock in silent[1:]:
            with pytest.raises(BlockingIOError):
                sock.recv(1)
        for sock in silent:
            sock.close()


@run
async def test_stopping_closes_what_has_said_nothing(tmp_path: Path) -> None:
    ours, _ = contexts(tmp_path)
    bus = await Bus.ephemeral()
    server = Server(bus, None, http_port=0, tls=ours)
    await server.start()
    silent = await connected(server)
    await until(lambda: server.peers.count)
    await server.stop(3_600)
    assert await closed(silent)
    silent.close()


@pytest.mark.parametrize("last", [b"", b"connection: close\r\n"])
@run
async def test_stopping_does_not_wait_for_who_is_idle_and_says_no_goodbye(
    tmp_path: Path, last: bytes
) -> None:
    """Clients of Python that keep a connection do not look at it until they ask again.

    Or it was closed already, after their last request, and they have not said goodbye either.
    """
    ours, theirs = contexts(tmp_path)
    server = Server(await Bus.ephemeral(), None, http_port=0, tls=ours)
    await server.start()

    def ask() -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", server.http_port))
        safe = theirs.wrap_socket(plain, server_hostname="localhost")
        safe.sendall(b"GET /v1/keys HTTP/1.1\r\nhost: localhost\r\n%b\r\n" % last)
        assert safe.recv(100).startswith(b"HTTP/1.1 ")
        return safe

    idle = await asyncio.to_thread(ask)
    # For as long as it may take, were somebody busy; TLS itself would wait for half a minute.
    await asyncio.wait_for(server.stop(3_600), 25)
    idle.close()


# Certificates


def test_a_self_made_certificate_is_kept_until_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tls.self_made(tmp_path, "0.0.0.0")
    assert key.stat().st_mode & 0o777 == 0o600
    first = certificate.read_bytes()
    assert tls.self_made(tmp_path, "127.0.0.1") == (certificate, key)
    assert certificate.read_bytes() == first
    # Another name to be reached by.
    tls.self_made(tmp_path, "bus.example")
    second = certificate.read_bytes()
    assert second != first
    found = x509.load_pem_x509_certificate(second)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"bus.example", "localhost"} <= set(names.get_values_for_type(x509.DNSName))
    assert found.not_valid_after_utc < datetime.now(UTC) + timedelta(days=398)
    # Its last month.
    monkeypatch.setattr(tls, "_RENEW", timedelta(days=400))
    tls.self_made(tmp_path, "bus.example")
    assert certificate.read_bytes() != second


@pytest.mark.parametrize("file", [tls.CERTIFICATE_FILE, tls.KEY_FILE])
@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_what_is_half_there_is_made_again(tmp_path: Path, file: str, content: bytes | None) -> None:
    tls.self_made(tmp_path, "127.0.0.1")
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    tls.context(*tls.self_made(tmp_path, "127.0.0.1"))


def test_a_key_of_another_certificate_is_noticed(tmp_path: Path) -> None:
    certificate, key = tls.self_made(tmp_path / "a", "127.0.0.1")
    _, other = tls.self_made(tmp_path / "b", "127.0.0.1")
    with pytest.raises(InvalidArgument, match="are not a PEM certificate and its key"):
        tls.context(certificate, other)
    key.write_bytes(other.read_bytes())
    tls.context(*tls.self_made(tmp_path / "a", "127.0.0.1"))


def test_mistakes_with_given_files(tmp_path: Path) -> None:
    certificate, key = tls.self_made(tmp_path, "127.0.0.1")
    with pytest.raises(InvalidArgument, match=r"cannot read .*nowhere"):
        tls.context(tmp_path / "nowhere", key)
    with pytest.raises(InvalidArgument, match="are not a PEM certificate and its key"):
        tls.context(key, certificate)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(_with_password(key.read_bytes()))
    with pytest.raises(InvalidArgument, match="has a password"):
        tls.context(certificate, locked)


def _with_password(key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization

    loaded: Any = serialization.load_pem_private_key(key, None)
    sealed: bytes = loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )
    return sealed
