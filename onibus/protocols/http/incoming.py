"""The request being parsed, and the checks on it.

Ambiguous headers are rejected: a proxy and this server could disagree on where a request ends or
which host it is for. Then one request could hide another from the proxy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httptools

from onibus.protocols.http.messages import Request
from onibus.protocols.http.problems import CROWDED
from onibus.protocols.http.reading import (
    SINGLE,
    header_name,
    misleading,
    read_head,
    without_offers,
)

if TYPE_CHECKING:
    from onibus.protocols.http.connection import HttpConnection

#: Framing bytes allowed for each byte of a chunked body. One byte per chunk takes five.
_FRAMING_MAX = 8
#: Headers per request. Each takes more memory than bytes on the wire.
_LINES_MAX = 200


class Incoming:
    """Parser callbacks that build requests one after the other.

    The parser refers to this object, and this object to its connection. `end` breaks both cycles,
    so that reference counting frees an ended connection at once.
    """

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._limits = connection.limits
        self._parser: Any = httptools.HttpRequestParser(self)
        self._reset()

    def _reset(self) -> None:
        self.in_head = self.in_body = False
        self._url = b""
        self._headers: dict[str, str] = {}
        self._lines = 0
        self._repeated = ""
        self._body: bytes | bytearray = b""
        #: when the body began; the parser may see its first byte later
        self.body_begun = 0.0
        self._body_length = self._fed = 0
        self._looked = False
        #: the client waits for 100 Continue
        self.expects = False

    def end(self) -> None:
        """Drop the request, the parser and the connection."""
        if self._parser is not None:
            self._reset()
            self._parser = None
            del self._connection

    @property
    def has_begun(self) -> bool:
        """Return whether a request is incomplete."""
        return self.in_head or self.in_body

    @property
    def kept_bytes(self) -> int:
        """Return the number of bytes of the incomplete request."""
        return (self._fed if self.in_head else 0) + len(self._body)

    @property
    def body_left(self) -> int:
        """Return how many bytes of the body are missing; 0 or less if the length is unknown."""
        return self._body_length - len(self._body)

    def feed(self, data: bytes) -> None:
        """Parse bytes; raise HttpParserError if they are not HTTP."""
        self._parser.feed_data(data)

    def check_progress(self, size: int) -> None:
        """Set the deadline of an incomplete request, or reject it."""
        limits, connection = self._limits, self._connection
        self._fed += size
        if self.in_head:
            if self._fed > limits.head_bytes_max:
                connection.refuse(
                    431, f"the request header is too large: at most {limits.head_bytes_max} bytes"
                )
            elif self._fed == size and not connection.is_unread:
                connection.deadline.set(limits.head_seconds)
            return
        came = len(self._body)
        if self._fed > _FRAMING_MAX * (came + limits.head_bytes_max):
            connection.refuse(400, "the chunks are too small: send larger ones")
            return
        if not connection.is_unread:  # otherwise the client must read its responses first
            allowed = limits.body_seconds + came / limits.body_rate_min
            connection.deadline.set(self.body_begun + allowed - connection.loop.time())

    def drop_body(self) -> int:
        """Drop the body of a rejected request; return its size."""
        size, self._body = len(self._body), b""
        return size

    def without_upgrade(self) -> tuple[bytes, bytes, dict[str, str], bytes]:
        """Reset a request that offers another protocol.

        Return its method, target and headers, and the same request without the offer, as bytes to
        be parsed again.
        """
        method, url, headers = self._parser.get_method(), self._url, self._headers
        self._parser = httptools.HttpRequestParser(self)
        self._reset()
        return method, url, headers, without_offers(method, url, headers)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers must not change the headers.
        if not self.in_head:
            return
        self._lines += 1
        if self._lines > _LINES_MAX:
            self._connection.refuse(431, f"too many headers: at most {_LINES_MAX}")
            return
        headers, known = self._headers, header_name(name)
        text = value.decode("latin-1").rstrip(" \t")
        before = headers.setdefault(known, text)
        if before is not text:
            headers[known] = f"{before}, {text}"
            if known in SINGLE:
                self._repeated = known

    def on_headers_complete(self) -> None:
        self.in_head = False
        headers, connection = self._headers, self._connection
        if connection.is_deaf:
            return
        if self._repeated:
            connection.refuse(400, f"two {self._repeated} headers: send one")
            return
        wrong = misleading(self._parser.get_http_version(), self._url, headers)
        if wrong:
            connection.refuse(400, wrong)
            return
        length = headers.get("content-length")
        if length is None and "transfer-encoding" not in headers:
            return
        self.in_body = True
        self._fed = 0
        self.body_begun = self.body_begun or connection.loop.time()
        self._body_length = int(length or 0)
        self._check_size(self._body_length)
        if "expect" in headers and headers["expect"].lower() == "100-continue":
            self.expects = True
            connection.expected()

    def _check_size(self, size: int) -> None:
        """Reject a body that is too large for this client, or for the server at present."""
        limits, connection = self._limits, self._connection
        if size > limits.body_bytes_max:
            connection.refuse(413, f"the body is too large: at most {limits.body_bytes_max} bytes")
        elif connection.held.crowded:
            connection.refuse(503, CROWDED)
        elif size > limits.unknown_bytes_max and not self._looked:
            self._looked = True
            request = self._make_request()
            refused = None if request is None else connection.app.look(request)
            if refused is not None:
                connection.refuse_with(refused)

    def on_body(self, body: bytes) -> None:
        connection = self._connection
        if connection.is_deaf:
            return
        if not self._body:
            self._body = body
        else:
            if type(self._body) is bytes:
                self._body = bytearray(self._body)
            self._body += body
        connection.held.add(len(body))
        self._check_size(len(self._body))

    def on_message_complete(self) -> None:
        parser = self._parser
        if self._connection.is_deaf or parser.should_upgrade():
            return
        request = self._make_request()
        if request is None:
            return
        request.keep_alive = parser.should_keep_alive()
        request.takes_chunks = parser.get_http_version() != "1.0"
        self._reset()
        self._connection.arrived(request)

    def _make_request(self) -> Request | None:
        connection = self._connection
        head = read_head(self._parser.get_method(), self._url, self._headers)
        if head is None:
            connection.refuse(400, "invalid path: percent-encode it")
            return None
        return Request(head, bytes(self._body), connection.is_secure, peer=connection.peer)
