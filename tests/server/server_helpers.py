"""A server in the test's own process, and signed requests to it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from onibus import Bus
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME, AccessKey, Keyring
from onibus.security.sas import make_token
from onibus.server.server import Server
from tests.server.processes import PATIENCE_S

SECRET = "a-secret-of-sufficient-length"


def token(
    resource: str = "sb://localhost/",
    name: str = ROOT_NAME,
    key: str = SECRET,
    seconds: float = 600,
) -> str:
    """Return a token that is good for a while."""
    return make_token(resource, name, key, int(time.time() + seconds))


def signed(*args: Any, **kwargs: Any) -> dict[str, str]:
    return {"authorization": token(*args, **kwargs)}


def developing(resource: str = "sb://localhost/") -> dict[str, str]:
    """Return the headers of somebody who has the emulator's key."""
    return signed(resource, ROOT_NAME, DEVELOPMENT_KEY)


ROOT = AccessKey(name=ROOT_NAME, primary=SECRET)


@asynccontextmanager
async def serving(
    *keys: AccessKey, bus: Bus | None = None, development: bool = False, **how: Any
) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    """Run a server with these keys configured, on any port; and a client of it."""
    if bus is None:
        bus = await Bus.ephemeral()
    kept = KeptKeys(bus, Keyring(development=development), keys)
    async with Server(bus, kept, http_port=0, **how) as server:
        address = f"http://127.0.0.1:{server.http_port}"
        async with httpx.AsyncClient(
            base_url=address, trust_env=False, timeout=PATIENCE_S
        ) as client:
            yield server, client
