"""Requests to a server and its responses, independent of the transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import msgspec

from onibus.api.wire import ARROW, JSON
from onibus.core.errors import Failed, OnibusError

#: Longest wait for messages in one request; to wait longer, the client sends another.
WAIT_MS_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = JSON
    accept: str = JSON
    #: it changes something: if its response is lost, it may or may not have been executed
    changes: bool = True
    #: it is safe to repeat when its response is lost: it takes effect once
    repeats: bool = True
    #: the client does not repeat it: the caller decides
    once: bool = False
    #: time that the server may wait before it responds
    wait_ms: int = 0

    def accepting(self, kind: str) -> Ask:
        """Return the same request for a different response format."""
        return replace(self, accept=kind)


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """A response."""

    status: int
    body: bytes
    content_type: str

    def read(self, kind: Any) -> Any:
        """Return the body, decoded as a type of the API."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.DecodeError as error:
            raise Failed(f"cannot decode the server's response: {error}") from None


class NotSent(OnibusError):
    """A request that did not reach the server: nothing changed."""

    code = "not-sent"
    retryable = True


class AnswerLost(OnibusError):
    """A connection that broke before the response: the request may have been executed."""

    code = "answer-lost"
    retryable = True


def path_of(group: str, name: str = "", *rest: str | int) -> str:
    """Return an API path, with slashes in names encoded."""
    parts = [group, *([name] if name else []), *(str(part) for part in rest)]
    return "/v1/" + "/".join(map(_segment, parts))


def _segment(part: str) -> str:
    """Return a name as a part of a path."""
    if part in (".", ".."):
        # As they are, they would remove themselves and the part before them.
        return part.replace(".", "%2E")
    return quote(part, safe="")


def get(path: str, **query: Any) -> Ask:
    """Return a request that changes nothing."""
    given = {name: str(value) for name, value in query.items() if value is not None}
    return Ask(method="GET", path=path, query=given, changes=False)


def post(path: str, body: Any = None, **more: Any) -> Ask:
    """Return a request with a body; `more` are fields of Ask."""
    given = {"method": "POST"} | more
    return Ask(path=path, body=b"" if body is None else msgspec.json.encode(body), **given)


def post_arrow(path: str, body: bytes, **more: Any) -> Ask:
    """Return a request with rows as its body."""
    return Ask(method="POST", path=path, body=body, content_type=ARROW, **more)


def without_none(**values: Any) -> dict[str, Any]:
    """Return the values that are set."""
    return {name: value for name, value in values.items() if value is not None}
