"""Errors as problem documents (RFC 9457), with their family: refused, unknown or failed.

A problem's `type` is the error's stable code: one of docs/errors.md, or one of those that only HTTP
has (HTTP_TYPES).
"""

from __future__ import annotations

import msgspec

from onibus.api.wire import PROBLEM, Problem
from onibus.core import errors
from onibus.core.errors import OnibusError
from onibus.protocols.http.messages import Response

#: HTTP statuses by error; the nearest class counts. Others: 400 if refused, 500 if failed.
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


#: Characters of an error message that are sent.
_DETAIL_LENGTH = 2_000


class WrongContentType(errors.Refused):
    """A body of a type that this call does not accept."""

    code = "wrong-content-type"


class WrongContentEncoding(WrongContentType):
    """A body compressed with an unsupported coding."""


class BodyTooLarge(errors.Refused):
    """A body larger than the server accepts, perhaps once decompressed."""

    code = "body-too-large"


#: Error while all connections together hold too much.
CROWDED = "the server holds too many bodies and responses: try again later"


class Overloaded(errors.Refused):
    """All connections together hold too much."""

    code = "overloaded"
    retryable = True

    def __init__(self) -> None:
        super().__init__(CROWDED)


#: Types of problems that only HTTP has, by status.
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
    """Return the family of an error."""
    if isinstance(error, errors.Refused):
        return "refused"
    return "unknown" if isinstance(error, errors.Unknown) else "failed"


def refusal(status: int, detail: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Return the response to bytes that are not a request of this API."""
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
    """Return the message of an error, truncated: it may repeat a name as long as the body."""
    return detail if len(detail) <= _DETAIL_LENGTH else detail[:_DETAIL_LENGTH] + "…"


def problem(error: BaseException) -> Response:
    """Return the response for an error, without the details of a server failure."""
    if not isinstance(error, OnibusError):
        error = errors.Failed("the server failed: see its log for details")
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
    """Return the headers that help a client handle an error."""
    if isinstance(error, errors.TooManyFailures):
        return (("retry-after", "1"),)
    if isinstance(error, WrongContentEncoding):
        return (("accept-encoding", "gzip"),)
    return (("www-authenticate", "SharedAccessSignature"),) if status == 401 else ()
