"""What tests of the server share: a bare HTTP client, and a server on a free port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from onibus import Bus
from onibus.security.keys import Keyring
from onibus.server.server import Server


class Answer:
    """What a server answered."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


async def ask(
    server: Server,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Send one request over a connection of its own."""
    content = b"" if body is None else msgspec.json.encode(body)
    lines = [f"{method} {path} HTTP/1.1", "host: test", "connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines += [f"content-length: {len(content)}", "", ""]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
    writer.write("\r\n".join(lines).encode() + content)
    answer = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *others = head.decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in others)
    return Answer(int(first.split()[1]), {name.lower(): value for name, value in pairs}, rest)


@contextlib.asynccontextmanager
async def serving(bus: Bus, keys: Keyring | None = None) -> AsyncIterator[Server]:
    """Serve a bus on a free port."""
    async with Server(bus, keys, http_port=0) as server:
        yield server
