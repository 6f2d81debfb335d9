"""Uploads that are cut leave nothing in the server's memory."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.server import cut_connections, strangers
from tests.server.cut_connections import GROWTH_BYTES_MAX, MB
from tests.server.http_helpers import post
from tests.server.processes import wait_for
from tests.server.strangers import cut
from tests.server.test_many_connections import resident_bytes


def test_connections_of_every_kind_that_are_cut_off(tmp_path: Path) -> None:
    with cut_connections.serving(tmp_path) as server:
        for name, first, last, _ in cut_connections.measured(server, 2_000, 400):
            assert last - first < GROWTH_BYTES_MAX, f"{name}: {(last - first) // MB} MB"


def test_large_uploads_that_are_cut_off_one_after_another(tmp_path: Path) -> None:
    """A client with the right to send cuts 480 MB of uploads."""
    upload = post(strangers.SEND, bytes(16 * MB), strangers.authorization())[:-1]

    def cut_upload() -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(upload)
            cut(sock)

    with cut_connections.serving(tmp_path) as server:
        for _ in range(3):
            cut_upload()
        first = resident_bytes(server.process.pid)
        for _ in range(30):
            cut_upload()
        # The server may still hold the last ones.
        wait_for(lambda: resident_bytes(server.process.pid) - first < GROWTH_BYTES_MAX)
