"""Message headers of an Arrow IPC stream, read in Python.

Arrow trusts a header: it decompresses and follows offsets before anything can be checked. So a
client's headers are read here first, where an offset out of range only raises. Only the streams
that docs/how-to/bulk.md describes are accepted: a schema of plain columns, which Arrow never reads,
then uncompressed record batches whose buffers are inside their own body.

A header is a flatbuffer: tables that say where their fields are. The indexes of fields and the
values of enumerations are those of Arrow's format/Message.fbs and format/Schema.fbs.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from onibus.core.errors import InvalidArgument

#: Start of each message, and the length that ends a stream.
_CONTINUATION, _END = 0xFFFFFFFF, 0
#: Version 5, which Arrow 1.0 and later write. Earlier versions declare compression elsewhere.
_VERSION = 4
_LITTLE_ENDIAN = 0
#: Bytes in the header of a record batch. Sixteen columns take one kilobyte; Arrow verifies up to
#: eight tables for each byte.
BATCH_HEADER_BYTES_MAX = 64 << 10
#: Bytes in a column's name, which an error repeats.
NAME_BYTES_MAX = 256
#: Compiled code that reads numbers may crash if they are not aligned to their size.
_ALIGNMENT = 8

# Indexes of fields, by table.
_MESSAGE_VERSION, _MESSAGE_KIND, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = range(4)
_SCHEMA_ENDIANNESS, _SCHEMA_FIELDS = range(2)
_FIELD_NAME, _FIELD_TYPE_KIND, _FIELD_TYPE, _FIELD_DICTIONARY, _FIELD_CHILDREN = 0, 2, 3, 4, 5
_INT_WIDTH, _INT_SIGNED = range(2)
_BATCH_ROWS, _BATCH_BUFFERS, _BATCH_COMPRESSION, _BATCH_VARIADIC = 0, 2, 3, 4

_SCHEMA, _BATCH = 1, 3
_INT = 2
#: The other accepted types, under their names in pyarrow.
_TYPES = {1: "null", 4: "binary", 5: "string", 19: "large_binary", 20: "large_string"}

_U8, _U16, _I16, _U32 = Struct("<B"), Struct("<H"), Struct("<h"), Struct("<I")
_I32, _I64 = Struct("<i"), Struct("<q")
#: Bytes of a reference to a table, and of a buffer's offset and length.
_REFERENCE_BYTES, _BUFFER_BYTES = 4, 16


class Column(NamedTuple):
    """A column of the schema, and the name of its type in pyarrow."""

    name: str
    kind: str


class BatchHeader(NamedTuple):
    """Position of a record batch in the stream, and its number of rows."""

    start: int
    end: int
    rows: int


class _Header:
    """A flatbuffer."""

    __slots__ = ("_content",)

    def __init__(self, content: memoryview) -> None:
        self._content = content

    def number(self, form: Struct, at: int) -> int:
        if at < 0 or at + form.size > len(self._content):
            raise InvalidArgument("an Arrow message header points outside itself")
        number: int = form.unpack_from(self._content, at)[0]
        return number

    def field(self, table: int, index: int) -> int | None:
        """Return the position of a field in a table, or None if it is not set."""
        offsets = table - self.number(_I32, table)
        slot = 4 + 2 * index
        if slot + 2 > self.number(_U16, offsets):
            return None
        offset = self.number(_U16, offsets + slot)
        return table + offset if offset else None

    def value(self, table: int, index: int, form: Struct) -> int:
        at = self.field(table, index)
        return 0 if at is None else self.number(form, at)

    def table(self, table: int, index: int) -> int:
        """Return the position of the table that a field refers to."""
        at = self.field(table, index)
        if at is None:
            raise InvalidArgument("an Arrow message header lacks a part")
        return at + self.number(_U32, at)

    def vector(self, table: int, index: int, size: int) -> range:
        """Return the positions of a vector's elements; none if the field is not set."""
        if self.field(table, index) is None:
            return range(0)
        at = self.table(table, index)
        start = at + _U32.size
        end = start + self.number(_U32, at) * size
        if end > len(self._content):
            raise InvalidArgument("an Arrow message header points outside itself")
        return range(start, end, size)

    def string(self, table: int, index: int) -> str:
        found = self.vector(table, index, 1)
        if len(found) > NAME_BYTES_MAX:
            raise InvalidArgument(f"a column name is too long: at most {NAME_BYTES_MAX} bytes")
        try:
            return str(self._content[found.start : found.stop], "utf-8")
        except UnicodeDecodeError:
            raise InvalidArgument("the name of a column is not UTF-8") from None


class _Message(NamedTuple):
    header: _Header
    #: the table that the header describes
    table: int
    kind: int
    #: positions of the message, its body and the next message
    start: int
    body: int
    end: int


