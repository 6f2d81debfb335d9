"""Usual heads: read here line by line, where no client says the same above two bodies.

Clients that sign say nearly the same each time: of a dozen headers all but the date, the length,
the signature and an id are what they were before, and what was read of such a line is remembered.
Only what leaves no question is read here: one whole request that came in one piece, or in two, its
head and its body; POST of a plain path, each header once, in printable ASCII, after a colon and one
space, with a host and the length of what follows, and nothing about the connection. Everything else
goes through the parser; what it would refuse, or read in another way, is never taken here.
"""

from __future__ import annotations

import re
from functools import lru_cache

from onibus.protocols.http.heads import Heads
from onibus.protocols.http.messages import Head, Request
from onibus.protocols.http.reading import HOST

_END = b"\r\n\r\n"
#: Lines that are remembered, and how long a whole head can be: 4 MB, whatever anybody sends.
LINES_KEPT = 1_024
HEAD_BYTES_MAX = 2_048

_REQUEST_LINE = re.compile(rb"POST (/(?:[A-Za-z0-9._~-]+(?:/[A-Za-z0-9._~-]+)*/?)?) HTTP/1\.1")
_LENGTH = re.compile("[1-9][0-9]{0,8}")
_NAME = re.compile(r"[A-Za-z0-9-]+")
_PRINTABLE = bytes(range(0x20, 0x7F))
#: Headers of which no client says the same twice.
_NEW_EACH_TIME = frozenset({"amz-sdk-invocation-id", "authorization"})
#: Headers that say where a body ends in another way, or what becomes of the connection.
_NOT_HERE = frozenset({"expect", "proxy-connection", "transfer-encoding", "upgrade"})


class Lines(dict[bytes, tuple[str, str]]):
    """Lines of headers, with the name and the value that each was found to have."""

    def __missing__(self, line: bytes) -> tuple[str, str]:
        """Return name and value of a header's line; ValueError where it is no usual one."""
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
    """Reads the heads of one listener."""

    #: what came before, and was not handed on
    before = b""

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._field = Lines().__getitem__

    def split(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return head and body of one whole request, if it is a usual one."""
        end = data.find(_END)
        length = len(data) - end - 4
        if not 0 < end <= HEAD_BYTES_MAX or length > self._body_bytes_max:
            return None
        head = self._read(data[:end])
        if head is None or head.headers.get("content-length") != str(length):
            return None
        return head, data[end + 4 :]

    def alone(self, data: bytes) -> HeadAlone | None:
        """Return what waits for the body, if a usual head came and nothing else."""
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
        """Nothing is kept of what the parser had to read: it will come in another way again."""


class HeadAlone:
    """A usual head without its body; where that comes in one piece, nothing is to be parsed."""

    def __init__(self, head: Head, length: int, data: bytes) -> None:
        self._head = head
        self._length = length
        self.before = data

    def split(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return head and body, if this is the body and nothing else."""
        return (self._head, data) if len(data) == self._length else None

    def alone(self, data: bytes) -> None:
        """What came after it is no body: both go through the parser."""


#: All that read heads without the parser.
AnyHeads = Heads | UsualHeads | HeadAlone


@lru_cache(256)
def _path(line: bytes) -> str:
    """Return the path of a request line; ValueError where it is no usual one."""
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise ValueError(line)
    return found[1].decode()


@lru_cache(256)
def _name(name: str) -> str:
    """Return the name of a header as it is looked for; ValueError where it is no usual one."""
    lower = name.lower()
    if not _NAME.fullmatch(name) or lower in _NOT_HERE:
        raise ValueError(name)
    return lower
