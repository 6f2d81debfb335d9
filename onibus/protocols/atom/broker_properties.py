"""Messages of the REST runtime API: BrokerProperties, and other headers as user properties."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any
from uuid import UUID

import msgspec

from onibus.core.errors import InvalidArgument
from onibus.core.limits import BATCH_COUNT_MAX, LAST_MOMENT_MS
from onibus.core.message import Message, ReceivedMessage
from onibus.protocols.http.messages import Request

#: The media type of a batch.
BATCH = "application/vnd.microsoft.servicebus.json"
_HEADER = "brokerproperties"

#: Names in BrokerProperties and the fields of the message that they are.
_STRINGS = {
    "MessageId": "message_id",
    "SessionId": "session_id",
    "PartitionKey": "partition_key",
    "Label": "subject",
    "CorrelationId": "correlation_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
}
#: Headers that HTTP itself has; all others are properties of the user.
_OF_HTTP = frozenset(
    {
        *("accept", "accept-charset", "accept-encoding", "accept-language", "authorization"),
        *("cache-control", "connection", "content-encoding", "content-length", "content-type"),
        *("cookie", "date", "expect", "forwarded", "host", "if-match", "keep-alive", "origin"),
        *("pragma", "referer", "te", "trailer", "transfer-encoding", "upgrade"),
        *("user-agent", "via", _HEADER),
    }
)
_NOT_CUSTOM = ("access-control-", "proxy-", "sec-", "set-cookie", "x-forwarded-", "x-ms-")
#: Headers of a response that no sender of a message may set.
_OF_RESPONSE = _OF_HTTP | {"location", "server", "strict-transport-security", "www-authenticate"}
_CONTENT_TYPE = re.compile(r"[\x20-\x7e]{1,256}")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_MILLISECOND = 1_000
_STATES = {"deferred": "Deferred", "deferred locked": "Deferred", "scheduled": "Scheduled"}


class Entry(msgspec.Struct, rename="pascal"):
    """A message of a batch."""

    body: str
    broker_properties: dict[str, Any] = {}
    user_properties: dict[str, Any] = {}


_decode_batch = msgspec.json.Decoder(list[Entry]).decode


def message_of(request: Request) -> Message:
    """Return the message that a request sends."""
    given: Any = {}
    if text := request.headers.get(_HEADER):
        try:
            given = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(f"BrokerProperties is not JSON: {error}") from None
    properties = {
        name: _value(text)
        for name, text in request.headers.items()
        if name not in _OF_HTTP and not name.startswith(_NOT_CUSTOM)
    }
    return _message(request.body, given, properties, request.headers.get("content-type"))


def messages_of(body: bytes) -> list[Message]:
    """Return the messages of a batch."""
    try:
        entries = _decode_batch(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidArgument(f"a batch must be a JSON array of messages: {error}") from None
    if not 0 < len(entries) <= BATCH_COUNT_MAX:
        raise InvalidArgument(f"a batch has 1 to {BATCH_COUNT_MAX} messages")
    return [
        _message(entry.body.encode(), entry.broker_properties, entry.user_properties, None)
        for entry in entries
    ]


def _message(
    body: bytes, given: Any, properties: dict[str, Any], content_type: str | None
) -> Message:
    if not isinstance(given, dict):
        raise InvalidArgument("BrokerProperties must be a JSON object")
    message = Message(body=body, properties=properties)
    message.content_type = given.get("ContentType") or content_type
    for name, field in _STRINGS.items():
        text = given.get(name)
        if text is not None:
            if not isinstance(text, str):
                raise InvalidArgument(f"BrokerProperties: {name} must be a string")
            setattr(message, field, text)
    life = given.get("TimeToLive")
    if life is not None:
        if not isinstance(life, int | float) or isinstance(life, bool) or not 0 < life < 2**40:
            raise InvalidArgument("BrokerProperties: TimeToLive must be a number of seconds")
        message.time_to_live_ms = int(life * _MILLISECOND)
    due = given.get("ScheduledEnqueueTimeUtc")
    if due is not None:
        message.scheduled_enqueue_time_ms = _time_ms(due)
    return message


def _time_ms(text: Any) -> int:
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            found = read(text)
            # RFC 1123 dates of the service are in UTC.
            aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
            return int(aware.timestamp() * _MILLISECOND)
        except (TypeError, ValueError, OverflowError):
            continue
    raise InvalidArgument("BrokerProperties: ScheduledEnqueueTimeUtc must be a date in UTC")


def _value(text: str) -> Any:
    """Return the value in a header: strings are in quotes, numbers and booleans are not."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, str | bool | int | float) else text


def moment(ms: int) -> str:
    """Return a time as the service writes it in BrokerProperties."""
    seconds = min(ms, LAST_MOMENT_MS) // _MILLISECOND
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)


def content_type_of(message: Message) -> str:
    """Return the content type of a message, unless a header cannot have it."""
    found = message.content_type or ""
    return found if _CONTENT_TYPE.fullmatch(found) else "application/octet-stream"


def headers_of(received: ReceivedMessage) -> tuple[tuple[str, str], ...]:
    """Return the headers that say all of a message but its body."""
    message = received.message
    first = message.enqueued_sequence_number
    told: dict[str, Any] = {
        name: text
        for name, field in _STRINGS.items()
        if (text := getattr(message, field)) is not None
    }
    # The service counts the delivery that this is.
    told |= {
        "DeliveryCount": received.delivery_count + 1,
        "EnqueuedSequenceNumber": received.sequence_number if first is None else first,
        "EnqueuedTimeUtc": moment(received.enqueued_time_ms),
        "SequenceNumber": received.sequence_number,
        "State": _STATES.get(received.state, "Active"),
    }
    if received.token is not None:
        told["LockToken"] = str(UUID(bytes=received.token))
    if received.locked_until_ms is not None:
        told["LockedUntilUtc"] = moment(received.locked_until_ms)
    if received.expires_at_ms is not None:
        life_ms = received.expires_at_ms - received.enqueued_time_ms
        told["TimeToLive"] = life_ms / _MILLISECOND
    properties = dict(message.properties)
    if received.dead_letter_reason is not None:
        properties["DeadLetterReason"] = received.dead_letter_reason
        properties["DeadLetterErrorDescription"] = received.dead_letter_description
    return (
        ("BrokerProperties", json.dumps(told)),
        *((name, _text(value)) for name, value in properties.items() if _is_custom(name)),
    )


def _is_custom(name: str) -> bool:
    """Return whether a header can carry a property of this name."""
    lower = name.lower()
    return (
        _TOKEN.fullmatch(name) is not None
        and lower not in _OF_RESPONSE
        and not lower.startswith(_NOT_CUSTOM)
    )


def _text(value: Any) -> str:
    """Return a property as it is written in a header, in ASCII."""
    if isinstance(value, datetime):
        value = format_datetime(value.astimezone(UTC), usegmt=True)
    return json.dumps(value.hex() if isinstance(value, bytes) else value)
