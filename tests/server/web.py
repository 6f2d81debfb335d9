"""What tests of operation share: a bus that is served as it is, and single requests to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx

from onibus import Bus
from onibus.security.keys import Keyring
from onibus.server.server import Server
from tests.server.processes import PATIENCE_S


async def ask(
    server: Server,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """Send one request over a connection of its own."""
    address = f"http://127.0.0.1:{server.http_port}"
    sent = {"connection": "close", **(headers or {})}
    async with httpx.AsyncClient(
        base_url=address, trust_env=False, headers=sent, timeout=PATIENCE_S
    ) as client:
        return await client.request(method, path, json=body)


@contextlib.asynccontextmanager
async def serving(bus: Bus, keys: Keyring | None = None) -> AsyncIterator[Server]:
    """Serve a bus on a free port."""
    async with Server(bus, keys, http_port=0) as server:
        yield server
