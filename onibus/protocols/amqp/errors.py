"""Errors of a peer, by the conditions of the specification (part 2, 2.8.14 to 2.8.18).

A condition ends the smallest thing that it concerns: a link (`LinkFailed`), an AMQP session
(`SessionFailed`) or the whole connection (`ConnectionFailed`). Bytes that are not AMQP raise
`DecodeError`, which ends the connection.
"""

from __future__ import annotations


class AmqpError(Exception):
    """The peer did something that the protocol does not allow."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition
        self.description = description


class ConnectionFailed(AmqpError):
    """The connection is closed for it."""


class SessionFailed(AmqpError):
    """The session is ended for it."""


class LinkFailed(AmqpError):
    """The link is detached for it."""


class DecodeError(ConnectionFailed):
    """Bytes that cannot be read."""

    def __init__(self, description: str) -> None:
        super().__init__(DECODE_ERROR, description)


DECODE_ERROR = "amqp:decode-error"
FRAMING_ERROR = "amqp:connection:framing-error"
CONNECTION_FORCED = "amqp:connection:forced"
ILLEGAL_STATE = "amqp:illegal-state"
INVALID_FIELD = "amqp:invalid-field"
NOT_ALLOWED = "amqp:not-allowed"
NOT_IMPLEMENTED = "amqp:not-implemented"
RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
UNAUTHORIZED = "amqp:unauthorized-access"
INTERNAL_ERROR = "amqp:internal-error"
HANDLE_IN_USE = "amqp:session:handle-in-use"
UNATTACHED_HANDLE = "amqp:session:unattached-handle"
MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
