"""The yardstick of HTTP on this machine: a protocol that reads JSON and answers at once.

It does what every service in JSON does at least: parses the request, decodes its body, answers. It
prints its port, and runs until its input is closed. python -m bench.bare_http
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from typing import Any

import httptools
import msgspec
import uvloop

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_numbers = count(1_000_000)


class Bare(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        given = _decode(self._body)
        self._headers, self._body = {}, b""
        assert given["body"]
        answer = _encode({"sequence_number": next(_numbers)})
        self._transport.write(_ANSWER % (len(answer), answer))


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Bare, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(main())
