"""Messages in JSON responses: large lists and bodies are encoded in slices, as the client reads.

A response of few and small messages is encoded at once. A larger one is a stream. Each of its
pieces is one slice of work, and the next one is made when the client has taken the one before. So
the server holds the messages, and one encoded piece of them.
"""

from __future__ import annotations

import codecs
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from onibus.api.messages import (
    MessageOut,
    Messages,
    message_out,
    plain_value,
    shown_properties,
)
from onibus.core.message import ReceivedMessage, size_of_properties, size_of_value
from onibus.protocols.http.messages import Response

#: Messages, and bytes of them, that are encoded at once; a byte becomes up to six.
COUNT_A_SLICE = 200
BYTES_A_SLICE = 256 << 10

_encode = msgspec.json.Encoder().encode
#: Bytes of a message without its body and properties, about.
_SMALL = 200


def messages_out(
    received: list[ReceivedMessage],
    around: Callable[[list[MessageOut]], Any] = Messages,
    *,
    status: int = 200,
    body_limit: int | None = None,
) -> Any:
    """Return messages in their struct, or a streamed response if they take more than a slice.

    `around` makes the struct. Its first field is the list.
    """
    if len(received) <= COUNT_A_SLICE and size_of_all(received, body_limit) <= BYTES_A_SLICE:
        return around([message_out(one, body_limit) for one in received])
    # Without their properties: to look at those of all takes a slice itself.
    held = sum([len(one.message.body) + _SMALL for one in received])
    before, _, after = _encode(around([])).partition(b"[]")
    pieces = _pieces(before + b"[", received[::-1], b"]" + after, body_limit)
    return Response(status, stream=_stream(pieces), held_bytes=held)


def size_of_all(received: list[ReceivedMessage], body_limit: int | None = None) -> int:
    """Return about how many bytes of messages a response has."""
    bodies = [len(one.message.body) for one in received]
    if body_limit is not None:
        bodies = [min(size, body_limit) for size in bodies]
    properties = [one.message.properties for one in received if one.message.properties]
    return sum(bodies) + sum(
        [size_of_properties(shown_properties(one, body_limit)) for one in properties]
    )


def size_of(received: ReceivedMessage, body_limit: int | None = None) -> int:
    """Return about how many bytes of a message a response has."""
    return size_of_all([received], body_limit)


async def _stream(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _pieces(
    before: bytes, remaining: list[ReceivedMessage], after: bytes, body_limit: int | None
) -> Iterator[bytes]:
    """Yield the document; `remaining` has the messages in reverse, and each is released."""
    parts, count, size = [before], 0, 0
    comma = b""
    while remaining:
        one = remaining.pop()
        own = size_of(one, body_limit)
        if count and (count == COUNT_A_SLICE or size + own > BYTES_A_SLICE):
            yield b"".join(parts)
            parts, count, size = [], 0, 0
        parts.append(comma)
        comma = b","
        if own > BYTES_A_SLICE:
            yield b"".join(parts)
            parts = []
            yield from _large(one, body_limit)
        else:
            parts.append(_encode(message_out(one, body_limit)))
            count += 1
            size += own
    yield b"".join(parts) + after


def message_pieces(received: ReceivedMessage, body_limit: int | None = None) -> Iterator[bytes]:
    """Yield one message, encoded in slices."""
    if size_of(received, body_limit) <= BYTES_A_SLICE:
        yield _encode(message_out(received, body_limit))
    else:
        yield from _large(received, body_limit)


def _large(received: ReceivedMessage, body_limit: int | None) -> Iterator[bytes]:
    """Yield one message whose body or properties are large."""
    message, body = received.message, memoryview(received.message.body)
    small = replace(message, body=b"", properties={})
    shell = message_out(replace(received, message=small))
    is_cut = body_limit is not None and body_limit < len(body)
    shown = shown_properties(message.properties, body_limit)
    count = None if shown is message.properties else len(message.properties)
    size = len(body) if is_cut else None
    yield _encode(replace(shell, body=None, body_size=size, property_count=count))[:-1]
    yield from _body(body, body_limit if is_cut else None)
    if shown:
        yield from _properties(shown)
    yield b"}"


def _body(body: memoryview, limit: int | None) -> Iterator[bytes]:
    beginning = body if limit is None else body[: _end_of_character(body, limit)]
    if not (yield from _is_text(beginning)):
        yield b',"body_base64":"'
        yield from _base64(body[:limit])
        yield b'"'
        return
    yield b',"body":"'
    decode = codecs.getincrementaldecoder("utf-8")().decode
    for piece in _cut(beginning, BYTES_A_SLICE):
        yield _encode(decode(piece))[1:-1]
    yield b'"'


def _end_of_character(body: memoryview, limit: int) -> int:
    """Return the end of the last character of UTF-8 before a limit."""
    for end in range(limit, max(limit - 4, 0), -1):
        if body[end] & 0xC0 != 0x80:
            return end
    return limit


def _is_text(body: memoryview) -> Generator[bytes, None, bool]:
    """Return whether a body is UTF-8; yield after each slice."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for piece in _cut(body, 4 * BYTES_A_SLICE):
            decode(piece)
            yield b""
        decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True


def _cut(content: memoryview, size: int) -> Iterator[memoryview]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def _base64(content: memoryview) -> Iterator[bytes]:
    # Whole groups of three bytes, so that only the end is padded.
    for piece in _cut(content, BYTES_A_SLICE // 3 * 3):
        yield b64encode(piece)


def _properties(properties: dict[str, Any]) -> Iterator[bytes]:
    """Yield properties, and the strings in them that are large, in slices."""
    parts, size, comma = [b',"properties":{'], 0, b""
    for name, value in properties.items():
        parts += [comma, _encode(name), b":"]
        comma = b","
        own = size_of_value(value)
        if own > BYTES_A_SLICE:
            yield b"".join(parts)
            parts, size = [], 0
            yield from _long_value(value)
            continue
        parts.append(_encode(plain_value(value)))
        size += own
        if size > BYTES_A_SLICE:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts) + b"}"


def _long_value(value: str | bytes) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield b'{"binary":"'
        yield from _base64(memoryview(value))
        yield b'"}'
        return
    yield b'"'
    for start in range(0, len(value), BYTES_A_SLICE // 4):
        yield _encode(value[start : start + BYTES_A_SLICE // 4])[1:-1]
    yield b'"'
