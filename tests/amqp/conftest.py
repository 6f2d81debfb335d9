"""One server process for tests with clients of Service Bus; each test has entities of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from onibus.client import Client
from tests.amqp.sdk_helpers import SCRIPTS
from tests.node import node_home
from tests.server.processes import Served, served

_numbers = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data: Path = tmp_path_factory.mktemp("amqp") / "data"
    with served("--data", data, "--log-level", "warning") as started:
        yield started


@pytest.fixture(scope="session")
def owner(server: Served) -> Iterator[Client]:
    """A client of our own, which makes entities and looks into them."""
    with Client.connect(server.ready["development"]) as client:
        yield client


@pytest.fixture(scope="session")
def node() -> Path:
    """Node's packages: they are there before a test begins that has little time."""
    return node_home(SCRIPTS)


@pytest.fixture
def name() -> Callable[[str], str]:
    """Return names that no other test has."""
    return lambda word: f"{word}-{next(_numbers)}"
