"""One connection of HTTP/1.1: bytes in, whole requests to the app, its answers out.

One request at a time: what a client sends ahead waits in a bounded buffer. Everything a peer can
make long has a limit (`Limits`), and every wait a timeout: a head or a body that does not come, an
idle connection, an answer that nobody reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httptools

from onibus.operation.traffic import NOWHERE, Traffic
from onibus.protocols.http.messages import PROBLEM, REASONS, App, Request, Response

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may take."""

    #: bytes of the request line and all headers; as nginx and h11 have it, about
    head_bytes_max: int = 32 << 10
    #: bytes of a body; a batch of Arrow is the largest
    body_bytes_max: int = 256 << 20
    #: seconds for the head of a request that has begun, and for each part of its body
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    #: seconds that a connection may do nothing
    idle_seconds: float = 120.0
    #: seconds in which an answer must find a reader
    write_seconds: float = 60.0
    connections_max: int = 20_000


class Connections:
    """All open connections of a listener."""

    def __init__(
        self, app: App, limits: Limits | None = None, traffic: Traffic | None = None
    ) -> None:
        self.app = app
        self.limits = limits or Limits()
        self.traffic = traffic or Traffic()
        self.open: set[Connection] = self.traffic.open
        self.closing = False

    def __call__(self) -> Connection:
        return Connection(self)

    async def drain(self, seconds: float) -> None:
        """Take no more requests; wait for those under way, then close what is left."""
        self.closing = True
        for connection in list(self.open):
            connection.close_if_idle()
        deadline = asyncio.get_running_loop().time() + seconds
        while self.open and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.open):
            connection.abort()


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, owner: Connections) -> None:
        self._owner = owner
        self._limits = owner.limits
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._waiting = bytearray()
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._secure = False
        self._keep_alive = True
        self._task: asyncio.Task[None] | None = None
        self._may_write: asyncio.Event | None = None
        self._queue: deque[Request] = deque()
        #: what is being answered, and since when
        self._request: Request | None = None
        self._asked_at = 0.0
        self._deadline = float("inf")
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0

    # What asyncio tells

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._secure = transport.get_extra_info("sslcontext") is not None
        owner = self._owner
        if owner.closing or len(owner.open) >= self._limits.connections_max:
            owner.traffic.turned_away += 1
            self._refuse(503, "too many connections")
            return
        owner.traffic.opened += 1
        owner.open.add(self)
        self._wait(self._limits.idle_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._may_write is not None:
            self._may_write.set()

    def data_received(self, data: bytes) -> None:
        if self._busy:
            self._waiting += data
            if len(self._waiting) > self._limits.head_bytes_max:
                # It sends ahead more than we keep for it: let the socket hold the rest.
                self._transport.pause_reading()
            return
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        if self._parser.should_upgrade():
            self._refuse(400, "this server does not change protocols")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "this server does not change protocols")
        except httptools.HttpParserError as error:
            self._refuse(400, f"that is no HTTP/1.1: {error}")
        else:
            if not self._busy and not self._transport.is_closing():
                begun = self._head_bytes or self._url
                in_body = self._body_bytes or self._headers
                limits = self._limits
                seconds = limits.idle_seconds if not begun else limits.head_seconds
                self._wait(limits.body_seconds if begun and in_body else seconds)

    # What the parser tells

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        length = self._headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._limits.body_bytes_max:
            self._refuse(413, f"a body has at most {self._limits.body_bytes_max} bytes")
        elif self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes_max:
            self._body.clear()
            self._refuse(413, f"a body has at most {self._limits.body_bytes_max} bytes")
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._transport.is_closing():
            return
        request = self._take()
        if request is not None:
            self._queue.append(request)
            if not self._busy:
                self._next()

    def _take(self) -> Request | None:
        try:
            url = httptools.parse_url(self._url)
            path, query = url.path or b"/", url.query or b""
            request = Request(
                self._parser.get_method().decode(),
                path.decode("ascii"),
                query.decode("ascii"),
                self._headers,
                self._body[0] if len(self._body) == 1 else b"".join(self._body),
                self._secure,
            )
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            self._refuse(400, "the path cannot be read")
            return None
        self._keep_alive = self._parser.should_keep_alive()
        self._reset()
        return request

    # Handling

    def _next(self) -> None:
        """Hand the next request to the app."""
        request = self._queue.popleft()
        self._busy = True
        self._stop_waiting()
        self._request, self._asked_at = request, self._loop.time()
        self._owner.app(request, self.respond)

    def respond(self, response: Response) -> None:
        """Answer the request that was handed out; called once for each."""
        request = self._request
        assert request is not None
        took = self._loop.time() - self._asked_at
        self._owner.traffic.answered(
            request.route, request.method, request.path, response.status, took
        )
        if self._transport.is_closing():
            return
        if response.stream is not None:
            self._task = self._loop.create_task(self._stream(response, response.stream))
            return
        length = len(response.body)
        self._transport.write(self._head(response, f"content-length: {length}") + response.body)
        self._answered()

    def _head(self, response: Response, framing: str) -> bytes:
        status = response.status
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}", framing]
        if response.body or response.stream is not None:
            lines.append(f"content-type: {response.content_type}")
        lines += [f"{name}: {value}" for name, value in response.headers]
        if not self._keep_alive or self._owner.closing:
            lines.append("connection: close")
        return "\r\n".join((*lines, "", "")).encode("latin-1")

    async def _stream(self, response: Response, pieces: AsyncIterator[bytes]) -> None:
        """Send a body piece by piece, no faster than it is read."""
        self._transport.write(self._head(response, "transfer-encoding: chunked"))
        try:
            async for piece in pieces:
                if piece:
                    self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await self._writable()
        except Exception:
            # The head is gone already: a body that breaks off is all that can be told.
            self.abort()
            return
        self._transport.write(b"0\r\n\r\n")
        self._answered()

    async def _writable(self) -> None:
        if self._may_write is not None:
            await asyncio.wait_for(self._may_write.wait(), self._limits.write_seconds)
        if self._transport.is_closing():
            raise ConnectionError("the client has gone")

    def pause_writing(self) -> None:
        self._may_write = asyncio.Event()

    def resume_writing(self) -> None:
        if self._may_write is not None:
            self._may_write.set()
            self._may_write = None

    def _answered(self) -> None:
        self._busy = False
        self._task = None
        if not self._keep_alive or self._owner.closing:
            self._transport.close()
            return
        if self._queue:
            # Not from here: a client that sends much ahead must not grow our stack.
            self._busy = True
            self._loop.call_soon(self._next)
            return
        self._wait(self._limits.idle_seconds)
        if self._waiting:
            data = bytes(self._waiting)
            self._waiting.clear()
            self._transport.resume_reading()
            self._feed(data)

    # Refusing and closing

    def _refuse(self, status: int, detail: str) -> None:
        """Answer what is no request, and close."""
        self._keep_alive = False
        body = b'{"title":"refused","status":%d,"detail":"%b"}' % (status, detail.encode())
        response = Response(status, body, PROBLEM)
        self._owner.traffic.answered(NOWHERE, "", "", status, 0.0)
        if not self._transport.is_closing():
            head = self._head(response, f"content-length: {len(body)}")
            self._transport.write(head + body)
            self._transport.close()
        self._owner.open.discard(self)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.head_bytes_max and not self._transport.is_closing():
            self._refuse(431, f"a head has at most {self._limits.head_bytes_max} bytes")

    def _wait(self, seconds: float) -> None:
        """Close the connection unless something comes within that time."""
        self._deadline = self._loop.time() + seconds
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._late)

    def _stop_waiting(self) -> None:
        self._deadline = float("inf")

    def _late(self) -> None:
        """A timer is set once in a while, and only then looks at the deadline of today."""
        self._timer = None
        if self._transport.is_closing():
            return
        left = self._deadline - self._loop.time()
        if left > 0:
            pause = min(left, self._limits.idle_seconds)
            self._timer = self._loop.call_later(pause, self._late)
        elif self._head_bytes:
            self._refuse(408, "the request did not come in time")
        else:
            self._transport.close()

    def close_if_idle(self) -> None:
        """Close unless a request is being answered."""
        if not self._busy and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()
