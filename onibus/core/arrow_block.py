"""The Arrow encoding of a block's body, and blocks as record batches.

The body of an Arrow block (encoding 1, core/block.py) is an Arrow IPC stream, uncompressed, of one
record batch with the block's rows and these columns, all of them and in this order. They are the
fields of Message (core/message.py), except the two that only AMQP clients read and the one that
only the bus writes. Every table of messages that a client sends or reads has these columns:

    message_id                 string
    session_id                 string
    partition_key              string
    subject                    string
    correlation_id             string
    content_type               string
    to                         string
    reply_to                   string
    reply_to_session_id        string
    time_to_live_ms            int64
    scheduled_enqueue_time_ms  int64
    format                     string, not null
    enqueued_sequence_number   int64
    hop_count                  int64, not null
    properties                 binary: a MessagePack map with string keys; null for none
    body                       binary, not null

Null means that the sender did not set the field. `conform` also takes batches that lack columns,
have them in another order, or in another type of the same kind (large_string, int32, dictionaries
…). It works on whole columns and leaves `properties` unread: path/admit_arrow.py checks them.

A block as a record batch, whatever its encoding, has four more columns before these:

    ordinal                    uint64, not null
    enqueued_time_ms           int64, not null: the stamp, milliseconds since 1970
    expires_at_ms              int64: the stamp plus the time to live; null for never
    kind                       uint32, not null: a message, the marker of a scheduled one, or a copy
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from onibus.core.block import (
    ARROW,
    HEADER,
    NEVER,
    STAGED,
    UNREADABLE,
    VERSION,
    Block,
    arrow_index,
    read_header,
)
from onibus.core.errors import Damaged, InvalidArgument
from onibus.core.message import Message, decode_properties, encode_properties

#: The columns of messages.
SCHEMA = pa.schema(
    [
        pa.field("message_id", pa.string()),
        pa.field("session_id", pa.string()),
        pa.field("partition_key", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("correlation_id", pa.string()),
        pa.field("content_type", pa.string()),
        pa.field("to", pa.string()),
        pa.field("reply_to", pa.string()),
        pa.field("reply_to_session_id", pa.string()),
        pa.field("time_to_live_ms", pa.int64()),
        pa.field("scheduled_enqueue_time_ms", pa.int64()),
        pa.field("format", pa.string(), nullable=False),
        pa.field("enqueued_sequence_number", pa.int64()),
        pa.field("hop_count", pa.int64(), nullable=False),
        pa.field("properties", pa.binary()),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
#: The columns of messages that have a place in a log.
LOG_SCHEMA = pa.schema(
    [
        pa.field("ordinal", pa.uint64(), nullable=False),
        pa.field("enqueued_time_ms", pa.int64(), nullable=False),
        pa.field("expires_at_ms", pa.int64()),
        pa.field("kind", pa.uint32(), nullable=False),
        *SCHEMA,
    ]
)

#: What a column that may not be null has where the sender set nothing.
_DEFAULTS = {"format": "", "hop_count": 0, "body": b""}

#: The fields of a message, in the order of the columns.
_FIELDS = attrgetter(*SCHEMA.names)

#: What a stream has after its record batch.
_END_BYTES = 8

#: Numbers, one for each row.
Numbers = npt.ArrayLike


class EncodedBody:
    """The body of an Arrow block, and its checksum."""

    __slots__ = ("checksum", "content", "staged")

    def __init__(self, batch: pa.RecordBatch) -> None:
        """Encode a batch that `conform` has returned."""
        #: as it is staged, with a header and without an index
        self.staged = encode_stream(batch, HEADER.size)
        self.content = self.staged[HEADER.size :]
        self.checksum = checksum(self.content)
        header = HEADER.pack(b"OB", VERSION, STAGED, batch.num_rows, 0, self.checksum)
        self.staged[: HEADER.size] = header


def encode_stream(batch: pa.RecordBatch, before: int = 0) -> memoryview:
    """Return an Arrow IPC stream of one batch, uncompressed, with zeros before it."""
    # The length is known: a growing buffer would copy its content again and again.
    size = batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) + _END_BYTES
    buffer = pa.allocate_buffer(before + size)
    with pa.FixedSizeBufferWriter(buffer) as sink:
        sink.write(bytes(before))
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
    return memoryview(buffer).cast("B")


def checksum(body: bytes | memoryview) -> int:
    """Return the checksum that a body is verified with: the low half of its XXH3."""
    return xxh3_64_intdigest(body) & 0xFFFFFFFF


def encode_arrow(
    ordinals: Numbers,
    stamps: Numbers,
    arrived: Numbers,
    expires: Numbers,
    sessions: Numbers,
    kinds: Numbers,
    batch: pa.RecordBatch,
    body: EncodedBody | None = None,
) -> bytes:
    """Return the bytes of a block of these rows; ordinals must rise. One number stands for all.

    The batch comes from `conform`; `body` is its encoding, if that was made before.
    """
    assert batch.num_rows, "a block has at least one row"
    body = body or EncodedBody(batch)
    index = arrow_index(ordinals, stamps, arrived, expires, sessions, kinds, batch.num_rows)
    header = HEADER.pack(b"OB", VERSION, ARROW, batch.num_rows, crc32(index), body.checksum)
    return b"".join((header, index, body.content))


def conform(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch by the schema of messages, or reject it."""
    check_columns(batch.schema)
    try:
        batch.validate(full=True)
        columns = [_column(batch, field) for field in SCHEMA]
    except pa.ArrowException as error:
        raise InvalidArgument(f"cannot encode the batch: {error}") from None
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def check_columns(schema: pa.Schema) -> None:
    """Reject columns that messages do not have, and columns of another kind."""
    names = schema.names
    unknown = [name for name in names if name not in SCHEMA.names]
    if unknown or len(set(names)) < len(names):
        what = f"unknown columns: {', '.join(unknown)}" if unknown else "a column twice"
        raise InvalidArgument(f"the batch has {what}; messages have {', '.join(SCHEMA.names)}")
    for given in schema:
        wanted = SCHEMA.field(given.name).type
        if _kind(given.type) not in (_kind(wanted), "null"):
            raise InvalidArgument(f"column {given.name} is {given.type}: use {wanted}")


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        column = pa.nulls(batch.num_rows, field.type)
    else:
        column = batch.column(field.name).cast(field.type)
    if column.null_count and not field.nullable:
        column = pc.fill_null(column, _DEFAULTS[field.name])
    return column


