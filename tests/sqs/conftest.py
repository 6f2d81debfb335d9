"""A server in a process of its own, and boto3 against it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.processes import Served, served
from tests.sqs.clients import client_of


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that a whole file of tests shares; each test makes queues of its own."""
    data: Path = tmp_path_factory.mktemp("sqs")
    with served("--data", data / "data", "--log-level", "warning") as one:
        yield one


@pytest.fixture
def sqs(server: Served) -> Any:
    """boto3, with nothing changed but its endpoint."""
    return client_of(server.ready["sqs"])
