"""A server with its data in directories, that is stopped, killed and started again."""

from __future__ import annotations

import random
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from onibus.client import AsyncClient, Retry
from tests import bus_helpers
from tests.client.server_helpers import development_string
from tests.server.processes import Served, refused, served

STORES = ("a", "b")
#: A test that starts servers takes its time on a busy machine.
run = partial(bus_helpers.run, patience_s=180)


class Place:
    """Where a server has its data: a directory for the namespace, and one for each of two stores.

    The port is the same at every start, as clients expect it. Data and
    configuration may be on different disks.
    """

    def __init__(self, root: Path, disk: Path | None = None) -> None:
        disk = disk or root
        self.data = disk / "data"
        self.stores = {name: disk / f"disk-{name}" for name in STORES}
        self.port = free_port()
        self.config = root / "onibus.toml"
        tables = "".join(f'{name} = "{place}"\n' for name, place in self.stores.items())
        # A machine that runs tests may have little room: that is not what they are about.
        self.config.write_text(
            f'data = "{self.data}"\nreserve_bytes = 0\nlog_level = "error"\n[stores]\n{tables}'
        )

    def add_settings(self, text: str) -> None:
        """Add tables to the configuration."""
        self.config.write_text(self.config.read_text() + text)

    @contextmanager
    def serve(self, *flags: str) -> Iterator[Served]:
        """Run a server; kill it in the end, if it still runs."""
        with served("--config", self.config, *flags, "--http-port", str(self.port)) as running:
            yield running

    def refuse_second(self) -> str:
        """Start a second server without the lock files of the first; return how it is refused."""
        for home in (self.data, *self.stores.values()):
            for file in home.glob("*.lock"):
                file.unlink()
        code, words = refused("--config", self.config, "--http-port", "0")
        assert code, words
        return words

    def client(self, retry: Retry | None = None) -> AsyncClient:
        """Return a client, which asks once unless it is told otherwise."""
        return AsyncClient.connect(development_string(self.port), retry=retry or Retry(attempts=1))


def free_port() -> int:
    """Return a port that is free, and none of those that are given to who asks for any.

    Between a stop and a start nobody holds it: another test's server, or a connection, took it.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def kill(server: Served) -> None:
    """End a server as a power cut does, and wait until it is gone."""
    server.process.kill()
    server.process.wait()


def stop(server: Served) -> None:
    """Ask a server to end, and wait until it has."""
    assert server.stop(signal.SIGTERM)[0] == 0
