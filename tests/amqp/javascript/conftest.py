"""One server in memory, whose clock moves, and one node for all scenarios in JavaScript.

The server speaks TLS, as the administration client does, whatever it is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onibus.client import Client
from onibus.server.tls import self_made
from tests.amqp.javascript.playing import Others, Play, Player
from tests.bus_helpers import keys_of
from tests.client.server_helpers import development_string
from tests.server.processes import Served, served
from tests.server.server_helpers import SECRET


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate and its key, for every server that node talks to."""
    return self_made(tmp_path_factory.mktemp("tls"), "localhost")


@pytest.fixture(scope="session")
def player(tls: tuple[Path, Path]) -> Iterator[Player]:
    one = Player(tls[0])
    yield one
    one.close()


@pytest.fixture(scope="session")
def server(tls: tuple[Path, Path]) -> Iterator[Served]:
    files = ("--tls", "--tls-certificate", tls[0], "--tls-key", tls[1])
    flags = ("--ephemeral", "--test-mode", "--log-level", "error", *files)
    # Keys are made here too, which ends development.
    with served(*flags, ONIBUS_ROOT_KEY=SECRET) as running:
        yield running


@pytest.fixture
def play(player: Player, server: Served) -> Iterator[Play]:
    """Run a scenario on the server whose clock moves."""
    connection = development_string(server.port, server.root_key)
    with Client.connect(connection) as client:
        yield lambda scenario: player.play(scenario, connection, others(client))


def others(client: Client) -> Others:
    """Return what scenarios ask for that the SDK has no call for."""

    def create_queue(name: str, settings: dict[str, Any]) -> None:
        client.create_queue(name, **settings)

    def change_queue(name: str, settings: dict[str, Any]) -> None:
        client.change_queue(name, **settings)

    def create_key(entity: str, right: str) -> tuple[str, str]:
        made = client.create_key(f"{right}-{entity}", [right], entity=entity)
        return made.name, made.primary

    def defer_next(name: str, ms: int) -> None:
        with client.receiver(name, renew_ms=0) as receiver:
            (message,) = receiver.receive()
            receiver.defer(message, delay_ms=ms)

    return {
        "advance": client.advance,
        "create_queue": create_queue,
        "change_queue": change_queue,
        "create_key": create_key,
        "defer_next": defer_next,
        "dropped": lambda name: client.queue(name).duplicates_dropped,
        "purge": client.purge,
        "keys_of": keys_of,
    }
