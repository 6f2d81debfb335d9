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
from tests.atom.helpers import administration, connection
from tests.server.processes import Served, served
from tests.server.server_helpers import SECRET

_numbers = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data: Path = tmp_path_factory.mktemp("atom") / "data"
    # Clients create keys too, which ends development: use another root key.
    flags = ("--data", data, "--tls", "--log-level", "warning")
    with served(*flags, ONIBUS_ROOT_KEY=SECRET) as started:
        yield started


@pytest.fixture(scope="session")
def owner(server: Served) -> Iterator[Client]:
    """A client of our own, which sends and looks into entities."""
    trust = server.ready["certificate"]
    with Client.connect(connection(server), verify=trust) as client:
        yield client


@pytest.fixture(scope="session")
def azure(server: Served) -> Iterator[ServiceBusAdministrationClient]:
    with administration(server) as client:
        yield client


@pytest.fixture
def name() -> Callable[[str], str]:
    """Return names that no other test has."""
    return lambda word: f"{word}-{next(_numbers)}"
