"""Encoding of bus messages as AMQP messages.

The broker adds what it knows in the header and in annotations. Properties are those that were sent,
byte for byte. They are re-encoded if the message's fields have changed (`rewritten`), or if it has
a time to live, was dead-lettered, or has no id. Unchanged parts keep their bytes.
"""

from __future__ import annotations

import struct
from typing import Any

from onibus.core.limits import COUNTER_BITS_PARTITIONED, LAST_MOMENT_MS
from onibus.core.message import Message, ReceivedMessage
from onibus.gateway.forwarding import DEAD_LETTER_SOURCE
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.decode import decode
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.incoming import (
    KNOWN,
    TTL_MAX,
    UNKNOWN,
    id_text,
    plain_value,
)
from onibus.protocols.amqp.service_bus.sections import (
    ANNOTATIONS,
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    PROPERTIES,
)

_SEQUENCE_NUMBER = to.symbol("x-opt-sequence-number")
_ENQUEUED_TIME = to.symbol("x-opt-enqueued-time")
_ENQUEUE_NUMBER = to.symbol("x-opt-enqueue-sequence-number")
_LOCKED_UNTIL = to.symbol("x-opt-locked-until")
_STATE = to.symbol("x-opt-message-state")
_PARTITION_KEY = to.symbol("x-opt-partition-key")
_SCHEDULED_TIME = to.symbol("x-opt-scheduled-enqueue-time")
_PARTITION_ID = to.symbol("x-opt-partition-id")
_DEAD_LETTER_SOURCE = to.symbol("x-opt-deadletter-source")
_LOCK_TOKEN = to.symbol("x-opt-lock-token")

_NUMBER_AND_TIME = struct.Struct(
    f">{len(_SEQUENCE_NUMBER)}sBq{len(_ENQUEUED_TIME)}sBq{len(_ENQUEUE_NUMBER)}sBq"
).pack
_MOMENT = struct.Struct(">Bq").pack
_SHORT = struct.Struct(">Bh").pack

_NO_HEADER = b"\x00\x53\x70\xc0\x06\x05\x40\x40\x40\x40\x43"

#: Header and annotations of a message that is received under a lock for the first time, in one
#: piece: the bytes before each of their values.
_TOKEN_PARTS = len(_LOCK_TOKEN) + 1 + 16
_TOKEN_HEAD = b"".join(
    (_NO_HEADER, b"\x00\x53\x71\xc1", bytes((_TOKEN_PARTS + 1, 2)), _LOCK_TOKEN, b"\x98")
)
_USUAL_PARTS = (
    len(_SEQUENCE_NUMBER + _ENQUEUED_TIME + _ENQUEUE_NUMBER + _LOCKED_UNTIL + _STATE) + 4 * 9 + 2
)
_USUAL_HEAD = b"".join(
    (b"\x00\x53\x72\xc1", bytes((_USUAL_PARTS + 1, 10)), _SEQUENCE_NUMBER, b"\x81")
)
_ENQUEUED_HEAD = _ENQUEUED_TIME + b"\x83"
_ENQUEUE_HEAD = _ENQUEUE_NUMBER + b"\x81"
_LOCKED_HEAD = _LOCKED_UNTIL + b"\x83"
_STATE_HEAD = _STATE + b"\x54"
_USUAL = struct.Struct(
    f">{len(_TOKEN_HEAD)}s16s"
    f"{len(_USUAL_HEAD)}sq{len(_ENQUEUED_HEAD)}sq{len(_ENQUEUE_HEAD)}sq"
    f"{len(_LOCKED_HEAD)}sq{len(_STATE_HEAD)}sB"
).pack

#: Service Bus tells these apart; all else is active.
_STATES = {
    **dict.fromkeys(("deferred", "deferred locked"), 1),
    **dict.fromkeys(("dead-lettered deferred", "dead-lettered deferred locked"), 1),
    "scheduled": 2,
}

#: A receiver of the service sees a message that was scheduled and enqueued at its time as scheduled
#: (azure-sdk-for-js#19357), unless the message was deferred or dead-lettered since.
_WAITING = ("active", "locked")

DEAD_LETTER_REASON = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION = "DeadLetterErrorDescription"

#: The fields of the message at the places of the properties; None if it has no such field.
_FIELDS = (
    *("message_id", None, "to", "subject", "reply_to", "correlation_id", "content_type"),
    *(None, None, None, "session_id", None, "reply_to_session_id"),
)
_EXPIRY, _CREATION = 8, 9
#: A sent message that begins with properties or application properties has nothing before them.
_PROPERTIES_FIRST = (b"\x00\x53\x73", b"\x00\x53\x74")


