"""Errors as Service Bus clients read them: a status, and <Error> with a code and a detail."""

from __future__ import annotations

from urllib.parse import unquote

from onibus.core import errors
from onibus.core.errors import OnibusError
from onibus.protocols import tracking
from onibus.protocols.atom.xml import escaped, tag
from onibus.protocols.http.messages import Response
from onibus.protocols.http.problems import BodyTooLarge, headers_of

CONTENT_TYPE = "application/xml; charset=utf-8"


class NoSuchMethod(errors.Refused):
    """The path is asked in another way."""

    code = "no-such-method"


#: Statuses by error; the nearest class counts. Others: 400 if refused, 500 if failed.
STATUSES: dict[type[OnibusError], int] = {
    errors.Unauthorized: 401,
    errors.TooManyFailures: 429,
    # Clients read 403 as a full namespace; 401 asks them for another key.
    errors.Forbidden: 401,
    errors.EntityNotFound: 404,
    errors.EntityExists: 409,
    errors.KeyExists: 409,
    errors.QuotaExceeded: 403,
    errors.PartitionOffline: 503,
    errors.DiskNearlyFull: 503,
    errors.Busy: 503,
    errors.BusClosed: 503,
    errors.Unknown: 503,
    NoSuchMethod: 405,
    BodyTooLarge: 413,
    errors.Refused: 400,
}


#: Where the runtime API differs: a missing entity is gone, a lost lock is not found.
RUNTIME_STATUSES: dict[type[OnibusError], int] = {
    **STATUSES,
    errors.EntityNotFound: 410,
    errors.EntityDisabled: 403,
    errors.LockLost: 404,
    errors.MessageTooLarge: 403,
}


def status_of(error: OnibusError, statuses: dict[type[OnibusError], int] = STATUSES) -> int:
    """Return the HTTP status of an error."""
    return next((statuses[kind] for kind in type(error).__mro__ if kind in statuses), 500)


def refusal(
    error: BaseException,
    host: str,
    path: str,
    statuses: dict[type[OnibusError], int] = STATUSES,
) -> Response:
    """Return the response for an error; for an internal error, without its details."""
    if not isinstance(error, OnibusError) or isinstance(error, errors.Failed):
        error = errors.Failed("the server failed: see its log for details")
    status = status_of(error, statuses)
    detail = tracking.description(error, host, unquote(path).strip("/"))
    inner = tag("Code", str(status)) + tag("Detail", escaped(detail))
    told = tag("Error", inner).encode()
    return Response(status, told, CONTENT_TYPE, headers_of(error, status))
