"""A message as its sender made it, and its bytes in a row of a block.

A row is the MessagePack array of the fields below, in this order; trailing fields may be missing
and are then at their defaults, so fields are only ever added at the end. Property values are None,
bool, int (64 bits), float, str, bytes or an aware datetime, and come back exactly as they went in.
`format` says how to read `body`. "" is plain bytes. "amqp" is the body sections of an AMQP 1.0
message, unless they are one data section. "sqs" is the body of an SQS message whose attributes are
in `properties`.

A message that came over AMQP also has `as_sent`: its other sections, byte for byte, for AMQP
receivers. The fields repeat all that other receivers can read of them. If a rule's action, a
receiver or a new MessageId has changed the fields since, `rewritten` says that the fields count.

`dead_letter_of` proves that the bus forwarded a dead-lettered message of another entity to this
one. Any sender can write properties, but no protocol takes this field from a sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

Property = bool | int | float | str | bytes | datetime | None

#: How a body can be read.
FORMATS = ("", "amqp", "sqs")


class Message(msgspec.Struct, array_like=True, omit_defaults=True, kw_only=True):
    """A message to send. Times are milliseconds: durations, or since 1970 in UTC."""

    body: bytes = b""
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    properties: dict[str, Any] = {}
    time_to_live_ms: int | None = None
    scheduled_enqueue_time_ms: int | None = None
    subject: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    format: str = ""
    enqueued_sequence_number: int | None = None
    #: how often it was forwarded (B6)
    hop_count: int = 0
    #: the sections around the body of a message that came over AMQP
    as_sent: bytes = b""
    #: fields were changed since: they count, not what `as_sent` says of them
    rewritten: bool = False
    #: the incarnation of the entity that first dead-lettered and forwarded it, and its sequence
    #: number there
    dead_letter_of: tuple[int, int] | None = None
    #: how often it was delivered in the entities that dead-lettered it
    received_before: int = 0


#: What a property costs in addition to the bytes of its value, about, as bytes.
_PROPERTY_BYTES = 50


def size_of_properties(properties: dict[str, Any]) -> int:
    """Return about how many bytes properties have."""
    return sum([size_of_value(one) for one in properties.values()])


def size_of_value(value: Any) -> int:
    """Return about how many bytes a property has."""
    return _PROPERTY_BYTES + (len(value) if isinstance(value, (str, bytes)) else 0)


#: Message → the bytes of its row.
encode = msgspec.msgpack.Encoder().encode
#: The bytes of a row → Message.
decode = msgspec.msgpack.Decoder(Message).decode


class ReceivedMessage(msgspec.Struct, kw_only=True):
    """A message as a receiver or a peek sees it."""

    message: Message
    sequence_number: int
    enqueued_time_ms: int
    #: how many deliveries ended without the message being settled
    delivery_count: int = 0
    state: str = "active"
    #: settles the message; None if it has no lock (peek, receive and delete)
    token: bytes | None = None
    locked_until_ms: int | None = None
    expires_at_ms: int | None = None
    #: when a receiver first locked it, other than under a session lock
    first_received_ms: int | None = None
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None
    #: it was scheduled, and enqueued at its time
    was_scheduled: bool = False

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def message_id(self) -> str | None:
        return self.message.message_id

    @property
    def session_id(self) -> str | None:
        return self.message.session_id

    @property
    def properties(self) -> dict[str, Any]:
        return self.message.properties


class Sent(msgspec.Struct, frozen=True):
    """The outcome of one send (X9)."""

    sequence_number: int
    #: the sequence number of the message that this one repeats, if it was dropped as a duplicate
    duplicate_of: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SentBatch:
    """The outcome of a record batch that was sent. The arrays have an entry for each row."""

    #: rows that were stored
    accepted: int
    #: rows that were dropped as duplicates
    duplicates: int
    #: int64, no nulls: its sequence number, or that of the message that it repeats
    sequence_number: pa.Array
    #: int64: the sequence number of the message that a dropped row repeats; null if it was stored
    duplicate_of: pa.Array


#: The properties of a message as the MessagePack of a map, and back.
encode_properties = encode
decode_properties = msgspec.msgpack.Decoder(dict[str, Any]).decode

#: Fields of a message that settling or a rule's action changed, by name, as a `marks` row has them;
#: `properties` stand for all that it has then.
encode_overlay = encode
decode_overlay = decode_properties
