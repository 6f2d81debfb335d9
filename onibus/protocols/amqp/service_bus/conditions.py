"""Errors of the bus as conditions of AMQP, and as status codes of requests.

Clients choose their exceptions by these words. One client knows a missing entity only by the words
of the description, which `describe` puts in.
"""

from __future__ import annotations

import logging

from onibus.core import errors
from onibus.core.errors import OnibusError
from onibus.protocols.amqp import errors as amqp
from onibus.protocols.amqp.errors import AmqpError

_log = logging.getLogger("onibus.amqp")

NOT_FOUND = "amqp:not-found"
_MS = "com.microsoft:"
ARGUMENT_ERROR = _MS + "argument-error"
MESSAGE_LOCK_LOST = _MS + "message-lock-lost"
SESSION_LOCK_LOST = _MS + "session-lock-lost"
MESSAGE_NOT_FOUND = _MS + "message-not-found"
SERVER_BUSY = _MS + "server-busy"
TIMEOUT = _MS + "timeout"

#: The first class that an error is one of decides.
CONDITIONS: tuple[tuple[type[BaseException], str, int], ...] = (
    (errors.SessionLockLost, SESSION_LOCK_LOST, 410),
    (errors.LockLost, MESSAGE_LOCK_LOST, 410),
    (errors.SessionLocked, _MS + "session-cannot-be-locked", 409),
    (errors.NoSession, TIMEOUT, 408),
    (errors.EntityNotFound, NOT_FOUND, 404),
    (errors.EntityExists, _MS + "entity-already-exists", 409),
    (errors.EntityDisabled, _MS + "entity-disabled", 403),
    (errors.MessageNotFound, MESSAGE_NOT_FOUND, 404),
    (errors.MessageTooLarge, amqp.MESSAGE_SIZE_EXCEEDED, 400),
    (errors.QuotaExceeded, amqp.RESOURCE_LIMIT_EXCEEDED, 403),
    (errors.Unauthorized, amqp.UNAUTHORIZED, 401),
    (errors.TooManyFailures, SERVER_BUSY, 503),
    (errors.Forbidden, amqp.UNAUTHORIZED, 401),
    (errors.InvalidArgument, ARGUMENT_ERROR, 400),
    (errors.InvalidOperation, amqp.NOT_ALLOWED, 400),
    (errors.PartitionOffline, SERVER_BUSY, 503),
    (errors.Busy, SERVER_BUSY, 503),
    (errors.Unknown, TIMEOUT, 408),
    (errors.BusClosed, SERVER_BUSY, 503),
    (errors.Refused, amqp.NOT_ALLOWED, 400),
)


def condition_of(error: BaseException) -> tuple[str, str, int]:
    """Return the condition, the description and the status code of an error."""
    if isinstance(error, AmqpError):
        return error.condition, error.description, 400
    for kind, condition, status in CONDITIONS:
        if isinstance(error, kind):
            return condition, describe(error, status), status
    # A fault of ours: what went wrong is nobody else's to read.
    _log.error("a request failed", exc_info=error)
    text = str(error) if isinstance(error, OnibusError) else "the server failed; its log says more"
    return amqp.INTERNAL_ERROR, text, 500


def describe(error: BaseException, status: int) -> str:
    """Return what is told of an error."""
    if isinstance(error, errors.EntityNotFound):
        return f"The messaging entity could not be found: {error} (status-code: {status})"
    return str(error)
