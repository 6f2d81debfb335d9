"""Heads that were read before: a client that says the same again is not parsed again.

Clients say the same above every body, but for its length. What the parser made of a head is kept
under its bytes, and where one request came whole, in one piece, under a head that is kept, nothing
is left to parse. Everything else goes through the parser: what comes in pieces or sent ahead,
chunks, and whatever asks for something out of the ordinary.
"""

from __future__ import annotations

from onibus.protocols.http.messages import Head, Request

_END = b"\r\n\r\n"
#: How many heads are kept, and of how many bytes: 4 MB, whatever anybody sends.
HEADS_KEPT = 1_024
HEAD_BYTES_MAX = 2_048
#: Headers that ask for more than a request and its answer.
_OUT_OF_THE_ORDINARY = frozenset({"expect", "transfer-encoding", "upgrade"})


class Heads:
    """The heads of one listener that were read before."""

    #: what came before, and was not handed on
    before = b""

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        #: with the length that each gives for its body
        self._known: dict[bytes, tuple[Head, int]] = {}

    def split(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return head and body of one whole request, if its head is known."""
        end = data.find(_END) + 4
        known = self._known.get(data[:end])
        if known is None or len(data) - end != known[1]:
            return None
        return known[0], data[end:]

    def alone(self, data: bytes) -> None:
        """A head without its body goes through the parser."""

    def keep(self, data: bytes, request: Request) -> None:
        """Keep the head of a request that was parsed from some data, if that was all of it."""
        end = data.find(_END) + 4
        lines, length = data[:end], len(request.body)
        if (
            4 < end <= HEAD_BYTES_MAX
            and len(data) == end + length
            and length <= self._body_bytes_max
            and request.is_plain
            and _OUT_OF_THE_ORDINARY.isdisjoint(request.head.headers)
            # Where lines can end otherwise, so could the head.
            and lines.count(b"\n") == lines.count(b"\r\n")
        ):
            if len(self._known) >= HEADS_KEPT:
                self._known.clear()
            self._known[lines] = request.head, length
