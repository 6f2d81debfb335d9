"""Encoded AMQP as trees that can be changed: constructors kept, sizes and counts put right.

Knows only what a mutator needs, and nothing of the code under test.
"""

from __future__ import annotations

from collections.abc import Iterator

#: Bytes of a value, by the upper half of its constructor.
_FIXED = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}
_DEPTH_MAX = 40


class Unreadable(Exception):
    """These bytes are no tree."""


class Node:
    """A value: its constructor, and its content or its parts (descriptor and value, elements)."""

    __slots__ = ("code", "content", "parts")

    def __init__(self, code: int, content: bytes = b"", parts: list[Node] | None = None) -> None:
        self.code = code
        self.content = content
        self.parts = parts

    def walk(self) -> Iterator[Node]:
        """Yield the node and all below it."""
        yield self
        for part in self.parts or ():
            yield from part.walk()

    def take(self, other: Node) -> None:
        """Become a copy of another node."""
        found = other.copy()
        self.code, self.content, self.parts = found.code, found.content, found.parts

    def copy(self) -> Node:
        parts = None if self.parts is None else [part.copy() for part in self.parts]
        return Node(self.code, self.content, parts)

    def write(self) -> bytes:
        """Return the bytes of the tree."""
        code, parts = self.code, self.parts
        if code == 0:
            return b"\0" + b"".join(part.write() for part in parts or ())
        if parts is not None:
            content = b"".join(part.write() for part in parts)
            small = code < 0xD0 and len(content) < 255 and len(parts) < 256
            base = 0xC0 if code & 1 == 0 else 0xC1
            if small:
                return bytes((base, len(content) + 1, len(parts))) + content
            head = bytes((base + 0x10,)) + (len(content) + 4).to_bytes(4, "big")
            return head + len(parts).to_bytes(4, "big") + content
        width = code >> 4
        if width in _FIXED:
            return bytes((code,)) + self.content
        if width & 1 == 0 and len(self.content) > 255:
            code += 0x10
        size = len(self.content).to_bytes(1 if code >> 4 & 1 == 0 else 4, "big")
        return bytes((code,)) + size + self.content


def read(data: bytes, at: int = 0, depth: int = 0) -> tuple[Node, int]:
    """Return the tree that begins there, and where it ends."""
    try:
        return _read(data, at, depth)
    except IndexError:
        raise Unreadable from None


def read_all(data: bytes) -> list[Node]:
    """Return values that follow each other, up to the end."""
    found, at = [], 0
    while at < len(data):
        node, at = read(data, at)
        found.append(node)
    return found


def write_all(nodes: list[Node]) -> bytes:
    return b"".join(node.write() for node in nodes)


def _read(data: bytes, at: int, depth: int) -> tuple[Node, int]:
    if depth > _DEPTH_MAX:
        raise Unreadable
    code = data[at]
    at += 1
    if code == 0:
        descriptor, at = _read(data, at, depth + 1)
        value, at = _read(data, at, depth + 1)
        return Node(0, parts=[descriptor, value]), at
    width = code >> 4
    if width in _FIXED:
        end = at + _FIXED[width]
        return Node(code, _cut(data, at, end)), end
    if width not in (0xA, 0xB, 0xC, 0xD, 0xE, 0xF):
        raise Unreadable
    sized = 1 if width & 1 == 0 else 4
    start = at + sized
    end = start + int.from_bytes(_cut(data, at, start), "big")
    content = _cut(data, start, end)
    if width not in (0xC, 0xD):
        return Node(code, content), end
    count, inner = int.from_bytes(content[:sized], "big"), sized
    parts = []
    for _ in range(min(count, len(content))):
        part, inner = _read(content, inner, depth + 1)
        parts.append(part)
    return Node(code, parts=parts), end


def _cut(data: bytes, start: int, end: int) -> bytes:
    if end > len(data):
        raise Unreadable
    return data[start:end]


#: A protocol header (kind -1) or a frame: kind, channel, body.
Item = tuple[int, int, bytes]
HEADER = -1


def cut(stream: bytes) -> tuple[list[Item], bytes]:
    """Return the headers and frames of a stream, and what is left of it."""
    found: list[Item] = []
    at = 0
    while len(stream) - at >= 8:
        if stream[at : at + 4] == b"AMQP":
            found.append((HEADER, 0, stream[at : at + 8]))
            at += 8
            continue
        size = int.from_bytes(stream[at : at + 4], "big")
        body = stream[at + 4] * 4
        if not 8 <= body <= size <= len(stream) - at:
            break
        channel = int.from_bytes(stream[at + 6 : at + 8], "big")
        found.append((stream[at + 5], channel, stream[at + body : at + size]))
        at += size
    return found, stream[at:]


def join(items: list[Item], rest: bytes = b"") -> bytes:
    """Return headers and frames as a stream."""
    return b"".join([*map(_framed, items), rest])


def _framed(item: Item) -> bytes:
    kind, channel, body = item
    if kind == HEADER:
        return body
    head = (len(body) + 8).to_bytes(4, "big") + bytes((2, kind))
    return head + channel.to_bytes(2, "big") + body
