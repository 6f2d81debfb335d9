"""Conversion of messages, filters and entities between Python objects and HTTP."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from onibus.api.delivery import Resubmitted, ResubmittedOut
from onibus.api.entities import EntityInfo, EntityOut, QueueOut, SubscriptionOut, TopicOut
from onibus.api.messages import (
    MessageIn,
    MessageOut,
    SentOut,
    bytes_of,
    plain_values,
    rich_values,
    text_of,
)
from onibus.api.operation import KeyWithSecrets
from onibus.api.rules import rule_of
from onibus.api.sessions import SessionOut
from onibus.core.errors import InvalidArgument, LockLost
from onibus.core.inspection import Filter, SessionInfo
from onibus.core.message import Message, ReceivedMessage, Sent
from onibus.extras import explained
from onibus.security.rights import Right

if TYPE_CHECKING:
    import pyarrow as pa

    from onibus.security.keys import AccessKey

#: Fields that messages have on both sides, apart from body and properties.
_SENT = [
    name
    for name in MessageIn.__struct_fields__
    if name not in ("body", "body_base64", "properties")
]
_KEPT = [*_SENT, "enqueued_sequence_number", "hop_count", "format"]
_RECEIVED = [
    name
    for name in ReceivedMessage.__struct_fields__
    if name not in ("message", "token") and name in MessageOut.__struct_fields__
]


def with_id(message: Message) -> Message:
    """Return a message with a MessageId, generated if it has none (D11)."""
    if not isinstance(message, Message):
        raise InvalidArgument(f"send a Message, not a {type(message).__name__}")
    return message if message.message_id is not None else replace(message, message_id=uuid4().hex)


def sent_of(told: SentOut, made: bool) -> Sent:
    """Return the outcome of a send.

    A message whose id was generated here can only be a duplicate of itself, sent before a response
    was lost: it was stored.
    """
    duplicate_of = None if made else told.duplicate_of
    return Sent(told.sequence_number, duplicate_of)


def message_json(message: Message) -> dict[str, Any]:
    """Return a message in its HTTP form."""
    if not isinstance(message, Message):
        raise InvalidArgument(f"send a Message, not a {type(message).__name__}")
    told: dict[str, Any] = {
        name: value for name in _SENT if (value := getattr(message, name)) is not None
    }
    text, binary = text_of(message.body)
    told |= {"body": text} if binary is None else {"body_base64": binary}
    if message.properties:
        told["properties"] = plain_values(message.properties)
    return told


def received_of(told: MessageOut) -> ReceivedMessage:
    """Return a message for its receiver."""
    fields = {name: getattr(told, name) for name in _KEPT}
    body = bytes_of("body", told.body, told.body_base64)
    return ReceivedMessage(
        message=Message(body=body or b"", properties=rich_values(told.properties), **fields),
        token=None if told.token is None else bytes.fromhex(told.token),
        **{name: getattr(told, name) for name in _RECEIVED},
    )


def token_text(message: ReceivedMessage | bytes) -> str:
    """Return the lock token of a message."""
    if isinstance(message, bytes):
        return message.hex()
    if not isinstance(message, ReceivedMessage):
        raise InvalidArgument("pass a received message or its lock token")
    if message.token is None:
        raise LockLost("the message is not locked: it was peeked, or received and deleted")
    return message.token.hex()


def filter_json(where: Filter | None) -> dict[str, Any] | None:
    """Return a filter in its HTTP form."""
    if where is None:
        return None
    if not isinstance(where, Filter):
        raise InvalidArgument(f"pass a Filter, not a {type(where).__name__}")
    told = {
        name: value
        for name in Filter.__struct_fields__
        if (value := getattr(where, name)) is not None and name != "body_contains"
    }
    if where.body_contains is not None:
        text, binary = text_of(where.body_contains)
        told |= {"body_contains": text} if binary is None else {"body_contains_base64": binary}
    told["sql_parameters"] = plain_values(where.sql_parameters)
    return told


def entity_of(told: EntityOut) -> EntityInfo[Any]:
    """Return an entity as a Bus does."""
    shared = {name: getattr(told, name) for name in EntityOut.__struct_fields__}
    shared["offline_partitions"] = tuple(told.offline_partitions)
    subscriptions = told.subscriptions if isinstance(told, TopicOut) else []
    rules = told.rules if isinstance(told, SubscriptionOut) else []
    settings: Any = getattr(told, "settings")  # noqa: B009  each kind has its own
    return EntityInfo(
        **shared,
        settings=settings,
        subscriptions=tuple(subscriptions),
        rules=tuple(rule_of(rule) for rule in rules),
        noisy_groups=tuple(told.noisy_groups) if isinstance(told, QueueOut) else (),
    )


def session_of(told: SessionOut) -> SessionInfo:
    """Return a session as a Bus does."""
    fields = msgspec.structs.asdict(told)
    state = fields.pop("state_base64")
    return SessionInfo(**fields, state=None if state is None else b64decode(state))


def _pyarrow() -> Any:
    """Return pyarrow, or say how to install it."""
    with explained():
        import pyarrow
    return pyarrow


def arrow_bytes(rows: pa.RecordBatch | pa.Table) -> bytes:
    """Return rows as the Arrow IPC stream that servers accept: uncompressed, in plain columns."""
    pa = _pyarrow()
    plain = pa.schema([field.with_type(_plain_type(field.type)) for field in rows.schema])
    if plain.types != rows.schema.types:
        try:
            rows = rows.cast(plain)
        except pa.ArrowException as error:
            raise InvalidArgument(f"cannot send the rows: {error}") from None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _plain_type(given: pa.DataType) -> pa.DataType:
    """Return the plain type with the same values."""
    import pyarrow as pa

    if pa.types.is_dictionary(given):
        return _plain_type(given.value_type)
    if pa.types.is_string_view(given):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(given) else given


def arrow_table(body: bytes) -> pa.Table:
    """Return the rows of an Arrow IPC stream that a server sent, validated."""
    pa = _pyarrow()
    with pa.ipc.open_stream(body) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


def rows_with_ids(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    """Return rows with a MessageId each, generated where one is missing (D11)."""
    pa = _pyarrow()
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    at = table.schema.get_field_index("message_id")
    if at != -1 and table.column(at).null_count == 0:
        return table
    prefix = uuid4().hex
    made = [f"{prefix}-{row}" for row in range(table.num_rows)]
    if at == -1:
        return table.append_column("message_id", pa.array(made, pa.string()))
    kept = table.column(at).to_pylist()
    filled = [one if one is not None else new for one, new in zip(kept, made, strict=True)]
    return table.set_column(at, "message_id", pa.array(filled, pa.string()))


def key_of(told: KeyWithSecrets) -> AccessKey:
    """Return a key that does not show its secrets when printed."""
    from onibus.security.keys import AccessKey

    return AccessKey(
        name=told.name,
        entity=told.entity,
        rights=frozenset(Right(one) for one in told.rights),
        primary=told.primary,
        secondary=told.secondary,
    )


def resubmitted(told: ResubmittedOut) -> Resubmitted:
    """Return the result of a resubmission or a move."""
    return Resubmitted(
        moved={one.sequence_number: one.new_sequence_number for one in told.moved},
        refused={one.sequence_number: one.reason for one in told.refused},
    )
