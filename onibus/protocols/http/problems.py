"""Errors as problem documents (RFC 9457): what was refused, or is unknown, or is our fault.

A problem's `type` is the error's stable code: those of docs/errors.md, and a few that only HTTP
has (HTTP_TYPES).
"""

from __future__ import annotations

import msgspec

from onibus.api.wire import PROBLEM, Problem
from onibus.core import errors
from onibus.core.errors import OnibusError
from onibus.protocols.http.messages import Response

#: HTTP statuses by error; the nearest class counts. Others are 400 where refused, 500 where ours.
STATUSES: dict[type[OnibusError], int] = {
    errors.Unauthorized: 401,
    errors.TooManyFailures: 429,
    errors.Forbidden: 403,
    errors.EntityNotFound: 404,
    errors.MessageNotFound: 404,
    errors.ClaimNotFound: 404,
    errors.NotStaged: 404,
    errors.NoSession: 404,
    errors.KeyNotFound: 404,
    errors.EntityExists: 409,
    errors.KeyExists: 409,
    errors.EntityReplaced: 409,
    errors.BatchChanged: 409,
    errors.BatchTooOld: 409,
    errors.Busy: 409,
    errors.SessionLocked: 409,
    errors.InvalidOperation: 409,
    errors.LockLost: 410,
    errors.LogGap: 410,
    errors.MessageTooLarge: 413,
    errors.EntityDisabled: 403,
    errors.DiskNearlyFull: 507,
    errors.QuotaExceeded: 429,
    errors.PartitionOffline: 503,
    errors.BusClosed: 503,
    errors.Unknown: 503,
    errors.Refused: 400,
    errors.Failed: 500,
}


#: Characters of an error that are told.
_DETAIL_LENGTH = 2_000


class WrongContentType(errors.Refused):
    """The body is of a kind that this call does not take."""

    code = "wrong-content-type"


class WrongContentEncoding(WrongContentType):
    """The body is compressed in a way that the server does not support."""


class BodyTooLarge(errors.Refused):
    """The body is larger than the server accepts, perhaps once it is decompressed."""

    code = "body-too-large"


#: What is told while all connections together hold too much.
CROWDED = "too much is being sent or received at once: try again later"


class Overloaded(errors.Refused):
    """All connections together hold too much."""

    code = "overloaded"
    retryable = True

    def __init__(self) -> None:
        super().__init__(CROWDED)


#: The types of problems that only HTTP has, by status.
HTTP_TYPES = {
    400: "bad-request",
    404: "no-such-path",
    405: "no-such-method",
    408: "request-timeout",
    413: BodyTooLarge.code,
    415: WrongContentType.code,
    431: "head-too-large",
    503: Overloaded.code,
}


def outcome_of(error: OnibusError) -> str:
    """Return which of the three an error is."""
    if isinstance(error, errors.Refused):
        return "refused"
    return "unknown" if isinstance(error, errors.Unknown) else "failed"


def refusal(status: int, detail: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Return the answer to what is no request of this API at all."""
    document = Problem(
        type=HTTP_TYPES[status],
        outcome="refused",
        title=HTTP_TYPES[status].replace("-", " "),
        status=status,
        detail=detail,
        retryable=status in (408, 503),
    )
    return Response(status, msgspec.json.encode(document), PROBLEM, headers)


def status_of(error: OnibusError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, WrongContentType):
        return 415
    if isinstance(error, BodyTooLarge):
        return 413
    if isinstance(error, Overloaded):
        return 503
    for kind in type(error).__mro__:
        if kind in STATUSES:
            return STATUSES[kind]
    return 500


def _short(detail: str) -> str:
    """Return what an error says; it may repeat a name that is as long as the body."""
    return detail if len(detail) <= _DETAIL_LENGTH else detail[:_DETAIL_LENGTH] + "…"


def problem(error: BaseException) -> Response:
    """Return the answer that tells of an error; of a fault of ours only that it is one."""
    if not isinstance(error, OnibusError):
        error = errors.Failed("something went wrong on our side; the log has the details")
    status = status_of(error)
    document = Problem(
        type=error.code,
        outcome=outcome_of(error),
        title=error.code.replace("-", " "),
        status=status,
        detail=_short(str(error)),
        retryable=error.retryable,
    )
    if isinstance(error, errors.LogGap):
        document.first, document.last = error.first, error.last
    elif isinstance(error, errors.InvalidFilter):
        document.position, document.expected = error.position, error.expected or None
    return Response(status, msgspec.json.encode(document), PROBLEM, headers_of(error, status))


def headers_of(error: OnibusError, status: int) -> tuple[tuple[str, str], ...]:
    """Return the headers that say what a client can do about an error."""
    if isinstance(error, errors.TooManyFailures):
        return (("retry-after", "1"),)
    if isinstance(error, WrongContentEncoding):
        return (("accept-encoding", "gzip"),)
    return (("www-authenticate", "SharedAccessSignature"),) if status == 401 else ()
