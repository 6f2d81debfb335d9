"""Frames: how a stream of bytes is cut (specification, part 2, 2.3).

    size (4 bytes, all of the frame)  doff (1, in words of 4 bytes)  type (1)  channel (2)
    extended header up to doff * 4    body

A frame without a body says only that the peer is there. A size is checked against the largest that
was agreed on before anything is kept for it.
"""

from __future__ import annotations

import struct

from onibus.protocols.amqp.errors import FRAMING_ERROR, ConnectionFailed

AMQP = 0
SASL = 1
HEADER_BYTES = 8
#: What every peer must take (2.4.1).
FRAME_BYTES_MIN = 512

PROTOCOL_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
#: What is said where only TLS is spoken.
TLS_HEADER = b"AMQP\x02\x01\x00\x00"
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"

_HEADER = struct.Struct(">IBBH")

#: type, channel, body
Frame = tuple[int, int, bytes]


def frame(channel: int, body: bytes, kind: int = AMQP) -> bytes:
    """Return a frame with that body."""
    return _HEADER.pack(HEADER_BYTES + len(body), 2, kind, channel) + body


class Cutter:
    """Cuts what arrives into protocol headers and frames, however it is torn."""

    def __init__(self, size_max: int) -> None:
        #: the largest frame that is taken
        self.size_max = size_max
        self._parts: list[bytes] = []
        self._have = 0
        #: bytes that must be there before there is anything to cut
        self._need = HEADER_BYTES

    @property
    def waiting(self) -> bool:
        """Tell whether something has begun that is not whole yet."""
        return bool(self._have)

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        self._parts.append(data)
        self._have += len(data)

    def header(self) -> bytes | None:
        """Return a protocol header, if it is there."""
        if self._have < HEADER_BYTES:
            return None
        data = self._joined()
        self._keep(data, HEADER_BYTES)
        return data[:HEADER_BYTES]

    def frames(self, limit: int = 1 << 30) -> list[Frame]:
        """Return the frames that are whole, at most so many; the rest is kept."""
        if self._have < self._need:
            return []
        data = self._joined()
        found: list[Frame] = []
        at, end = 0, len(data)
        need = HEADER_BYTES
        while end - at >= HEADER_BYTES and len(found) < limit:
            size, words, kind, channel = _HEADER.unpack_from(data, at)
            body = words * 4
            if not HEADER_BYTES <= body <= size <= self.size_max:
                if found:
                    # What came before it counts: the next call meets it again.
                    break
                raise ConnectionFailed(
                    FRAMING_ERROR,
                    f"a frame of {size} bytes, its body at {body}; the most is {self.size_max}",
                )
            if end - at < size:
                need = size
                break
            found.append((kind, channel, data[at + body : at + size]))
            at += size
        self._keep(data, at)
        self._need = need
        return found

    def _joined(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _keep(self, data: bytes, start: int) -> None:
        rest = data[start:] if start else data
        self._parts = [rest] if rest else []
        self._have = len(rest)
