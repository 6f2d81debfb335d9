"""AMQP types, from bytes (specification, part 1).

A value begins with a constructor, a byte that says type and width; 0x00 announces a described value
(descriptor, then value). Values become Python values: integers of all widths int, `char` and
`string` str, `symbol` a `Symbol`, `timestamp` a `Timestamp` (milliseconds since 1970), `list` and
`array` list, `map` dict. Decimals are kept as `Decimal` without being understood.

Every size is checked before it is used. Lengths and counts are bounded by the available bytes,
counts of elements without bytes by `EMPTY_COUNT_MAX`, depth by `DEPTH_MAX`. `VALUES_MAX` bounds the
values inside one value: each takes many times the memory of its bytes, and its time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from onibus.protocols.amqp.errors import DecodeError

#: Lists, maps and descriptions inside each other; nothing that clients send comes near.
DEPTH_MAX = 32
#: Elements of an array whose elements take no bytes.
EMPTY_COUNT_MAX = 1_024
#: Values inside one, at all depths: the largest request, 1,000 messages to schedule, has half.
VALUES_MAX = 20_000

#: What reading too few or wrong bytes raises inside here.
UNREADABLE = (struct.error, IndexError, UnicodeDecodeError, TypeError, ValueError, OverflowError)


class Symbol(str):
    """A string that names something of the protocol."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970."""

    __slots__ = ()


class Decimal(NamedTuple):
    """A decimal number: its constructor and its bytes."""

    code: int
    content: bytes


class Described(NamedTuple):
    """A value with a descriptor: a number, or a symbol."""

    descriptor: Any
    value: Any


Read = Callable[[bytes, int, int], tuple[Any, int]]

_u16 = struct.Struct(">H").unpack_from
_u32 = struct.Struct(">I").unpack_from
_u64 = struct.Struct(">Q").unpack_from
_i8 = struct.Struct(">b").unpack_from
_i16 = struct.Struct(">h").unpack_from
_i32 = struct.Struct(">i").unpack_from
_i64 = struct.Struct(">q").unpack_from
_f32 = struct.Struct(">f").unpack_from
_f64 = struct.Struct(">d").unpack_from


def decode(data: bytes, at: int = 0, depth: int = 0) -> tuple[Any, int]:
    """Return the value at a position, and where it ends."""
    try:
        return READERS[data[at]](data, at + 1, depth)
    except DecodeError:
        raise
    except UNREADABLE as error:
        raise DecodeError(f"invalid value: {error}") from None


def skip(data: bytes, at: int, depth: int = 0) -> int:
    """Return where the value that begins there ends, without reading it."""
    try:
        code = data[at]
        at += 1
        if code == 0:
            if depth > DEPTH_MAX:
                raise DecodeError("descriptors are nested too deep")
            return skip(data, skip(data, at, depth + 1), depth + 1)
        width = code >> 4
        if width in (0xA, 0xC, 0xE):
            at += 1 + data[at]
        elif width in (0xB, 0xD, 0xF):
            at += 4 + _u32(data, at)[0]
        else:
            at += _WIDTHS[width]
    except (IndexError, KeyError, struct.error):
        raise DecodeError("incomplete value") from None
    if at > len(data):
        raise DecodeError("a value exceeds its length")
    return at


_WIDTHS = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}


