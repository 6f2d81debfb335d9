"""A message as its sender made it, and its bytes in a row of a block.

A row is the MessagePack array of the fields below, in this order; trailing fields may be missing
and are then at their defaults, so fields are only ever added at the end. Property values are None,
bool, int (64 bits), float, str, bytes or an aware datetime, and come back exactly as they went in.
`format` says how `body` is to be read: "" plain bytes, "amqp" the body sections of an AMQP 1.0
message that are not one section of data, "sqs" the body of an SQS message whose attributes are in
`properties`.

A message that came over AMQP has `as_sent` too: its other sections, byte for byte, for whoever
receives it over AMQP. All that others can know of them stands in the fields as well; where those
were changed since (a rule's action, a receiver, a new MessageId) `rewritten` says that they count.

`dead_letter_of` is the bus's own word that a message came here as a dead letter of another entity:
properties anybody can write who sends, but no protocol takes this field from a sender.
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
    """What is sent. Times are milliseconds: durations, or since 1970 in UTC."""

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
    #: where it first became a dead letter that went on: the entity's incarnation, its number there
    dead_letter_of: tuple[int, int] | None = None
    #: how often it was delivered in the entities that it became a dead letter in
    received_before: int = 0


#: Message → the bytes of its row.
encode = msgspec.msgpack.Encoder().encode
#: The bytes of a row → Message.
decode = msgspec.msgpack.Decoder(Message).decode


class ReceivedMessage(msgspec.Struct, kw_only=True):
    """A message as its receiver, or somebody who peeks, sees it."""

    message: Message
    sequence_number: int
    enqueued_time_ms: int
    #: how many deliveries ended without the message being settled
    delivery_count: int = 0
    state: str = "active"
    #: settles the message; None where nothing is held (peek, receive and delete)
    token: bytes | None = None
    locked_until_ms: int | None = None
    expires_at_ms: int | None = None
    #: when it was received for the first time, under a lock of its own
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
    """What became of a message that was sent (X9)."""

    sequence_number: int
    #: the number of the message that this one repeats, when it was dropped as a duplicate
    duplicate_of: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SentBatch:
    """What became of a batch that was sent in Arrow. The arrays have an entry for each row."""

    #: rows that were stored
    accepted: int
    #: rows that were dropped as duplicates
    duplicates: int
    #: int64, no nulls: its number, or that of the message that it repeats
    sequence_number: pa.Array
    #: int64: the number of the message that a dropped row repeats; null where it was stored
    duplicate_of: pa.Array


#: The properties of a message as the MessagePack of a map, and back.
encode_properties = encode
decode_properties = msgspec.msgpack.Decoder(dict[str, Any]).decode

#: Fields of a message that settling or a rule's action changed, by name, as a `marks` row has them;
#: `properties` stand for all that it has then.
encode_overlay = encode
decode_overlay = decode_properties
