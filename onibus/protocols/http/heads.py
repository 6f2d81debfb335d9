"""Known request headers: a client that repeats its header is not parsed again.

Clients send the same header with every body, except for its length. The parsed result is cached by
its bytes. A complete request in one piece under a cached header needs no parsing. All others go
through the parser: pieces, requests sent ahead, chunks, and unusual requests.
"""

from __future__ import annotations

from onibus.protocols.http.messages import Head, Request

_END = b"\r\n\r\n"
#: Number of cached headers, and their size: 4 MB in all, whatever clients send.
HEADS_KEPT = 1_024
HEAD_BYTES_MAX = 2_048
#: Headers that ask for more than a request and its response.
_OUT_OF_THE_ORDINARY = frozenset({"expect", "transfer-encoding", "upgrade"})


class Heads:
    """Cached headers of one listener."""

    #: bytes that arrived before, and were not passed on
    before = b""

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        #: with the length of the body that each gives
        self._known: dict[bytes, tuple[Head, int]] = {}

    def split(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return header and body of one complete request, if its header is cached."""
        end = data.find(_END) + 4
        known = self._known.get(data[:end])
        if known is None or len(data) - end != known[1]:
            return None
        return known[0], data[end:]

    def alone(self, data: bytes) -> None:
        """Return nothing: a header without its body goes through the parser."""

    def keep(self, data: bytes, request: Request) -> None:
        """Cache the header of a request parsed from some data, if that was all of it."""
        end = data.find(_END) + 4
        lines, length = data[:end], len(request.body)
        if (
            4 < end <= HEAD_BYTES_MAX
            and len(data) == end + length
            and length <= self._body_bytes_max
            and request.is_plain
            and _OUT_OF_THE_ORDINARY.isdisjoint(request.head.headers)
            # If lines may end differently, so may the header.
            and lines.count(b"\n") == lines.count(b"\r\n")
        ):
            if len(self._known) >= HEADS_KEPT:
                self._known.clear()
            self._known[lines] = request.head, length