def write_message(received: ReceivedMessage) -> bytes:
    """Return a message as clients read it."""
    if not _is_usual(received):
        return _write_any(received)
    message, number = received.message, received.sequence_number
    before = _USUAL(
        *(_TOKEN_HEAD, received.token),
        *(_USUAL_HEAD, number, _ENQUEUED_HEAD, received.enqueued_time_ms),
        *(_ENQUEUE_HEAD, number, _LOCKED_HEAD, received.locked_until_ms),
        *(_STATE_HEAD, _STATES.get(received.state, 0)),
    )
    body = message.body
    return b"".join((before, message.as_sent, sections.data_head(len(body)), body))


def _write_any(received: ReceivedMessage) -> bytes:
    """Return any message, with all that its state requires."""
    message = received.message
    as_sent = message.as_sent
    hops: list[bytes] = []
    others: list[bytes] = []
    life = _time_to_live(received)
    if life is None and not received.delivery_count:
        header = _NO_HEADER
    else:
        header = _header([], life, received.delivery_count)
    pristine = as_sent[:3] in _PROPERTIES_FIRST and not message.rewritten
    named = message.message_id is not None
    if pristine and named and life is None and received.dead_letter_reason is None:
        around, footer = as_sent, b""
    else:
        header, hops, others, around, footer = _anew(received, header, life)
    if received.token is not None:
        hops += (_LOCK_TOKEN, b"\x98" + received.token)
    if hops:
        header += sections.section(DELIVERY_ANNOTATIONS, to.map_(hops))
    body = message.body
    head = b"" if message.format == "amqp" else sections.data_head(len(body))
    return b"".join((header, _annotations(received, others), around, head, body, footer))


def _is_usual(received: ReceivedMessage) -> bool:
    """Return whether a message is received under a lock for the first time, with few fields."""
    message = received.message
    return (
        received.locked_until_ms is not None
        and received.token is not None
        and received.expires_at_ms is None
        and not received.delivery_count
        and received.dead_letter_reason is None
        and received.sequence_number < 1 << COUNTER_BITS_PARTITIONED
        and message.message_id is not None
        and message.time_to_live_ms is None
        and message.partition_key is None
        and message.scheduled_enqueue_time_ms is None
        and message.enqueued_sequence_number is None
        and not message.hop_count
        and not message.format
        and not message.rewritten
        and message.as_sent[:3] in _PROPERTIES_FIRST
    )


def _header(sent: list[bytes], life: int | None, deliveries: int) -> bytes:
    """Return a header that keeps durable, priority and first-acquirer as they were sent."""
    durable, priority, _, first_acquirer = (*sent, *[to.NULL] * 4)[:4]
    ttl = to.NULL if life is None else to.uint(min(life, TTL_MAX))
    return sections.section(
        HEADER, to.list_([durable, priority, ttl, first_acquirer, to.uint(deliveries)])
    )


def _time_to_live(received: ReceivedMessage) -> int | None:
    """Return how long a message lives in all, by its own time or its entity's."""
    if received.expires_at_ms is None:
        return received.message.time_to_live_ms
    return max(received.expires_at_ms - received.enqueued_time_ms, 0)


def _annotations(received: ReceivedMessage, others: list[bytes]) -> bytes:
    message = received.message
    number = received.sequence_number
    first = message.enqueued_sequence_number
    parts = [
        _NUMBER_AND_TIME(
            *(_SEQUENCE_NUMBER, 0x81, number),
            *(_ENQUEUED_TIME, 0x83, received.enqueued_time_ms),
            *(_ENQUEUE_NUMBER, 0x81, number if first is None else first),
        )
    ]
    count = 6
    if received.locked_until_ms is not None:
        parts += (_LOCKED_UNTIL, _MOMENT(0x83, received.locked_until_ms))
        count += 2
    state = _STATES.get(received.state, 0)
    if received.was_scheduled and received.state in _WAITING:
        state = _STATES["scheduled"]
    parts += (_STATE, bytes((0x54, state)))
    count += 2
    if message.partition_key is not None:
        parts += (_PARTITION_KEY, to.string(message.partition_key))
        count += 2
    if message.scheduled_enqueue_time_ms is not None:
        parts += (_SCHEDULED_TIME, _MOMENT(0x83, message.scheduled_enqueue_time_ms))
        count += 2
    partition = number >> COUNTER_BITS_PARTITIONED
    if partition:
        parts += (_PARTITION_ID, _SHORT(0x61, partition))
        count += 2
    # Any sender can write properties of these names: they count if the bus wrote `dead_letter_of`.
    source = None if message.dead_letter_of is None else message.properties.get(DEAD_LETTER_SOURCE)
    if isinstance(source, str):
        parts += (_DEAD_LETTER_SOURCE, to.string(source))
        count += 2
    parts += others
    content = b"".join(parts)
    return sections.section(ANNOTATIONS, to.wrapped_map(count + len(others), content))


