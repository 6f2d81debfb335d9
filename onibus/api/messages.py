"""Messages as JSON.

A body is a string (`body`) or, if it is not UTF-8, base64 (`body_base64`). Property values are JSON
values. Bytes, times and durations, which JSON lacks, are {"binary": "<base64>"},
{"time": "2026-11-16T12:00:00Z"} and {"duration_us": 1500000} (the last in SQL parameters only).
Times are in milliseconds: durations, or times since 1970 in UTC.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from onibus.core.errors import InvalidArgument
from onibus.core.inspection import Filter
from onibus.core.limits import BATCH_COUNT_MAX, NUMBERS_MAX
from onibus.core.message import Message, ReceivedMessage, Sent, size_of_value

#: Longest wait of one request for messages, as in SQS; a client that waits longer sends another.
WAIT_MS_MAX = 20_000

#: Properties of a message in a response with a body limit, in bytes: as many as Service Bus takes.
PROPERTIES_BYTES_MAX = 64 << 10

Json = Any
#: Sequence numbers, claim numbers and positions in logs.
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
#: Start of a peek; may be one above the highest number, where a counter rolls over.
Start = Annotated[int, Meta(ge=0)]
Numbers = Annotated[list[Number], Meta(min_length=1, max_length=NUMBERS_MAX)]
#: Number of messages in one request.
Count = Annotated[int, Meta(ge=1, le=BATCH_COUNT_MAX)]
#: Milliseconds of a wait, of another duration, or since 1970.
WaitMs = Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)]
Milliseconds = Annotated[int, Meta(ge=0, le=2**53)]
#: Bytes of each body in a list; more are left out, and properties beyond PROPERTIES_BYTES_MAX.
BodyLimit = Annotated[int, Meta(ge=0, le=2**31)]
#: A lock token, in hexadecimal.
Token = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Tokens = Annotated[list[Token], Meta(min_length=1, max_length=BATCH_COUNT_MAX)]


class MessageIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message to send."""

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
    """The result of a send (X9)."""

    sequence_number: int
    #: the sequence number of the original, if the message was dropped as a duplicate
    duplicate_of: int | None = None