def _unknown(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    raise DecodeError(f"unknown type 0x{data[at - 1]:02x}")


def _described(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    global _left
    if depth >= DEPTH_MAX:
        raise DecodeError("values are nested too deep")
    if depth == 0:
        _left = VALUES_MAX
    descriptor, at = READERS[data[at]](data, at + 1, depth + 1)
    value, at = READERS[data[at]](data, at + 1, depth + 1)
    return Described(descriptor, value), at


def _fixed(unpack: Any, width: int, make: Any = None) -> Read:
    if make is None:
        return lambda data, at, depth: (unpack(data, at)[0], at + width)
    return lambda data, at, depth: (make(unpack(data, at)[0]), at + width)


def _bytes(data: bytes, at: int, width: int) -> tuple[bytes, int]:
    """Return the bytes of a value that follows its length."""
    length = data[at] if width == 1 else _u32(data, at)[0]
    start = at + width
    end = start + length
    if end > len(data):
        raise DecodeError(f"a value of {length} bytes exceeds the data")
    return data[start:end], end


def _uuid(data: bytes, at: int, depth: int) -> tuple[UUID, int]:
    return UUID(bytes=bytes(data[at : at + 16])), at + 16


def _decimal(width: int) -> Read:
    def read(data: bytes, at: int, depth: int) -> tuple[Decimal, int]:
        if at + width > len(data):
            raise DecodeError("a decimal exceeds the data")
        return Decimal(data[at - 1], bytes(data[at : at + width])), at + width

    return read


def _char(data: bytes, at: int, depth: int) -> tuple[str, int]:
    code = _u32(data, at)[0]
    if 0xD800 <= code < 0xE000:
        raise DecodeError("an unpaired surrogate")
    return chr(code), at + 4


def _binary(width: int) -> Read:
    def read(data: bytes, at: int, depth: int) -> tuple[bytes, int]:
        return _bytes(data, at, width)

    return read


def _string8(data: bytes, at: int, depth: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    if end > len(data):
        raise DecodeError("a string exceeds the data")
    return str(data[at + 1 : end], "utf-8"), end


def _string32(data: bytes, at: int, depth: int) -> tuple[str, int]:
    content, end = _bytes(data, at, 4)
    return str(content, "utf-8"), end


def _symbol(width: int) -> Read:
    def read(data: bytes, at: int, depth: int) -> tuple[Symbol, int]:
        content, end = _bytes(data, at, width)
        # ASCII by the specification; some clients put UTF-8 into it.
        return Symbol(str(content, "utf-8")), end

    return read


#: Values that the one which is being read may have still. One thread reads at a time.
_left = VALUES_MAX
#: Values of all compounds that were read so far.
_read = 0


def values_read() -> int:
    """Return how many values were read so far, by all connections: it measures work."""
    return _read


def _compound(data: bytes, at: int, width: int, depth: int) -> tuple[int, int, int]:
    """Return the count of a compound, where its elements begin and where it ends."""
    global _left, _read
    if depth >= DEPTH_MAX:
        raise DecodeError("values are nested too deep")
    if width == 1:
        size, count = data[at], data[at + 1]
    else:
        size, count = _u32(data, at)[0], _u32(data, at + 4)[0]
    end = at + width + size
    if size < width or end > len(data):
        raise DecodeError(f"a compound of {size} bytes exceeds the data")
    _left = (VALUES_MAX if depth == 0 else _left) - count
    if _left < 0:
        raise DecodeError(f"more than {VALUES_MAX} values in a compound")
    _read += count
    return count, at + 2 * width, end


def _list(width: int) -> Read:
    def read(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
        count, at, end = _compound(data, at, width, depth)
        if count > end - at:
            raise DecodeError(f"{count} elements in {end - at} bytes")
        depth += 1
        found = []
        for _ in range(count):
            value, at = READERS[data[at]](data, at + 1, depth)
            found.append(value)
        if at != end:
            raise DecodeError("the elements of a list do not fill the list")
        return found, end

    return read


def _map(width: int) -> Read:
    def read(data: bytes, at: int, depth: int) -> tuple[dict[Any, Any], int]:
        count, at, end = _compound(data, at, width, depth)
        if count > end - at or count % 2:
            raise DecodeError(f"{count} keys and values in {end - at} bytes")
        depth += 1
        found: dict[Any, Any] = {}
        for _ in range(count // 2):
            key, at = READERS[data[at]](data, at + 1, depth)
            value, at = READERS[data[at]](data, at + 1, depth)
            found[key] = value
        if at != end:
            raise DecodeError("the elements of a map do not fill the map")
        return found, end

    return read


def _array(width: int) -> Read:
    def read(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
        count, at, end = _compound(data, at, width, depth)
        descriptor = None
        described = data[at] == 0
        if described:
            descriptor, at = READERS[data[at + 1]](data, at + 2, depth + 1)
        code = data[at]
        at += 1
        most = EMPTY_COUNT_MAX if code >> 4 == 4 else end - at
        if count > most:
            raise DecodeError(f"{count} elements in {end - at} bytes")
        if code == 0:
            raise DecodeError("the elements of an array are described twice")
        element = READERS[code]
        found = []
        for _ in range(count):
            value, at = element(data, at, depth + 1)
            found.append(Described(descriptor, value) if described else value)
        if at != end:
            raise DecodeError("the elements of an array do not fill the array")
        return found, end

    return read


def _constant(value: Any) -> Read:
    return lambda data, at, depth: (value, at)


def _readers() -> list[Read]:
    known: dict[int, Read] = {
        0x00: _described,
        0x40: _constant(None),
        0x41: _constant(True),
        0x42: _constant(False),
        0x43: _constant(0),
        0x44: _constant(0),
        0x45: lambda data, at, depth: ([], at),
        0x50: lambda data, at, depth: (data[at], at + 1),
        0x51: _fixed(_i8, 1),
        0x52: lambda data, at, depth: (data[at], at + 1),
        0x53: lambda data, at, depth: (data[at], at + 1),
        0x54: _fixed(_i8, 1),
        0x55: _fixed(_i8, 1),
        0x56: lambda data, at, depth: (bool(data[at]), at + 1),
        0x60: _fixed(_u16, 2),
        0x61: _fixed(_i16, 2),
        0x70: _fixed(_u32, 4),
        0x71: _fixed(_i32, 4),
        0x72: _fixed(_f32, 4),
        0x73: _char,
        0x74: _decimal(4),
        0x80: _fixed(_u64, 8),
        0x81: _fixed(_i64, 8),
        0x82: _fixed(_f64, 8),
        0x83: _fixed(_i64, 8, Timestamp),
        0x84: _decimal(8),
        0x94: _decimal(16),
        0x98: _uuid,
        0xA0: _binary(1),
        0xA1: _string8,
        0xA3: _symbol(1),
        0xB0: _binary(4),
        0xB1: _string32,
        0xB3: _symbol(4),
        0xC0: _list(1),
        0xC1: _map(1),
        0xD0: _list(4),
        0xD1: _map(4),
        0xE0: _array(1),
        0xF0: _array(4),
    }
    return [known.get(code, _unknown) for code in range(256)]


READERS = _readers()
