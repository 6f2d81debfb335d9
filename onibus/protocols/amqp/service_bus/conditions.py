"""Errors of the bus as conditions of AMQP, and as status codes of requests.

Clients choose their exceptions by these words. One client knows a missing entity only by the words
of the description (`tracking`).
"""

from __future__ import annotations

import logging

from onibus.core import errors
from onibus.core.errors import OnibusError
from onibus.protocols import tracking
from onibus.protocols.amqp import errors as amqp
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.errors import AmqpError
from onibus.protocols.amqp.link import IncomingLink, Link
from onibus.protocols.amqp.service_bus.places import path_of

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


def condition_of(error: BaseException, link: Link) -> tuple[str, str, int]:
    """Return the condition, the description and the status code of an error on a link."""
    if isinstance(error, AmqpError):
        return error.condition, error.description, 400
    for kind, condition, status in CONDITIONS:
        if isinstance(error, kind):
            attach = link.attach
            terminus = attach.target if isinstance(link, IncomingLink) else attach.source
            path = path_of(say.address_of(terminus)[:_PATH_LENGTH_MAX])
            host = link.session.connection.hostname
            return condition, tracking.description(error, host, _without_node(path)), status
    # An internal error: its details go only to the log.
    _log.error("request failed", exc_info=error)
    text = str(error) if isinstance(error, OnibusError) else "the server failed; its log says more"
    return amqp.INTERNAL_ERROR, text, 500


def _without_node(path: str) -> str:
    return path.removesuffix("/$management")


#: Characters of an address that are repeated in a description.
_PATH_LENGTH_MAX = 512
