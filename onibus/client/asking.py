"""What is asked of a server, and what came back, whoever carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import msgspec

from onibus.api.wire import ARROW, JSON
from onibus.core.errors import Failed, OnibusError

#: How long one request waits for messages at most; whoever wants to wait longer asks again.
WAIT_MS_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = JSON
    accept: str = JSON
    #: it changes something: when its answer is lost it may or may not have been done
    changes: bool = True
    #: it may be asked again when its answer was lost: what was done is not done twice
    repeats: bool = True
    #: it is not asked again by itself: whoever asks will
    once: bool = False
    #: for how long the server may wait before it answers
    wait_ms: int = 0

    def accepting(self, kind: str) -> Ask:
        """Return the same, asked for in another form."""
        return replace(self, accept=kind)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: bytes
    content_type: str

    def read(self, kind: Any) -> Any:
        """Return the body as a type that the API promises."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.DecodeError as error:
            raise Failed(f"the server's answer cannot be read: {error}") from None


class NotSent(OnibusError):
    """The request did not reach the server: nothing was changed."""

    code = "not-sent"
    retryable = True


class AnswerLost(OnibusError):
    """The connection broke before the answer came: the request may or may not have been done."""

    code = "answer-lost"
    retryable = True


def path_of(group: str, name: str = "", *rest: str | int) -> str:
    """Return a path of the API: a slash in a name is encoded."""
    parts = [group, *([name] if name else []), *(str(part) for part in rest)]
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def get(path: str, **query: Any) -> Ask:
    """Ask for something that changes nothing."""
    given = {name: str(value) for name, value in query.items() if value is not None}
    return Ask(method="GET", path=path, query=given, changes=False)


def post(path: str, body: Any = None, **more: Any) -> Ask:
    """Ask with a body; `more` are fields of Ask."""
    given = {"method": "POST"} | more
    return Ask(path=path, body=b"" if body is None else msgspec.json.encode(body), **given)


def post_arrow(path: str, body: bytes, **more: Any) -> Ask:
    """Ask with rows as the body."""
    return Ask(method="POST", path=path, body=body, content_type=ARROW, **more)


def without_none(**values: Any) -> dict[str, Any]:
    """Return the values that were given."""
    return {name: value for name, value in values.items() if value is not None}