def _kind(given: pa.DataType) -> str:
    """Return the values of a column, whatever its layout."""
    types = pa.types
    if types.is_dictionary(given):
        return _kind(given.value_type)
    if types.is_string(given) or types.is_large_string(given) or types.is_string_view(given):
        return "text"
    if types.is_binary(given) or types.is_large_binary(given) or types.is_binary_view(given):
        return "bytes"
    if types.is_integer(given):
        return "number"
    return "null" if types.is_null(given) else str(given)


class ArrowBody:
    """The body of an Arrow block that was read back and verified."""

    __slots__ = ("_set", "batch")

    def __init__(self, payload: bytes, start: int, rows: int) -> None:
        if checksum(memoryview(payload)[start:]) != HEADER.unpack_from(payload)[5]:
            raise Damaged("a block's body does not match its checksum")
        self.batch = _read(pa.py_buffer(payload).slice(start), rows)
        #: the columns that some sender has set
        self._set = [
            (name, column)
            for name, column in zip(SCHEMA.names, self.batch.columns, strict=True)
            if column.null_count < rows
        ]

    def message(self, position: int) -> Message:
        """Return a row as the message that was sent."""
        return _message({name: column[position].as_py() for name, column in self._set}, position)


def staged_columns(payload: bytes) -> pa.RecordBatch:
    """Return the rows of a block that was staged, verified and not copied."""
    return ArrowBody(payload, HEADER.size, read_header(payload)[1]).batch


def messages_of(batch: pa.RecordBatch) -> list[Message]:
    """Return all rows of a batch by the schema of messages as the messages that were sent."""
    set_columns = [
        (name, column.to_pylist())
        for name, column in zip(SCHEMA.names, batch.columns, strict=True)
        if column.null_count < len(column)
    ]
    names = [name for name, _ in set_columns]
    values = zip(*[column for _, column in set_columns], strict=True)
    return [_message(dict(zip(names, row, strict=True)), at) for at, row in enumerate(values)]


def _message(fields: dict[str, Any], position: int) -> Message:
    properties = fields.get("properties")
    try:
        fields["properties"] = {} if properties is None else decode_properties(properties)
    except UNREADABLE as error:
        raise Damaged(f"the properties of row {position} cannot be read: {error}") from error
    return Message(**fields)


def _read(body: pa.Buffer, rows: int) -> pa.RecordBatch:
    """Return the one record batch in the body; its bytes are not copied."""
    try:
        with pa.ipc.open_stream(body) as reader:
            if not reader.schema.equals(SCHEMA):
                raise Damaged("a block's columns are not those of messages")
            batch = reader.read_next_batch()
        batch.validate(full=True)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise Damaged(f"a block's body is not an Arrow stream: {error}") from error
    if batch.num_rows != rows:
        raise Damaged(f"a block of {rows} rows has {batch.num_rows} in its body")
    if any(batch.column(name).null_count for name in _DEFAULTS):
        raise Damaged("a block's body has nulls where it must not")
    return batch


def record_batch(block: Block) -> pa.RecordBatch:
    """Return a block's rows with their places in the log (LOG_SCHEMA)."""
    if block.encoding == ARROW:
        messages = block.arrow_batch().columns
    else:
        messages = columns_of([block.message(position) for position in range(block.rows)])
    index = block.index
    places = [
        pa.array(np.ascontiguousarray(index["ordinal"])),
        pa.array(np.ascontiguousarray(index["stamp"])),
        shown_expiry(index),
        pa.array(np.ascontiguousarray(index["kind"])),
    ]
    return pa.RecordBatch.from_arrays([*places, *messages], schema=LOG_SCHEMA)


def shown_expiry(index: npt.NDArray[Any]) -> pa.Array:
    """Return when rows expire by the wall clock of their stamps; bus time is never shown."""
    never = index["expires"] == NEVER
    lives = np.where(never, 0, index["expires"] - index["arrived"])
    return pa.array(index["stamp"] + lives, mask=never)


def columns_of(messages: list[Message]) -> list[pa.Array]:
    """Return messages as the columns of SCHEMA."""
    columns = []
    by_field = zip(*map(_FIELDS, messages), strict=True)
    for field, values in zip(SCHEMA, map(list, by_field), strict=True):
        if field.name == "properties":
            values = [encode_properties(value) if value else None for value in values]
        try:
            columns.append(pa.array(values, field.type))
        except (OverflowError, pa.ArrowException) as error:
            raise Damaged(f"a row's {field.name} is not of its type: {error}") from error
    return columns
