"""Decoding of AMQP messages into bus messages.

Ids, keys, times and properties become fields. The sections around the body are also kept, byte for
byte (`as_sent`), so that an AMQP receiver sees what was sent, types included. Their order there:
header, annotations and footer, if they have something that no field has; then properties and
application properties.

A body of one data section, which nearly all messages have, becomes the plain body of the message;
any other is kept encoded, as format "amqp". No body at all is an empty one of that format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from onibus.core.errors import InvalidArgument
from onibus.core.limits import BATCH_COUNT_MAX
from onibus.core.message import Message
from onibus.protocols.amqp.decode import Symbol, Timestamp
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.sections import (
    ANNOTATIONS,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    PROPERTIES,
)

#: The message format of a send batch: each data section is a separate message.
BATCH_FORMAT = 0x80013700

PARTITION_KEY = "x-opt-partition-key"
VIA_PARTITION_KEY = "x-opt-via-partition-key"
SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
#: Annotations that are fields of the message, or stamps that only the broker sets.
KNOWN = frozenset(
    {
        PARTITION_KEY,
        SCHEDULED_TIME,
        *("x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until"),
        *("x-opt-enqueue-sequence-number", "x-opt-message-state", "x-opt-lock-token"),
        *("x-opt-partition-id", "x-opt-deadletter-source"),
    }
)

#: A time to live that does not fit: the real one is in the other two times.
TTL_MAX = 2**32 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_batch(payload: bytes, most: int = BATCH_COUNT_MAX) -> Iterator[Message]:
    """Yield the messages of a batch; what its envelope says is said by them too."""
    count = 0
    for code, _, value, end in sections.each(payload):
        if code == DATA:
            count += 1
            if count > most:
                raise InvalidArgument(f"too many messages: a batch has at most {most}")
            yield read_message(payload, sections.binary_start(payload, value), end)


def read_message(data: bytes, start: int = 0, end: int | None = None) -> Message:
    """Return the bus message that these bytes encode."""
    if end is None:
        end = len(data)
    if end - start < _SHORT.size:
        return _read_any(data[start:end])
    head, size, count, code, length = _SHORT.unpack_from(data, start)
    if head != _SHORT_PROPERTIES:
        return _read_any(data[start:end])
    # Properties, perhaps application properties, and data: so are most messages.
    at = properties_end = start + _SHORT_HEAD + size
    body = sections.only_data(data, at, end)
    if body is None and data[at : at + 4] == _SHORT_APPLICATION and at + 4 < end:
        at += _SHORT_HEAD + data[at + 4]
        body = sections.only_data(data, at, end)
    if body is None:
        return _read_any(data[start:end])
    message = Message(body=body, as_sent=data[start:at])
    if code == _STRING8 and length + count + 2 == size and _are_nulls(data, properties_end, count):
        # Only a MessageId.
        text_at = start + _SHORT.size
        message.message_id = sections.text(data, text_at, text_at + length)
    else:
        _read_properties(message, message.as_sent, 3)
    if at > properties_end:
        found = sections.map_at(message.as_sent, properties_end - start + 3)
        message.properties = _properties(found)
    return message


def _are_nulls(data: bytes, end: int, count: int) -> bool:
    """Return whether all elements of a list except the first are null, and so take a byte each."""
    return count == 1 or data[end - count + 1 : end] == _NULLS[: count - 1]


#: Properties in a list of less than 256 bytes: its size, its count, and the head of the first of
#: its elements, which mostly is the only one that is not null, the MessageId.
_SHORT = struct.Struct(">4sBBBB")
_SHORT_PROPERTIES = b"\x00\x53\x73\xc0"
_SHORT_APPLICATION = b"\x00\x53\x74\xc1"
#: Where the bytes that a size counts begin; a short string; the most nulls of a list.
_SHORT_HEAD, _STRING8, _NULLS = 5, 0xA1, b"\x40" * 255


def _read_any(payload: bytes) -> Message:
    """Return a message of any sections."""
    message = Message()
    rare: list[bytes] = []
    usual: list[bytes] = []
    body_start = body_end = data_at = 0
    parts = 0
    found = sections.split(payload)
    sections.check_once(found)
    for code, start, value, end in found:
        if code == PROPERTIES:
            _read_properties(message, payload, value)
            usual.append(payload[start:end])
        elif code == APPLICATION_PROPERTIES:
            message.properties = _properties(sections.map_at(payload, value))
            usual.append(payload[start:end])
        elif code == HEADER:
            if _read_header(message, payload, value):
                rare.append(payload[start:end])
        elif code == ANNOTATIONS:
            if _read_annotations(message, payload, value):
                rare.append(payload[start:end])
        elif code == DELIVERY_ANNOTATIONS:
            if not sections.map_at(payload, value).keys() <= KNOWN:
                rare.append(payload[start:end])
        elif code == FOOTER:
            rare.append(payload[start:end])
        else:
            if not parts:
                body_start = start
            body_end = end
            data_at = value if code == DATA else 0
            parts += 1
    if parts == 1 and data_at:
        message.body = sections.binary_at(payload, data_at, body_end)
    else:
        message.body = payload[body_start:body_end]
        message.format = "amqp"
    message.as_sent = b"".join((*rare, *usual))
    return message


def _read_header(message: Message, payload: bytes, at: int) -> bool:
    """Take the time to live; return whether the header has durable, priority or first-acquirer."""
    fields = sections.list_at(payload, at)
    if len(fields) > 2 and fields[2] is not None and message.time_to_live_ms is None:
        message.time_to_live_ms = _whole("header.ttl", fields[2])
    return any(value is not None for value in (*fields[:2], *fields[3:4]))


def _read_annotations(message: Message, payload: bytes, at: int) -> bool:
    """Take the annotations that are fields; return whether there are others."""
    found = sections.map_at(payload, at)
    key = found.get(PARTITION_KEY)
    if key is not None:
        message.partition_key = string_of(PARTITION_KEY, key)
    due = found.get(SCHEDULED_TIME)
    if due is not None:
        message.scheduled_enqueue_time_ms = _whole(SCHEDULED_TIME, due)
    return not found.keys() <= KNOWN


def _read_properties(message: Message, payload: bytes, at: int) -> None:
    fields = sections.list_at(payload, at)
    if fields and fields[0] is not None:
        message.message_id = id_text(fields[0])
    if len(fields) < 2:
        return
    fields += [None] * (13 - len(fields))
    if fields[5] is not None:
        message.correlation_id = id_text(fields[5])
    for position, name in _TEXTS:
        if fields[position] is not None:
            setattr(message, name, string_of(name, fields[position]))
    expiry, creation = fields[8], fields[9]
    if message.time_to_live_ms == TTL_MAX and expiry is not None and creation is not None:
        life = _whole("absolute-expiry-time", expiry) - _whole("creation-time", creation)
        message.time_to_live_ms = max(life, TTL_MAX)


#: Places in the list of properties, and the fields of the message that they are.
_TEXTS = (
    (2, "to"),
    (3, "subject"),
    (4, "reply_to"),
    (6, "content_type"),
    (10, "session_id"),
    (12, "reply_to_session_id"),
)


def id_text(value: Any) -> str:
    """Return an id, of whatever type, as a string."""
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (int, UUID)):
        return str(value)
    raise InvalidArgument("an id must be a string, a number, a UUID or bytes")


def string_of(name: str, value: object) -> str:
    """Return a string that came as a string, a symbol or binary: clients echo all three."""
    if isinstance(value, bytes):
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError:
            raise InvalidArgument(f"{name} must be UTF-8") from None
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a string, a symbol or binary")
    return str(value)


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgument(f"{name} must be a number of milliseconds")
    return int(value)


def _properties(found: dict[Any, Any]) -> dict[str, Any]:
    """Return the properties that the bus can store; others stay in `as_sent`."""
    known = {}
    for name, value in found.items():
        if type(name) is not str:
            name = string_of("the name of an application property", name)
        plain = plain_value(value)
        if plain is not UNKNOWN:
            known[name] = plain
    return known


#: Stands for a value that the bus has no type for.
UNKNOWN: Any = object()


def plain_value(value: Any) -> Any:
    """Return the value of a property as the bus has it, or UNKNOWN."""
    kind = type(value)
    if kind in (str, bool, float, bytes) or value is None:
        return value
    if kind is int:
        return value if value < 2**63 else UNKNOWN
    if kind is Timestamp:
        try:
            return _EPOCH + timedelta(milliseconds=value)
        except OverflowError:
            return UNKNOWN
    if kind is Symbol or kind is UUID:
        return str(value)
    return UNKNOWN
