"""Two server processes for all scenarios that need no disk: in memory, with clocks that move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from onibus.server.tls import self_made
from tests.amqp.sdk.stage import KINDS, Kind, Players, Stage
from tests.amqp.sdk.towns import Town
from tests.amqp.sdk.world import World
from tests.amqp.sdk_helpers import closing_sockets
from tests.server.processes import Served, served
from tests.server.server_helpers import SECRET


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Kind, Served]]:
    """One for each kind of client: each moves its clock."""
    # Administration clients speak HTTPS only; on loopback the others are let in without.
    certificate, key = self_made(tmp_path_factory.mktemp("tls"), "localhost")
    flags = ("--tls", "--tls-certificate", certificate, "--tls-key", key, "--log-level", "error")
    with ExitStack() as stack:
        running = {
            # Keys are made here too, which ends development.
            kind: stack.enter_context(
                served("--ephemeral", "--test-mode", *flags, ONIBUS_ROOT_KEY=SECRET)
            )
            for kind in KINDS
        }
        for server in running.values():
            server.ready["certificate"] = str(certificate)
        yield running


@pytest.fixture(scope="session")
def stage(servers: dict[Kind, Served]) -> Iterator[Stage]:
    """Where all is played; what is left open there is closed before the servers end."""
    with Stage() as one:
        yield one


@pytest.fixture
def world(servers: dict[Kind, Served], stage: Stage) -> Players:
    return Players(stage, lambda kind: World(kind, servers[kind]))


@pytest.fixture
def town(tmp_path: Path, stage: Stage) -> Iterator[Players]:
    # These clients forget the sockets of broken connections.
    with closing_sockets():
        yield Players(stage, lambda kind: Town(kind, tmp_path / kind), wait=True)
