"""Media types, and errors as problem documents (RFC 9457)."""

from __future__ import annotations

import msgspec

JSON = "application/json"
PROBLEM = "application/problem+json"
ARROW = "application/vnd.apache.arrow.stream"
TEXT = "text/plain; charset=utf-8"


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What went wrong."""

    #: the error's stable code, as docs/errors.md lists it
    type: str
    #: refused: nothing was changed; unknown: it may or may not have been; failed: our fault
    outcome: str
    title: str
    status: int
    detail: str
    #: the same request may succeed later
    retryable: bool = False
    #: of rows that are in the log no more: the numbers of the first and the last
    first: int | None = None
    last: int | None = None
    #: of a filter or action that cannot be read: where, from 0, and what would be right there
    position: int | None = None
    expected: str | None = None