class MessageOut(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A received or peeked message."""

    sequence_number: int
    enqueued_time_ms: int
    state: str
    delivery_count: int = 0
    body: str | None = None
    body_base64: str | None = None
    #: bytes of the whole body, if only its beginning is here
    body_size: int | None = None
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    properties: dict[str, Json] = {}
    #: how many properties the message has, if only the first of them are here
    property_count: int | None = None
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
    #: lock token; absent if the message is not locked
    token: str | None = None
    locked_until_ms: int | None = None
    expires_at_ms: int | None = None
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None


class Messages(msgspec.Struct):
    """Messages, in order."""

    messages: list[MessageOut]


def message_of(given: MessageIn) -> Message:
    """Return a message for the bus."""
    body = bytes_of("body", given.body, given.body_base64)
    properties = given.properties
    return Message(
        body=body or b"",
        message_id=given.message_id,
        session_id=given.session_id,
        partition_key=given.partition_key,
        properties=rich_values(properties) if properties else properties,
        time_to_live_ms=given.time_to_live_ms,
        scheduled_enqueue_time_ms=given.scheduled_enqueue_time_ms,
        subject=given.subject,
        correlation_id=given.correlation_id,
        content_type=given.content_type,
        to=given.to,
        reply_to=given.reply_to,
        reply_to_session_id=given.reply_to_session_id,
    )


def sent_out(sent: Sent) -> SentOut:
    return SentOut(sent.sequence_number, sent.duplicate_of)


def message_out(received: ReceivedMessage, body_limit: int | None = None) -> MessageOut:
    """Return a message for a response, with at most that many bytes of its body."""
    message = received.message
    cut = body_limit is not None and len(message.body) > body_limit
    text, binary = beginning(message.body, body_limit or 0) if cut else text_of(message.body)
    properties, property_count = message.properties, None
    if properties:
        shown = shown_properties(properties, body_limit)
        property_count = None if shown is properties else len(properties)
        properties = plain_values(shown)
    return MessageOut(
        sequence_number=received.sequence_number,
        enqueued_time_ms=received.enqueued_time_ms,
        state=received.state,
        delivery_count=received.delivery_count,
        body=text,
        body_base64=binary,
        body_size=len(message.body) if cut else None,
        message_id=message.message_id,
        session_id=message.session_id,
        partition_key=message.partition_key,
        properties=properties,
        property_count=property_count,
        time_to_live_ms=message.time_to_live_ms,
        scheduled_enqueue_time_ms=message.scheduled_enqueue_time_ms,
        subject=message.subject,
        correlation_id=message.correlation_id,
        content_type=message.content_type,
        to=message.to,
        reply_to=message.reply_to,
        reply_to_session_id=message.reply_to_session_id,
        enqueued_sequence_number=message.enqueued_sequence_number,
        hop_count=message.hop_count,
        format=message.format,
        token=None if received.token is None else received.token.hex(),
        locked_until_ms=received.locked_until_ms,
        expires_at_ms=received.expires_at_ms,
        dead_letter_reason=received.dead_letter_reason,
        dead_letter_description=received.dead_letter_description,
    )


def shown_properties(properties: dict[str, Any], body_limit: int | None) -> dict[str, Any]:
    """Return the properties that a response has: the same object, if it has all of them."""
    if body_limit is None or not properties:
        return properties
    size = 0
    for at, (name, value) in enumerate(properties.items()):
        size += len(name) + size_of_value(value)
        if size > PROPERTIES_BYTES_MAX:
            return dict(islice(properties.items(), at))
    return properties


def beginning(content: bytes, limit: int) -> tuple[str | None, str | None]:
    """Return the beginning of a body, which is not cut inside a character."""
    beginning = content[:limit]
    for end in range(limit, max(limit - 4, -1), -1):
        text, _ = text_of(beginning[:end])
        if text is not None:
            return text, None
    return text_of(beginning)


class FilterIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Selects messages; missing fields do not restrict (X5)."""

    state: Literal["active", "deferred", "scheduled", "dead-lettered"] | None = None
    session_id: str | None = None
    message_id: str | None = None
    body_contains: str | None = None
    body_contains_base64: str | None = None
    enqueued_from_ms: int | None = None
    enqueued_before_ms: int | None = None
    #: SQL filter, and the values of its parameters
    sql: str | None = None
    sql_parameters: dict[str, Json] = {}
    #: a field of a JSON body, such as customer.orders[0].id, and the string or JSON value it has
    body_path: str | None = None
    body_equals: str | None = None
    dead_letter_reason: str | None = None


def filter_of(given: FilterIn | None) -> Filter:
    """Return a filter for the bus."""
    if given is None:
        return Filter()
    return Filter(
        state=given.state,
        session_id=given.session_id,
        message_id=given.message_id,
        body_contains=bytes_of("body_contains", given.body_contains, given.body_contains_base64),
        enqueued_from_ms=given.enqueued_from_ms,
        enqueued_before_ms=given.enqueued_before_ms,
        sql=given.sql,
        sql_parameters=rich_values(given.sql_parameters),
        body_path=given.body_path,
        body_equals=given.body_equals,
        dead_letter_reason=given.dead_letter_reason,
    )


def token_of(text: str) -> bytes:
    """Return the bytes of a lock token."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidArgument(
            "a lock token must be hexadecimal, as `receive` returned it"
        ) from None


def bytes_of(name: str, text: str | None, binary: str | None) -> bytes | None:
    """Return bytes given as a string or as base64."""
    if binary is None:
        try:
            return None if text is None else text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"cannot encode {name}: {error}") from None
    if text is not None:
        raise InvalidArgument(f"give {name} or {name}_base64, not both")
    return from_base64(f"{name}_base64", binary)


def text_of(content: bytes) -> tuple[str | None, str | None]:
    """Return bytes as a string or, if they are not UTF-8, as base64."""
    try:
        return content.decode(), None
    except UnicodeDecodeError:
        return None, b64encode(content).decode()


def from_base64(name: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Error, ValueError):
        raise InvalidArgument(f"{name} is not valid base64") from None


def rich_value(value: Any) -> Any:
    """Return a property value, decoded from JSON."""
    if not isinstance(value, dict):
        return value
    try:
        [(kind, content)] = value.items()
        if kind == "binary":
            return from_base64("a property", content)
        if kind == "time":
            moment = datetime.fromisoformat(content)
            if moment.tzinfo is None:
                raise InvalidArgument("a time needs a time zone: end it with Z, for example")
            return moment
        if kind == "duration_us":
            return timedelta(microseconds=content)
    except (ValueError, TypeError, OverflowError):
        pass
    raise InvalidArgument(
        'a value must be plain, {"binary": base64}, {"time": ISO 8601} or {"duration_us": number}'
    )


def rich_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: rich_value(value) for name, value in values.items()}


def plain_value(value: Any) -> Any:
    """Return a property value as JSON."""
    if isinstance(value, bytes):
        return {"binary": b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"time": value.isoformat()}
    if isinstance(value, timedelta):
        return {"duration_us": value // timedelta(microseconds=1)}
    return value


def plain_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: plain_value(value) for name, value in values.items()}
