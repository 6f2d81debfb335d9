"""Strangers cannot take a store offline by opening connections."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from onibus.operation.peers import MARGIN
from onibus.server.open_files import PROCESS_FILES, STORE_FILES
from tests.server.processes import PATIENCE_S, Served, refused, served, wait_for
from tests.server.server_helpers import signed
from tests.server.strangers import SECRET, UPGRADE, amqp_open

FILES_MAX = 256
#: One message store and the store of the namespace.
FOR_CONNECTIONS = FILES_MAX - PROCESS_FILES - 2 * STORE_FILES
PATH = "/v1/entities/q/messages"


def ports(server: Served) -> list[int]:
    return [int(server.ready[name].rpartition(":")[2]) for name in ("http", "amqp", "sqs")]


@contextlib.contextmanager
def crowd(server: Served, count: int) -> Iterator[list[socket.socket]]:
    """Connect to all ports `count` times, and send nothing or a little."""
    socks: list[socket.socket] = []
    words = (b"", UPGRADE, b"POST / HTTP/1.1\r\n", amqp_open(secret="wrong")[:30])
    try:
        for number in range(count):
            for port in ports(server):
                sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
                with contextlib.suppress(ConnectionError):
                    sock.sendall(words[number % len(words)])
                socks.append(sock)
        yield socks
    finally:
        for sock in socks:
            sock.close()


def open_files(server: Served) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def send(client: httpx.Client, body: str) -> None:
    answer = client.post(PATH, json={"body": body}, headers=signed(key=SECRET))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("tls", [(), ("--tls",)], ids=["plain", "tls"])
def test_a_store_commits_while_strangers_take_all_connections(
    tmp_path: Path, tls: tuple[str, ...]
) -> None:
    config = tmp_path / "onibus.toml"
    config.write_text("[queues.q]\nmax_message_bytes = 4000000\n")
    how: tuple[str | Path, ...] = (
        "--data",
        tmp_path / "data",
        "--config",
        config,
        "--log-level",
        "error",
        *tls,
    )
    with served(*how, files_max=FILES_MAX, ONIBUS_ROOT_KEY=SECRET) as server:
        trusted = ssl.create_default_context(cafile=server.ready["certificate"] or None)
        address = server.http.replace("127.0.0.1", "localhost")

        def client() -> httpx.Client:
            return httpx.Client(
                base_url=address, verify=trusted, trust_env=False, timeout=PATIENCE_S
            )

        with client() as known:
            send(known, "before")
            most, before = 0, open_files(server)
            with crowd(server, 100):
                wait_for(lambda: open_files(server) >= FOR_CONNECTIONS)
                for _ in range(20):
                    # A large message gets its own file.
                    send(known, "x" * 1_000_000)
                    most = max(most, open_files(server))
                # A client that connects now succeeds too.
                with client() as late:
                    send(late, "late")
            assert most <= FILES_MAX - STORE_FILES
            wait_for(lambda: open_files(server) <= before + 2)
            send(known, "after")
        code, _, told = server.stop()
        assert (code, "Traceback" in told) == (0, False), told


def test_a_server_that_could_have_no_connections_does_not_start(tmp_path: Path) -> None:
    needed = PROCESS_FILES + 2 * STORE_FILES + MARGIN + 16
    code, told = refused("--data", tmp_path / "data", files_max=needed - 1)
    assert code == 2
    assert told.endswith(f"needs {needed}: raise the limit (ulimit -n)\n"), told
    with served("--data", tmp_path / "data", files_max=needed):
        pass
