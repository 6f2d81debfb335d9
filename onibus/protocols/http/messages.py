"""HTTP requests and responses, as the API uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

import msgspec

from onibus.api.wire import JSON
from onibus.operation.peers import LOCAL, Peer
from onibus.operation.traffic import NOWHERE, RouteKey
from onibus.protocols.http.date import date_line

REASONS = {
    200: "OK",
    201: "Created",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Content",
    423: "Locked",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    507: "Insufficient Storage",
}


class Head(msgspec.Struct, eq=False):
    """A request header. Immutable: equal requests share it."""

    method: str
    #: as sent, percent-encoded
    path: str
    query_text: str
    #: names in lower case
    headers: dict[str, str]
    #: its route, once the app has found it
    found: Any = None

    @property
    def content_type(self) -> str:
        return _media_type(self.headers.get("content-type", JSON))


@lru_cache(256)
def _media_type(text: str) -> str:
    return text.partition(";")[0].strip().lower()


class Request(msgspec.Struct, eq=False):
    """A complete request."""

    head: Head
    body: bytes
    #: received over TLS
    secure: bool = False
    #: another request may follow on the same connection
    keep_alive: bool = True
    #: the response may be chunked: from HTTP/1.1 on
    takes_chunks: bool = True
    #: ends a wait: the client has disconnected, or the server stops
    hurry: Callable[[], None] | None = None
    #: its response is a stream that only the client or the server's stop ends
    endless: bool = False
    #: method and path of its route, once found
    route: RouteKey = NOWHERE
    #: time at which the app received it, of the event loop
    begun: float = 0.0
    #: the client that sent it
    peer: Peer = LOCAL

    def has_left(self) -> bool:
        """Return whether the client has disconnected."""
        return self.peer.has_left

    @property
    def is_plain(self) -> bool:
        """Whether the response need not mention the connection."""
        return self.keep_alive and self.takes_chunks

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def path(self) -> str:
        return self.head.path

    @property
    def query_text(self) -> str:
        return self.head.query_text

    @property
    def headers(self) -> dict[str, str]:
        return self.head.headers

    @property
    def content_type(self) -> str:
        return self.head.content_type

    @property
    def segments(self) -> list[str]:
        """The decoded parts of the path; a slash in a name is %2F."""
        path = self.head.path
        parts = path.split("/")[1:]
        return [unquote(part) for part in parts] if "%" in path else parts

    @property
    def query(self) -> dict[str, str]:
        """The query; the last value counts if a name is repeated."""
        return dict(parse_qsl(self.head.query_text, keep_blank_values=True))

    def accepts(self, kind: str) -> bool:
        """Return whether the client accepts that media type by name."""
        wanted = self.headers.get("accept", "")
        return any(part.partition(";")[0].strip().lower() == kind for part in wanted.split(","))


class Response(msgspec.Struct, eq=False):
    """A response. `stream` sends its body piece by piece instead."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncIterator[bytes | memoryview] | None = None
    #: bytes that the stream holds until the client has read it
    held_bytes: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether it is a common response: JSON or empty, without further headers."""
        status = self.status
        return not self.headers and (status == 204 or (status == 200 and self.content_type is JSON))


def plain(response: Response) -> bytes:
    """Return a common response as bytes; only date and length vary."""
    body = response.body
    if response.status == 204:
        return b"HTTP/1.1 204 No Content\r\n%b\r\n" % date_line()
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
        % (date_line(), len(body), body)
    )


def head_of(response: Response, length: int | None, persistence: str, *, chunked: bool) -> bytes:
    """Return the header of a response; `persistence` is its Connection header."""
    status, kind, framing = response.status, "", ""
    if chunked:
        framing = "transfer-encoding: chunked\r\n"
    elif length is not None and response.stream is None and status != 204:
        framing = f"content-length: {length}\r\n"
    if response.body or response.stream is not None:
        kind = f"content-type: {response.content_type}\r\n"
    text = f"HTTP/1.1 {status} {REASONS.get(status, '')}\r\n{framing}{kind}"
    for name, value in response.headers:
        text += f"{name}: {value}\r\n"
    if persistence:
        text += f"connection: {persistence}\r\n"
    return b"%b%b\r\n" % (text.encode("latin-1"), date_line())


#: Responds to a request, now or later; called once.
Respond = Callable[[Response], None]


class App(Protocol):
    """Application that a connection gives its requests to."""

    def __call__(self, request: Request, respond: Respond) -> None: ...

    def look(self, request: Request) -> Response | None:
        """Reject a request by its header alone, before its large body is read."""
