"""AMQP types, to bytes: one function a type, and `encode` for Python's own values."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from onibus.protocols.amqp.decode import Decimal, Described, Symbol, Timestamp

NULL = b"\x40"
TRUE = b"\x41"
FALSE = b"\x42"
EMPTY_LIST = b"\x45"

_u16 = struct.Struct(">BH").pack
_i16 = struct.Struct(">Bh").pack
_u32 = struct.Struct(">BI").pack
_i32 = struct.Struct(">Bi").pack
_u64 = struct.Struct(">BQ").pack
_i64 = struct.Struct(">Bq").pack
_f64 = struct.Struct(">Bd").pack
_small = struct.Struct(">BBB").pack
_large = struct.Struct(">BII").pack

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def boolean(value: bool | None) -> bytes:
    return NULL if value is None else TRUE if value else FALSE


def ubyte(value: int) -> bytes:
    return bytes((0x50, value))


def ushort(value: int) -> bytes:
    return _u16(0x60, value)


def short(value: int) -> bytes:
    return _i16(0x61, value)


def uint(value: int | None) -> bytes:
    if value is None:
        return NULL
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if value < 256 else _u32(0x70, value)


def int_(value: int) -> bytes:
    return struct.pack(">Bb", 0x54, value) if -128 <= value < 128 else _i32(0x71, value)


def ulong(value: int | None) -> bytes:
    if value is None:
        return NULL
    if value == 0:
        return b"\x44"
    return bytes((0x53, value)) if value < 256 else _u64(0x80, value)


def long(value: int) -> bytes:
    """Eight bytes always: one client reads them without looking at the constructor."""
    return _i64(0x81, value)


def double(value: float) -> bytes:
    return _f64(0x82, value)


def timestamp(milliseconds: int | None) -> bytes:
    return NULL if milliseconds is None else _i64(0x83, milliseconds)


def uuid(value: UUID) -> bytes:
    return b"\x98" + value.bytes


def binary(content: bytes | None) -> bytes:
    if content is None:
        return NULL
    length = len(content)
    return (bytes((0xA0, length)) if length < 256 else _u32(0xB0, length)) + content


def string(text: str | None) -> bytes:
    if text is None:
        return NULL
    content = text.encode()
    length = len(content)
    return (bytes((0xA1, length)) if length < 256 else _u32(0xB1, length)) + content


def symbol(text: str | None) -> bytes:
    if text is None:
        return NULL
    content = text.encode()
    length = len(content)
    return (bytes((0xA3, length)) if length < 256 else _u32(0xB3, length)) + content


def _wrapped(small: int, large: int, count: int, content: bytes) -> bytes:
    size = len(content)
    if size < 255 and count < 256:
        return _small(small, size + 1, count) + content
    return _large(large, size + 4, count) + content


def list_(elements: Sequence[bytes]) -> bytes:
    """Return a list of values that are encoded already."""
    return _wrapped(0xC0, 0xD0, len(elements), b"".join(elements)) if elements else EMPTY_LIST


def map_(elements: Sequence[bytes]) -> bytes:
    """Return a map of keys and values, in turn, that are encoded already."""
    return _wrapped(0xC1, 0xD1, len(elements), b"".join(elements))


def wrapped_map(count: int, content: bytes) -> bytes:
    """Return a map of `count` keys and values, whose encodings `content` joins."""
    return _wrapped(0xC1, 0xD1, count, content)


def array(code: int, elements: Sequence[bytes]) -> bytes:
    """Return an array of values of one type, each without its constructor."""
    return _wrapped(0xE0, 0xF0, len(elements), bytes((code,)) + b"".join(elements))


def symbols(texts: Iterable[str]) -> bytes:
    """Return an array of symbols."""
    contents = [text.encode() for text in texts]
    return array(0xB3, [len(one).to_bytes(4, "big") + one for one in contents])


def longs(numbers: Iterable[int]) -> bytes:
    """Return an array of longs."""
    return array(0x81, [struct.pack(">q", number) for number in numbers])


def timestamps(moments: Iterable[int]) -> bytes:
    """Return an array of timestamps."""
    return array(0x83, [struct.pack(">q", moment) for moment in moments])


def described(code: int, value: bytes) -> bytes:
    """Return a value with a number as its descriptor."""
    return b"\x00" + ulong(code) + value


def fields(entries: Mapping[str, bytes]) -> bytes:
    """Return a map with symbols as its keys."""
    return map_([part for key, value in entries.items() for part in (symbol(key), value)])


def text_map(entries: Mapping[str, bytes]) -> bytes:
    """Return a map with string keys."""
    return map_([part for key, value in entries.items() for part in (string(key), value)])


def milliseconds_of(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def encode(value: Any) -> bytes:
    """Return the bytes of a value of Python."""
    write = _WRITERS.get(type(value))
    if write is None:
        raise TypeError(f"a {type(value).__name__} has no type in AMQP")
    return write(value)


def _int(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return int_(value)
    return long(value) if value < 2**63 else ulong(value)


def _map_of(value: dict[Any, Any]) -> bytes:
    return map_([encode(part) for pair in value.items() for part in pair])


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: NULL,
    bool: boolean,
    int: _int,
    float: double,
    str: string,
    bytes: binary,
    Symbol: symbol,
    Timestamp: timestamp,
    UUID: uuid,
    datetime: lambda value: timestamp(milliseconds_of(value)),
    Decimal: lambda value: bytes((value.code,)) + value.content,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
    list: lambda value: list_([encode(one) for one in value]),
    dict: _map_of,
}
