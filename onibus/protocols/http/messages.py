"""A request and a response of HTTP, as far as the API knows them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol
from urllib.parse import parse_qsl, unquote

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

    __slots__ = ("body", "headers", "method", "path", "query_text", "route", "secure")

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
        #: method and path of the route that it took, once that was found
        self.route = ("", "")

    @property
    def segments(self) -> list[str]:
        """The parts of the path, decoded: a slash in a name is %2F."""
        return [unquote(part) for part in self.path.split("/")[1:]]

    @property
    def query(self) -> dict[str, str]:
        """The query; of a name that is given twice the last value."""
        return dict(parse_qsl(self.query_text, keep_blank_values=True))

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", JSON).partition(";")[0].strip().lower()


class Response:
    """One response. `stream` sends its body piece by piece instead."""

    __slots__ = ("body", "content_type", "headers", "status", "stream")

    def __init__(
        self,
        status: int = 200,
        body: bytes = b"",
        content_type: str = JSON,
        headers: tuple[tuple[str, str], ...] = (),
        stream: AsyncIterator[bytes] | None = None,
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
