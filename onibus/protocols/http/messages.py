"""A request and a response of HTTP, as far as the API knows them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

from onibus.operation.traffic import NOWHERE
from onibus.protocols.http.date import date_line

JSON = "application/json"
PROBLEM = "application/problem+json"
ARROW = "application/vnd.apache.arrow.stream"
TEXT = "text/plain; charset=utf-8"

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


class Head:
    """What a client says above a body. Never changed: requests that say the same share it."""

    __slots__ = ("content_type", "found", "headers", "method", "path", "query_text")

    def __init__(self, method: str, path: str, query_text: str, headers: dict[str, str]) -> None:
        self.method = method
        #: as it was sent, percent-encoded
        self.path = path
        self.query_text = query_text
        #: names in lower case
        self.headers = headers
        self.content_type = _media_type(headers.get("content-type", JSON))
        #: where it leads, once the app has looked for it
        self.found: Any = None


@lru_cache(256)
def _media_type(text: str) -> str:
    return text.partition(";")[0].strip().lower()


class Request:
    """One request, read whole."""

    __slots__ = ("begun", "body", "head", "hurry", "keep_alive", "route", "secure", "takes_chunks")

    def __init__(self, head: Head, body: bytes, secure: bool = False) -> None:
        self.head = head
        self.body = body
        #: it came over TLS
        self.secure = secure
        #: another request may follow on the same connection
        self.keep_alive = True
        #: an answer may come in chunks: not before HTTP/1.1
        self.takes_chunks = True
        #: ends a wait, now: the client has gone, or the server is about to stop
        self.hurry: Callable[[], None] | None = None
        #: method and path of the route that it took, once that was found
        self.route = NOWHERE
        #: when it was handed out, in the loop's time
        self.begun = 0.0

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


class Response:
    """One response. `stream` sends its body piece by piece instead."""

    __slots__ = ("body", "content_type", "headers", "is_plain", "status", "stream")

    def __init__(
        self,
        status: int = 200,
        body: bytes = b"",
        content_type: str = JSON,
        headers: tuple[tuple[str, str], ...] = (),
        stream: AsyncIterator[bytes | memoryview] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.stream = stream
        #: what is answered most: JSON, or nothing, and no more to be said
        self.is_plain = not headers and (status == 204 or (status == 200 and content_type is JSON))


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
    status = response.status
    text = f"HTTP/1.1 {status} {REASONS.get(status, '')}\r\n"
    if chunked:
        text += "transfer-encoding: chunked\r\n"
    elif length is not None and response.stream is None and status != 204:
        text += f"content-length: {length}\r\n"
    if response.body or response.stream is not None:
        text += f"content-type: {response.content_type}\r\n"
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