def read_headers(stream: bytes, columns_max: int) -> tuple[list[Column], Iterator[BatchHeader]]:
    """Return the columns of a stream, and an iterator over its record batches.

    Both raise InvalidArgument for a stream that is not accepted.
    """
    messages = _messages(memoryview(stream))
    first = next(messages, None)
    if first is None or first.kind != _SCHEMA or first.body != first.end:
        raise InvalidArgument("an Arrow IPC stream must begin with its schema")
    return _columns(first, columns_max), (_batch(message) for message in messages)


def _messages(stream: memoryview) -> Iterator[_Message]:
    at, size = 0, len(stream)
    while at < size:
        if size - at < 8 or _U32.unpack_from(stream, at)[0] != _CONTINUATION:
            raise InvalidArgument(f"no message of an Arrow IPC stream begins at byte {at}")
        length: int = _I32.unpack_from(stream, at + 4)[0]
        if length == _END:
            return
        body = at + 8 + length
        if length < 0 or body > size:
            raise InvalidArgument(f"the Arrow message at byte {at} is not complete")
        message = _message(stream[at + 8 : body], at, body)
        if not body <= message.end <= size:
            raise InvalidArgument(f"the Arrow message at byte {at} is not complete")
        yield message
        at = message.end


def _message(content: memoryview, start: int, body: int) -> _Message:
    header = _Header(content)
    root = header.number(_U32, 0)
    if header.value(root, _MESSAGE_VERSION, _I16) != _VERSION:
        raise InvalidArgument(
            "unsupported Arrow metadata version: use version 5 (Arrow 1.0 or later)"
        )
    kind = header.value(root, _MESSAGE_KIND, _U8)
    end = body + header.value(root, _MESSAGE_BODY_LENGTH, _I64)
    return _Message(header, header.table(root, _MESSAGE_HEADER), kind, start, body, end)


def _columns(message: _Message, columns_max: int) -> list[Column]:
    header, schema = message.header, message.table
    if header.value(schema, _SCHEMA_ENDIANNESS, _I16) != _LITTLE_ENDIAN:
        raise InvalidArgument("the Arrow stream is big-endian: send little-endian")
    fields = header.vector(schema, _SCHEMA_FIELDS, _REFERENCE_BYTES)
    if len(fields) > columns_max:
        raise InvalidArgument(f"too many columns: {len(fields)}; at most {columns_max}")
    return [_column(header, at + header.number(_U32, at)) for at in fields]


def _column(header: _Header, field: int) -> Column:
    name = header.string(field, _FIELD_NAME)
    kind = header.value(field, _FIELD_TYPE_KIND, _U8)
    nested = len(header.vector(field, _FIELD_CHILDREN, _REFERENCE_BYTES)) > 0
    encoded = header.field(field, _FIELD_DICTIONARY) is not None
    if kind == _INT:
        number = header.table(field, _FIELD_TYPE)
        width = header.value(number, _INT_WIDTH, _I32)
        sign = "" if header.value(number, _INT_SIGNED, _U8) else "u"
        type_name = f"{sign}int{width}" if width in (8, 16, 32, 64) else ""
    else:
        type_name = _TYPES.get(kind, "")
    if nested or encoded or not type_name:
        raise InvalidArgument(
            f"column {name!r} is dictionary-encoded, nested or of an unsupported type: "
            "send strings, binary values and integers"
        )
    return Column(name, type_name)


def _batch(message: _Message) -> BatchHeader:
    header, batch = message.header, message.table
    if message.kind != _BATCH:
        raise InvalidArgument("an Arrow IPC stream may have only record batches after its schema")
    if message.body - message.start > BATCH_HEADER_BYTES_MAX:
        raise InvalidArgument(
            f"an Arrow record batch header is too long: at most {BATCH_HEADER_BYTES_MAX} bytes"
        )
    if header.field(batch, _BATCH_COMPRESSION) is not None:
        raise InvalidArgument(
            "the Arrow record batch is compressed: send it uncompressed, "
            "or compress the whole body and set Content-Encoding"
        )
    if len(header.vector(batch, _BATCH_VARIADIC, _I64.size)):
        raise InvalidArgument("the Arrow record batch has more buffers than its columns")
    if message.body % _ALIGNMENT:
        raise InvalidArgument(f"the body of an Arrow message is not aligned to {_ALIGNMENT} bytes")
    _check_buffers(header, batch, message.end - message.body)
    return BatchHeader(message.start, message.end, header.value(batch, _BATCH_ROWS, _I64))


def _check_buffers(header: _Header, batch: int, body_bytes: int) -> None:
    """Reject buffers outside the body or inside each other: copies could take a multiple of it.

    Consecutive buffers are together no longer than the body.
    """
    total = 0
    for at in header.vector(batch, _BATCH_BUFFERS, _BUFFER_BYTES):
        offset, length = header.number(_I64, at), header.number(_I64, at + _I64.size)
        total += length
        inside = offset >= 0 and length >= 0 and offset + length <= body_bytes
        if not inside or offset % _ALIGNMENT or total > body_bytes:
            raise InvalidArgument(
                "the buffers of an Arrow record batch must follow each other inside its body, "
                f"aligned to {_ALIGNMENT} bytes"
            )
