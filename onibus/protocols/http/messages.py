"""A request and a response of HTTP, as far as the API knows them."""

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
    """What a client says above a body. Never changed: requests that say the same share it."""

    method: str
    #: as it was sent, percent-encoded
    path: str
    query_text: str
    #: names in lower case
    headers: dict[str, str]
    #: where it leads, once the app has looked for it
    found: Any = None

    @property
    def content_type(self) -> str:
        return _media_type(self.headers.get("content-type", JSON))


@lru_cache(256)
def _media_type(text: str) -> str:
    return text.partition(";")[0].strip().lower()


class Request(msgspec.Struct, eq=False):
    """One request, read whole."""

    head: Head
    body: bytes
    #: it came over TLS
    secure: bool = False
    #: another request may follow on the same connection
    keep_alive: bool = True
    #: an answer may come in chunks: not before HTTP/1.1
    takes_chunks: bool = True
    #: ends a wait, now: the client has gone, or the server is about to stop
    hurry: Callable[[], None] | None = None
    #: method and path of the route that it took, once that was found
    route: RouteKey = NOWHERE
    #: when it was handed out, in the loop's time
    begun: float = 0.0
    #: the client that sent it
    peer: Peer = LOCAL

    @property
    def is_plain(self) -> bool:
        """Its answer needs to say nothing of what becomes of the connection."""
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
        """The parts of the path, decoded: a slash in a name is %2F."""
        path = self.head.path
        parts = path.split("/")[1:]
        return [unquote(part) for part in parts] if "%" in path else parts

    @property
    def query(self) -> dict[str, str]:
        """The query; of a name that is given twice the last value."""
        return dict(parse_qsl(self.head.query_text, keep_blank_values=True))

    def accepts(self, kind: str) -> bool:
        """Tell whether the client asks for that kind of answer by its name."""
        wanted = self.headers.get("accept", "")
        return any(part.partition(";")[0].strip().lower() == kind for part in wanted.split(","))


class Response(msgspec.Struct, eq=False):
    """One response. `stream` sends its body piece by piece instead."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncIterator[bytes | memoryview] | None = None

    @property
    def is_plain(self) -> bool:
        """It is what is answered most: JSON, or nothing, and no more to be said."""
        status = self.status
        return not self.headers and (status == 204 or (status == 200 and self.content_type is JSON))


def plain(response: Response) -> bytes:
    """Return a plain response, whole; its head is there but for the date and the length."""
    body = response.body
    if response.status == 204:
        return b"HTTP/1.1 204 No Content\r\n%b\r\n" % date_line()
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
        % (date_line(), len(body), body)
    )


def head_of(response: Response, length: int | None, persistence: str, *, chunked: bool) -> bytes:
    """Return what is said above the body of a response; `persistence` what becomes of the rest."""
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


#: Answers one request, now or later; called once.
Respond = Callable[[Response], None]


class App(Protocol):
    """What a connection hands its requests to."""

    def __call__(self, request: Request, respond: Respond) -> None: ...

    def look(self, request: Request) -> Response | None:
        """Refuse a request of which only the head is there, before its large body is read."""
