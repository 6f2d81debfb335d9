"""Media types, and errors as problem documents (RFC 9457)."""

from __future__ import annotations

import msgspec

JSON = "application/json"
NDJSON = "application/x-ndjson"
PROBLEM = "application/problem+json"
ARROW = "application/vnd.apache.arrow.stream"
BYTES = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An error (RFC 9457)."""

    #: stable code of the error, listed in docs/errors.md
    type: str
    #: refused: nothing changed; unknown: may or may not be stored; failed: problem of the server
    outcome: str
    title: str
    status: int
    detail: str
    #: the same request may succeed later
    retryable: bool = False
    #: first and last number of rows that are no longer in the log
    first: int | None = None
    last: int | None = None
    #: place of the error in a filter or action, from 0, and what is valid there
    position: int | None = None
    expected: str | None = None
