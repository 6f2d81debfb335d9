"""Frames: how a stream of bytes is cut (specification, part 2, 2.3).

    size (4 bytes, all of the frame)  doff (1, in words of 4 bytes)  type (1)  channel (2)
    extended header up to doff * 4    body

A frame without a body says only that the peer is there. A size is checked against the largest that
was agreed on before anything is kept for it.
"""

from __future__ import annotations

from onibus.protocols.amqp.errors import FRAMING_ERROR, ConnectionFailed
from onibus.protocols.amqp.runs import AMQP, FRAME_HEAD, HEADER_BYTES, Run, read_run

SASL = 1
#: What every peer must take (2.4.1).
FRAME_BYTES_MIN = 512

PROTOCOL_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
#: The protocol header that asks for TLS.
TLS_HEADER = b"AMQP\x02\x01\x00\x00"
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"

#: type, channel, body
Frame = tuple[int, int, bytes]


def frame(channel: int, body: bytes, kind: int = AMQP) -> bytes:
    """Return a frame with that body."""
    return FRAME_HEAD.pack(HEADER_BYTES + len(body), 2, kind, channel) + body


class Cutter:
    """Cuts what arrives into protocol headers and frames, however it is torn."""

    def __init__(self, size_max: int) -> None:
        #: the largest frame that is taken
        self.size_max = size_max
        #: the buffered bytes, the position of the first uncut one, and the bytes that came since
        self._data = b""
        self._at = 0
        self._more: list[bytes] = []
        self._have = 0
        #: bytes that must be there before there is anything to cut
        self._need = HEADER_BYTES

    @property
    def waiting(self) -> bool:
        """Return whether a frame has begun and is not complete yet."""
        return bool(self._have)

    @property
    def is_short(self) -> bool:
        """Return whether the buffered bytes are too few for a frame or header."""
        return self._have < self._need

    @property
    def kept_bytes(self) -> int:
        """Return the number of bytes that wait to be cut."""
        return self._have

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        self._more.append(data)
        self._have += len(data)

    def clear(self) -> None:
        """Drop all waiting bytes."""
        self._data, self._more = b"", []
        self._at = self._have = 0

    def header(self) -> bytes | None:
        """Return a protocol header, if it is there."""
        if self._have < HEADER_BYTES:
            return None
        data, at = self._joined()
        self._keep(at + HEADER_BYTES)
        return data[at : at + HEADER_BYTES]

    def run(self) -> Run | None:
        """Return the transfers of the usual form that come next, if there are any."""
        if self._have < self._need:
            return None
        data, at = self._joined()
        run = read_run(data, at, self.size_max)
        if run is not None:
            self._keep(run.end)
            self._need = HEADER_BYTES
        return run

    def frames(self, limit: int = 1 << 30) -> list[Frame]:
        """Return up to `limit` complete frames; keep the rest."""
        if self._have < self._need:
            return []
        data, at = self._joined()
        found: list[Frame] = []
        end = len(data)
        need = HEADER_BYTES
        while end - at >= HEADER_BYTES and len(found) < limit:
            size, words, kind, channel = FRAME_HEAD.unpack_from(data, at)
            body = words * 4
            if not HEADER_BYTES <= body <= size <= self.size_max:
                if found:
                    # Return the frames before it: the next call raises the error.
                    break
                raise ConnectionFailed(
                    FRAMING_ERROR,
                    f"a frame of {size} bytes, body at {body}: at most {self.size_max}",
                )
            if end - at < size:
                need = size
                break
            found.append((kind, channel, data[at + body : at + size]))
            at += size
        self._keep(at)
        self._need = need
        return found

    def _joined(self) -> tuple[bytes, int]:
        """Return the buffered bytes in one piece, and the position of the first uncut byte."""
        if self._more:
            if self._at < len(self._data):
                self._more.insert(0, self._data[self._at :])
            self._data = self._more[0] if len(self._more) == 1 else b"".join(self._more)
            self._at, self._more = 0, []
        return self._data, self._at

    def _keep(self, at: int) -> None:
        if at == len(self._data):
            self._data, at = b"", 0
        self._at = at
        self._have = len(self._data) - at
