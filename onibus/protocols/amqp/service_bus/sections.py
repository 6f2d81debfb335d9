"""The sections of an AMQP message (specification, part 3, 3.2), found without being read.

header, delivery-annotations, message-annotations, properties, application-properties,
body: one or more of data, or of amqp-sequence, or one amqp-value,   footer
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from onibus.protocols.amqp.decode import READERS, UNREADABLE, decode, skip
from onibus.protocols.amqp.errors import DecodeError

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)

_NAMES = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}

#: Sections of a message: no client sends a body of more parts.
SECTIONS_MAX = 10_000

#: Code, where the section begins, where its value begins, where it ends.
Section = tuple[int, int, int, int]


def split(data: bytes) -> list[Section]:
    """Return the sections of a message; reject invalid bytes."""
    return list(each(data))


def each(data: bytes) -> Iterator[Section]:
    """Yield the sections of a message; reject invalid bytes."""
    start, length, count = 0, len(data), 0
    while start < length:
        if data[start] != 0:
            raise DecodeError("a message has bytes between its sections")
        # Nearly all descriptors are a small ulong, of one byte.
        if start + 3 < length and data[start + 1] == 0x53:
            code, value = data[start + 2], start + 3
        else:
            descriptor, value = decode(data, start + 1)
            if isinstance(descriptor, str):
                descriptor = _NAMES.get(descriptor)
            code = descriptor if type(descriptor) is int else 0
        if code not in _CODES:
            raise DecodeError("a message has an unknown section")
        end = skip(data, value)
        count += 1
        if count > SECTIONS_MAX:
            raise DecodeError(f"a message has at most {SECTIONS_MAX} sections")
        yield code, start, value, end
        start = end


_CODES = frozenset(_NAMES.values())


def check_once(found: list[Section]) -> None:
    """Reject a message that has a section twice, or a body of two kinds or in two places.

    Their order is not checked: one client puts delivery annotations last.
    """
    seen: set[int] = set()
    before = 0
    for code, _, _, _ in found:
        alike = _BODY if code in _BODY else (code,)
        if not seen.isdisjoint(alike) and not (code == before and code in (DATA, SEQUENCE)):
            raise DecodeError("a message has a repeated section, or two kinds of body")
        seen.add(code)
        before = code


_BODY = (DATA, SEQUENCE, VALUE)


def list_at(data: bytes, at: int) -> list[object]:
    """Return the list at a position."""
    try:
        value, _ = READERS[data[at]](data, at + 1, 0)
    except UNREADABLE as error:
        raise DecodeError(f"invalid section: {error}") from None
    # An array is also read as a list, but is not one.
    if type(value) is not list or data[at] not in (0x45, 0xC0, 0xD0):
        raise DecodeError("a list section must contain a list")
    return value


def map_at(data: bytes, at: int) -> dict[object, object]:
    """Return the map at a position; an empty one for null."""
    try:
        value, _ = READERS[data[at]](data, at + 1, 0)
    except UNREADABLE as error:
        raise DecodeError(f"invalid section: {error}") from None
    if value is None:
        return {}
    if type(value) is not dict:
        raise DecodeError("a map section must contain a map")
    return value


def binary_at(data: bytes, at: int, end: int) -> bytes:
    """Return the content of the binary from a position to its end; reject another type."""
    return data[binary_start(data, at) : end]


def binary_start(data: bytes, at: int) -> int:
    """Return where the content of the binary at a position begins; reject another type."""
    code = data[at]
    if code == 0xB0:
        return at + 5
    if code == 0xA0:
        return at + 2
    raise DecodeError("a data section must contain binary")


def text(data: bytes, start: int, end: int) -> str:
    """Return a string; reject bytes that are not UTF-8."""
    try:
        return str(data[start:end], "utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError(f"invalid section: {error}") from None


def elements(data: bytes, at: int) -> list[bytes]:
    """Return the elements of the list or map at a position, each as its bytes."""
    code = data[at]
    if code in (0x40, 0x45):
        return []
    count, begin = (data[at + 2], at + 3) if code in (0xC0, 0xC1) else (_count32(data, at), at + 9)
    found = []
    for _ in range(count):
        end = skip(data, begin)
        found.append(data[begin:end])
        begin = end
    return found


def _count32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 5 : at + 9], "big")


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + value


def data_section(body: bytes) -> bytes:
    return data_head(len(body)) + body


def data_head(length: int) -> bytes:
    """Return the bytes before the content of a data section."""
    return (
        bytes((0, 0x53, DATA, 0xA0, length))
        if length < 256
        else _DATA32(b"\x00\x53\x75\xb0", length)
    )


_DATA32 = struct.Struct(">4sI").pack
_data32 = struct.Struct(">4sI").unpack_from


def only_data(data: bytes, at: int, end: int) -> bytes | None:
    """Return the content of a data section that reaches from there to the end; None of any other.

    Nearly all messages end with such a section, so it is read directly.
    """
    if end - at >= _DATA32_BYTES:
        head, length = _data32(data, at)
        if head == b"\x00\x53\x75\xb0":
            start = at + _DATA32_BYTES
            return data[start:end] if start + length == end else None
    if data[at : at + 4] == b"\x00\x53\x75\xa0" and end - at >= 5:
        start = at + 5
        return data[start:end] if start + data[at + 4] == end else None
    return None


_DATA32_BYTES = 8
