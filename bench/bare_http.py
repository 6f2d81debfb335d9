"""The yardstick of HTTP on this machine: a protocol that parses requests and answers at once.

It prints its port, and runs until its input is closed. python -m bench.bare_http
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httptools
import uvloop

_BODY = b'{"sequence_number":1234567}'
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_BODY),
    _BODY,
)


class Bare(asyncio.Protocol):
    """One connection, whose requests are read and not looked at."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._headers: dict[bytes, bytes] = {}
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._headers, self._body = {}, b""
        self._transport.write(_ANSWER)


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Bare, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(main())
