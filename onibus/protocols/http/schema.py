"""Messages as JSON.

A body is text (`body`) or, where it is no UTF-8, base64 (`body_base64`). Property values are JSON's
own; bytes and times are written {"binary": "<base64>"} and {"time": "2026-11-16T12:00:00Z"}.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from datetime import datetime
from typing import Any

import msgspec

from onibus.core.errors import InvalidArgument
from onibus.core.message import Message, ReceivedMessage, Sent

Json = Any


class MessageIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message to be sent."""

    body: str | None = None
    body_base64: str | None = None
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    properties: dict[str, Json] = {}
    time_to_live_ms: int | None = None
    scheduled_enqueue_time_ms: int | None = None
    subject: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None


class SentOut(msgspec.Struct, omit_defaults=True):
    """What became of a message that was sent (X9)."""

    sequence_number: int
    #: the number of the message that this one repeats, when it was dropped as a duplicate
    duplicate_of: int | None = None


class MessageOut(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message as it is received or peeked."""

    sequence_number: int
    enqueued_time_ms: int
    state: str
    delivery_count: int = 0
    body: str | None = None
    body_base64: str | None = None
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    properties: dict[str, Json] = {}
    time_to_live_ms: int | None = None
    scheduled_enqueue_time_ms: int | None = None
    subject: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    enqueued_sequence_number: int | None = None
    hop_count: int = 0
    format: str = ""
    #: settles the message; absent where nothing is held
    token: str | None = None
    locked_until_ms: int | None = None
    expires_at_ms: int | None = None
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None


_SAME = (
    "message_id",
    "session_id",
    "partition_key",
    "time_to_live_ms",
    "scheduled_enqueue_time_ms",
    "subject",
    "correlation_id",
    "content_type",
    "to",
    "reply_to",
    "reply_to_session_id",
)


def message_of(given: MessageIn) -> Message:
    """Return a message as the bus takes it."""
    if given.body_base64 is not None:
        if given.body is not None:
            raise InvalidArgument("give body or body_base64, not both")
        body = from_base64("body_base64", given.body_base64)
    else:
        body = (given.body or "").encode()
    properties = given.properties
    if properties:
        properties = {name: rich_value(value) for name, value in properties.items()}
    return Message(
        body=body,
        properties=properties,
        **{name: value for name in _SAME if (value := getattr(given, name)) is not None},
    )


def sent_out(sent: Sent) -> SentOut:
    return SentOut(sent.sequence_number, sent.duplicate_of)


def message_out(received: ReceivedMessage) -> MessageOut:
    """Return a message as it is told."""
    message = received.message
    out = MessageOut(
        sequence_number=received.sequence_number,
        enqueued_time_ms=received.enqueued_time_ms,
        state=received.state,
        delivery_count=received.delivery_count,
        enqueued_sequence_number=message.enqueued_sequence_number,
        hop_count=message.hop_count,
        format=message.format,
        token=None if received.token is None else received.token.hex(),
        locked_until_ms=received.locked_until_ms,
        expires_at_ms=received.expires_at_ms,
        dead_letter_reason=received.dead_letter_reason,
        dead_letter_description=received.dead_letter_description,
    )
    for name in _SAME:
        setattr(out, name, getattr(message, name))
    try:
        out.body = message.body.decode()
    except UnicodeDecodeError:
        out.body_base64 = b64encode(message.body).decode()
    if message.properties:
        out.properties = {name: plain_value(value) for name, value in message.properties.items()}
    return out


def token_of(text: str) -> bytes:
    """Return the token that was given out as text."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidArgument("a token is what `receive` gave, in hexadecimal") from None


def from_base64(name: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Error, ValueError):
        raise InvalidArgument(f"{name} is no base64") from None


def rich_value(value: Any) -> Any:
    """Return the value of a property that JSON has no word for."""
    if not isinstance(value, dict):
        return value
    try:
        [(kind, content)] = value.items()
        if kind == "binary":
            return from_base64("a property", content)
        if kind == "time":
            moment = datetime.fromisoformat(content)
            if moment.tzinfo is None:
                raise InvalidArgument("a time needs its zone: write it with Z at its end")
            return moment
    except (ValueError, TypeError):
        pass
    raise InvalidArgument('a property is a plain value, {"binary": base64} or {"time": ISO 8601}')


def plain_value(value: Any) -> Any:
    """Return the value of a property as JSON."""
    if isinstance(value, bytes):
        return {"binary": b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"time": value.isoformat()}
    return value
