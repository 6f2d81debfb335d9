"""One server process that speaks TLS, and administration clients that trust its certificate.

The clients of both SDKs speak HTTPS only, on whatever port the connection string names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from onibus.client import Client
from tests.atom.helpers import administration
from tests.client.server_helpers import development_string
from tests.server.processes import Served, served

_numbers = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data: Path = tmp_path_factory.mktemp("atom") / "data"
    with served("--data", data, "--tls", "--log-level", "warning") as started:
        yield started


@pytest.fixture(scope="session")
def owner(server: Served) -> Iterator[Client]:
    """A client of our own, which sends and looks into entities."""
    with Client.connect(development_string(server.port)) as client:
        yield client


@pytest.fixture(scope="session")
def azure(server: Served) -> Iterator[ServiceBusAdministrationClient]:
    with administration(server) as client:
        yield client


@pytest.fixture
def name() -> Callable[[str], str]:
    """Return names that no other test has."""
    return lambda word: f"{word}-{next(_numbers)}"
