"""One server process for all scenarios that need no disk: in memory, with a clock that moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onibus.server.tls import self_made
from tests.amqp.sdk.towns import Town
from tests.amqp.sdk.world import Stage, World
from tests.amqp.sdk_helpers import closing_sockets
from tests.over_http.on_disk import Place
from tests.server.processes import Served, served


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # Administration clients speak HTTPS only; on loopback the others are let in without.
    certificate, key = self_made(tmp_path_factory.mktemp("tls"), "localhost")
    flags = ("--tls", "--tls-certificate", certificate, "--tls-key", key, "--log-level", "error")
    with served("--ephemeral", "--test-mode", *flags) as running:
        running.ready["certificate"] = str(certificate)
        yield running


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    with Stage() as one:
        yield one


@pytest.fixture(params=["sync", "async"])
def town(request: pytest.FixtureRequest, tmp_path: Path, stage: Stage) -> Iterator[Town]:
    # These clients forget the sockets of broken connections.
    with closing_sockets():
        yield Town(request.param, Place(tmp_path), stage)


@pytest.fixture(params=["sync", "async"])
def world(request: pytest.FixtureRequest, server: Served, stage: Stage) -> World:
    return World(request.param, server, stage)