def _anew(
    received: ReceivedMessage, header: bytes, life: int | None
) -> tuple[bytes, list[bytes], list[bytes], bytes, bytes]:
    """Return header, delivery and message annotations of the sender, properties and footer."""
    message = received.message
    sent = message.as_sent
    hops: list[bytes] = []
    others: list[bytes] = []
    properties: list[bytes] = []
    application: list[bytes] = []
    footer = b""
    for code, start, value, end in sections.split(sent):
        if code == HEADER:
            header = _header(sections.elements(sent, value), life, received.delivery_count)
        elif code == DELIVERY_ANNOTATIONS:
            hops = _unknown(sections.elements(sent, value))
        elif code == ANNOTATIONS:
            others = _unknown(sections.elements(sent, value))
        elif code == PROPERTIES:
            properties = sections.elements(sent, value)
        elif code == APPLICATION_PROPERTIES:
            application = sections.elements(sent, value)
        elif code == FOOTER:
            footer = sent[start:end]
    around = _properties(received, properties, life) + _application(received, application)
    return header, hops, others, around, footer


def _unknown(found: list[bytes]) -> list[bytes]:
    """Return the annotations, keys and values in turn, that are not ours to give."""
    kept = []
    for at in range(0, len(found), 2):
        key, _ = decode(found[at])
        if key not in KNOWN:
            kept += found[at : at + 2]
    return kept


def _properties(received: ReceivedMessage, sent: list[bytes], life: int | None) -> bytes:
    message = received.message
    found = (sent + [to.NULL] * len(_FIELDS))[: len(_FIELDS)]
    if message.rewritten or not message.as_sent:
        for place, name in enumerate(_FIELDS):
            if name is None:
                continue
            now = getattr(message, name)
            before, _ = decode(found[place])
            if (None if before is None else id_text(before)) != now:
                found[place] = to.string(now)
    if message.message_id is None:
        # Service Bus clients need an id; the JavaScript client cannot close a receiver of messages
        # without one. The bus assigns none (D11), so the id is the sequence number, with the
        # enqueued time, since other entities use the same sequence numbers.
        number, time_ms = received.sequence_number, received.enqueued_time_ms
        found[0] = to.string(f"{time_ms:016x}{number:016x}")
    if life is not None:
        found[_CREATION] = to.timestamp(received.enqueued_time_ms)
        found[_EXPIRY] = to.timestamp(min(received.enqueued_time_ms + life, LAST_MOMENT_MS))
    while found and found[-1] == to.NULL:
        found.pop()
    return sections.section(PROPERTIES, to.list_(found)) if found else b""


def _application(received: ReceivedMessage, sent: list[bytes]) -> bytes:
    message = received.message
    found = sent
    if message.rewritten or not message.as_sent:
        found = _merged(message, sent)
    if received.dead_letter_reason is not None:
        found = _without(found, (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION))
        found += (to.string(DEAD_LETTER_REASON), to.string(received.dead_letter_reason))
        if received.dead_letter_description is not None:
            found += (
                to.string(DEAD_LETTER_DESCRIPTION),
                to.string(received.dead_letter_description),
            )
    return sections.section(APPLICATION_PROPERTIES, to.map_(found)) if found else b""


def _merged(message: Message, sent: list[bytes]) -> list[bytes]:
    """Return the properties as they are now; those that are as they were sent keep their type."""
    left = dict(message.properties)
    found: list[bytes] = []
    for at in range(0, len(sent), 2):
        name, before = decode(sent[at])[0], plain_value(decode(sent[at + 1])[0])
        kept = name not in left if before is UNKNOWN else _same(left.get(name, UNKNOWN), before)
        if kept:
            found += sent[at : at + 2]
            left.pop(name, None)
    for name, value in left.items():
        found += (to.string(name), to.encode(value))
    return found


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _without(found: list[bytes], names: tuple[str, ...]) -> list[bytes]:
    kept = []
    for at in range(0, len(found), 2):
        if decode(found[at])[0] not in names:
            kept += found[at : at + 2]
    return kept
