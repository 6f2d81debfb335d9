"""One server for all tests of clients, and a client of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from onibus import Bus
from onibus.client import AsyncClient
from tests.client.server_helpers import Awaited, ServerThread

#: Opens a client; its entities are the test's own.
Open = Callable[[], AbstractAsyncContextManager[Any]]


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread() as server:
        yield server


@pytest.fixture(params=["asyncio", "blocking", "in-process"])
def connect(request: pytest.FixtureRequest, server: ServerThread) -> Open:
    """Return what opens a client of an empty bus, of each kind in turn."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        if request.param == "in-process":
            async with Bus.ephemeral() as bus, AsyncClient.on(bus) as client:
                yield client
        elif request.param == "blocking":
            async with Awaited(server.client()) as client:
                yield client
        else:
            async with server.async_client() as client:
                yield client

    return opened
