"""What tests of the server share: a server with real sockets, a client, and raw connections."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx

from onibus import Bus
from onibus.protocols.http.limits import Limits
from onibus.security.keys import AccessKey, Keyring
from onibus.security.rights import Right
from onibus.security.sas import make_token
from onibus.server.server import Server
from tests.bus_helpers import PATIENCE_S

#: A key for every right, by the name of the right, and one for all.
KEYS = [
    AccessKey(name="sender", primary="send-key", rights=frozenset({Right.SEND})),
    AccessKey(name="listener", primary="listen-key", rights=frozenset({Right.LISTEN})),
    AccessKey(name="watcher", primary="monitor-key", rights=frozenset({Right.MONITOR})),
    AccessKey(name="owner", primary="manage-key", secondary="manage-key-2"),
]
JSON_TYPE = {"content-type": "application/json"}

#: What anybody may ask: nothing of it tells of messages.
PUBLIC = {"/openapi.json", "/health", "/livez", "/readyz"}


class Client:
    """A client that says in few words what it asks."""

    def __init__(self, port: int, headers: dict[str, str] | None = None) -> None:
        self.port = port
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE_S
        )
        self._raws: list[Raw] = []

    async def raw(self) -> Raw:
        """Return a new connection that writes bytes as it likes."""
        raw = Raw(*await asyncio.open_connection("127.0.0.1", self.port))
        self._raws.append(raw)
        return raw

    async def close(self) -> None:
        await self.http.aclose()
        for raw in self._raws:
            raw.close()

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """Ask anything under /v1."""
        return await self.http.request(method, f"/v1{path}", json=body, **more)

    async def do(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """Ask something that must succeed; return what was answered."""
        response = await self.ask(method, path, body, **more)
        assert response.status_code < 300, response.text
        return response.json() if response.content else None

    async def on(self, entity: str, call: str, **body: Any) -> Any:
        """POST something about an entity, which must succeed."""
        return await self.do("POST", f"/entities/{quote(entity, safe='')}/{call}", body)

    async def refused(
        self, status: int, kind: str, method: str, path: str, body: Any = None
    ) -> dict[str, Any]:
        """Ask something that must be refused in that way; return the problem."""
        response = await self.ask(method, path, body)
        problem = response.json()
        assert (response.status_code, problem["type"]) == (status, kind), response.text
        assert response.headers["content-type"] == "application/problem+json"
        assert problem["status"] == status
        return dict(problem)

    async def send(self, entity: str, *bodies: str, **fields: Any) -> list[dict[str, Any]]:
        """Send messages with these texts, one by one."""
        return [await self.on(entity, "messages", body=body, **fields) for body in bodies]

    async def receive(self, entity: str, limit: int = 100, **how: Any) -> list[dict[str, Any]]:
        """Receive what is there."""
        answer = await self.on(entity, "receive", limit=limit, **how)
        return list(answer["messages"])


@asynccontextmanager
async def serving(
    *,
    keys: Keyring | None = None,
    limits: Limits | None = None,
    test_mode: bool = True,
    bus: Bus | None = None,
) -> AsyncIterator[Client]:
    """A server on a free port, and a client of it."""
    bus = bus or await Bus.ephemeral()
    server = Server(bus, keys, http_port=0, limits=limits, test_mode=test_mode)
    async with server:
        client = Client(server.http_port)
        try:
            yield client
        finally:
            await client.http.aclose()
            await server.stop()
            await client.close()


def token(resource: str, name: str, key: str, seconds: int = 600) -> dict[str, str]:
    """Return headers with a token for a resource such as sb://localhost/orders."""
    return {"authorization": make_token(resource, name, key, int(time.time()) + seconds)}


# Raw connections


class Raw:
    """A connection that writes bytes as it likes, and reads answers as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def write(self, data: bytes, pause: float | None = None, size: int = 1) -> None:
        """Write at once, or in pieces of that size with pauses between them."""
        if pause is None:
            self.writer.write(data)
            return
        for start in range(0, len(data), size):
            self.writer.write(data[start : start + size])
            await asyncio.sleep(pause)

    async def answer(self, *, bodiless: bool = False) -> tuple[int, dict[str, str], bytes]:
        """Read one whole answer: status, headers, body."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)).decode()
        line, *lines = head.strip().split("\r\n")
        status = int(line.split()[1])
        headers = dict(one.split(": ", 1) for one in lines)
        body = b""
        if "content-length" in headers and not bodiless:
            body = await self.reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while size := int((await self.reader.readline()), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readline()
            await self.reader.readline()
        return status, headers, body

    async def ended(self, seconds: float = PATIENCE_S) -> bool:
        """Tell whether the server closes the connection, with nothing more said."""
        try:
            return await asyncio.wait_for(self.reader.read(1), seconds) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()


def post(path: str, body: Any, *headers: str) -> bytes:
    """Return the bytes of a POST of JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(content)}",
        *headers,
    ]
    return "\r\n".join((*lines, "", "")).encode() + content


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    """Return the bytes of a GET."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", "host: localhost", *headers, "", "")).encode()
