"""One server process for all tests that need no disk: in memory, and with a clock that moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onibus.client import AsyncClient, Client, Retry
from tests.client.server_helpers import Awaited, development_string
from tests.over_http.helpers import Open
from tests.server.processes import Served, served


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with served("--ephemeral", "--test-mode", "--log-level", "error") as running:
        yield running


@pytest.fixture(params=["asyncio", "blocking"])
def connect(request: pytest.FixtureRequest, server: Served) -> Open:
    """Return what opens a client of each kind in turn; what others left behind is gone then."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        address = development_string(server.port)
        # What is refused for a while is told at once: tests of retries are elsewhere.
        retry = Retry(attempts=1)
        client: Any
        if request.param == "blocking":
            client = Awaited(Client.connect(address, retry=retry))
        else:
            client = AsyncClient.connect(address, retry=retry)
        async with client:
            await client.reset()
            yield client

    return opened
