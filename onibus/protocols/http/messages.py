"""A request and a response of HTTP, as far as the API knows them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol
from urllib.parse import parse_qsl, unquote

from onibus.operation.traffic import NOWHERE

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


class Request:
    """One request, read whole."""

    __slots__ = (
        "begun",
        "body",
        "headers",
        "hurry",
        "keep_alive",
        "method",
        "path",
        "query_text",
        "route",
        "secure",
        "takes_chunks",
    )

    def __init__(
        self,
        method: str,
        path: str,
        query_text: str,
        headers: dict[str, str],
        body: bytes,
        secure: bool = False,
    ) -> None:
        self.method = method
        #: as it was sent, percent-encoded
        self.path = path
        self.query_text = query_text
        #: names in lower case
        self.headers = headers
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
    def segments(self) -> list[str]:
        """The parts of the path, decoded: a slash in a name is %2F."""
        parts = self.path.split("/")[1:]
        return [unquote(part) for part in parts] if "%" in self.path else parts

    @property
    def query(self) -> dict[str, str]:
        """The query; of a name that is given twice the last value."""
        return dict(parse_qsl(self.query_text, keep_blank_values=True))

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", JSON).partition(";")[0].strip().lower()

    def accepts(self, kind: str) -> bool:
        """Tell whether the client asks for that kind of answer by its name."""
        wanted = self.headers.get("accept", "")
        return any(part.partition(";")[0].strip().lower() == kind for part in wanted.split(","))


class Response:
    """One response. `stream` sends its body piece by piece instead."""

    __slots__ = ("body", "content_type", "headers", "status", "stream")

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


#: Answers one request, now or later; called once.
Respond = Callable[[Response], None]


class App(Protocol):
    """What a connection hands its requests to."""

    def __call__(self, request: Request, respond: Respond) -> None: ...

    def look(self, request: Request) -> Response | None:
        """Refuse a request of which only the head is there, before its large body is read."""
