"""Common request headers, read line by line without the parser.

Clients that sign their requests send almost the same header each time: of a dozen lines only the
date, the length, the signature and an id change. The other lines are cached. Only unambiguous
requests are read here: one complete request that arrived in one piece, or as header and body. It
must be a POST of a plain path, with each header once, in printable ASCII, after a colon and one
space, with a host and the length of the body, and nothing about the connection. All others go
through the parser; a request that the parser would reject or read differently is never read here.
"""

from __future__ import annotations

import re
from functools import lru_cache

from onibus.protocols.http.heads import Heads
from onibus.protocols.http.messages import Head, Request
from onibus.protocols.http.reading import HOST

_END = b"\r\n\r\n"
#: Number of cached lines, and the longest header: 4 MB in all, whatever clients send.
LINES_KEPT = 1_024
HEAD_BYTES_MAX = 2_048

_REQUEST_LINE = re.compile(rb"POST (/(?:[A-Za-z0-9._~-]+(?:/[A-Za-z0-9._~-]+)*/?)?) HTTP/1\.1")
_LENGTH = re.compile("[1-9][0-9]{0,8}")
_NAME = re.compile(r"[A-Za-z0-9-]+")
_PRINTABLE = bytes(range(0x20, 0x7F))
#: Headers whose values never repeat.
_NEW_EACH_TIME = frozenset({"amz-sdk-invocation-id", "authorization"})
#: Headers that end a body differently, or concern the connection.
_NOT_HERE = frozenset({"expect", "proxy-connection", "transfer-encoding", "upgrade"})


class Lines(dict[bytes, tuple[str, str]]):
    """Cached header lines, with their names and values."""

    def __missing__(self, line: bytes) -> tuple[str, str]:
        """Return name and value of a header line; raise ValueError for an unusual one."""
        name, _, value = line.decode("ascii").partition(": ")
        if line.translate(None, _PRINTABLE) or not value or value[0] == " " or value[-1] == " ":
            raise ValueError(line)
        name = _name(name)
        if name == "connection" and value.lower() != "keep-alive":
            raise ValueError(line)
        if name == "host" and not HOST.fullmatch(value):
            raise ValueError(line)
        if name not in _NEW_EACH_TIME:
            if len(self) >= LINES_KEPT:
                self.clear()
            self[line] = name, value
        return name, value


class UsualHeads:
    """Reader of the headers of one listener."""

    #: bytes that arrived before, and were not passed on
    before = b""

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._field = Lines().__getitem__

    def split(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return header and body of one complete request, if it is a common one."""
        end = data.find(_END)
        length = len(data) - end - 4
        if not 0 < end <= HEAD_BYTES_MAX or length > self._body_bytes_max:
            return None
        head = self._read(data[:end])
        if head is None or head.headers.get("content-length") != str(length):
            return None
        return head, data[end + 4 :]

    def alone(self, data: bytes) -> HeadAlone | None:
        """Return a waiter for the body, if a common header arrived and nothing else."""
        if len(data) > HEAD_BYTES_MAX or data.find(_END) != len(data) - 4:
            return None
        head = self._read(data[:-4])
        length = "" if head is None else head.headers.get("content-length", "")
        if head is None or not _LENGTH.fullmatch(length) or int(length) > self._body_bytes_max:
            return None
        return HeadAlone(head, int(length), data)

    def _read(self, text: bytes) -> Head | None:
        lines = text.split(b"\r\n")
        try:
            path = _path(lines.pop(0))
            headers = dict(map(self._field, lines))
        except ValueError:
            return None
        once = len(headers) == len(lines)
        return Head("POST", path, "", headers) if once and "host" in headers else None

    def keep(self, data: bytes, request: Request) -> None:
        """Cache nothing: headers that the parser reads are not common ones."""


class HeadAlone:
    """A common header without its body; if that arrives in one piece, no parsing is needed."""

    def __init__(self, head: Head, length: int, data: bytes) -> None:
        self._head = head
        self._length = length
        self.before = data

    def split(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return header and body, if this is the body and nothing else."""
        return (self._head, data) if len(data) == self._length else None

    def alone(self, data: bytes) -> None:
        """Reject: bytes other than its body followed, and both go through the parser."""


#: Readers of headers without the parser.
AnyHeads = Heads | UsualHeads | HeadAlone


@lru_cache(256)
def _path(line: bytes) -> str:
    """Return the path of a request line; raise ValueError for an unusual one."""
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise ValueError(line)
    return found[1].decode()


@lru_cache(256)
def _name(name: str) -> str:
    """Return a header name in the form used for lookups; raise ValueError for an unusual one."""
    lower = name.lower()
    if not _NAME.fullmatch(name) or lower in _NOT_HERE:
        raise ValueError(name)
    return lower
