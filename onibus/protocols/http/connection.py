"""One connection of HTTP/1.1: bytes in, whole requests to the app, its answers out.

One request at a time, in the order they came: what a client sends ahead waits, and so does
everything else while it does not read its answers. Everything a peer can make long has a limit
(`Limits`), and every wait a deadline: a head or a body that does not come, an idle connection, an
answer that nobody reads. What is no request is answered with a problem document, after what came
before it, and the connection ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httptools

from onibus.protocols.http.deadline import Deadline
from onibus.protocols.http.held import Held
from onibus.protocols.http.messages import Request, Response, head_of, plain
from onibus.protocols.http.problems import CROWDED, refusal
from onibus.protocols.http.reading import header_name, read_head, without_offers
from onibus.protocols.http.usual_heads import AnyHeads

if TYPE_CHECKING:
    from onibus.protocols.http.connections import Connections

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: What is parsed at once: bounds the requests that a client can send ahead.
_SLICE = 4_096
_CHUNKED_SLICE, _LARGE = 16 << 10, 64 << 10
#: Chunks may be framed by so many times their own bytes: one byte a chunk takes five.
_FRAMING_MAX = 8


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, owner: Connections) -> None:
        self._owner = owner
        self._limits = owner.limits
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._secure = False
        #: bytes that wait to be parsed, and requests that wait to be answered
        self._waiting = bytearray()
        self._queue: deque[Request] = deque()
        self._current: Request | None = None  #: what the app works on
        self._task: asyncio.Task[None] | None = None
        #: what is said last, once all before it is answered; from then on nothing is read
        self._refusal: Response | None = None
        self._deaf = self._last_words = self._feeding = self._going_on = self._ended = False
        self._reading = True
        self._resting = False  #: nothing is under way: what comes next begins a request
        self._beginning = b""  #: and what it began with
        self._heads: AnyHeads = owner.heads  #: reads that, where the parser need not
        #: set while the client does not read; a streamed answer waits for it
        self._unread: asyncio.Future[None] | None = None
        self._answer_bytes = 0  #: of the answer given last, where it is a large one
        self._held = Held(owner.traffic, self._limits.all_bodies_bytes_max)
        self._deadline = Deadline(self._loop, self._late)
        self._more_follows = True  #: the client did not say that its last request is the last one
        self._reset()

    def _reset(self) -> None:
        self._in_head = self._in_body = False
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: bytes | bytearray = b""
        self._body_begun = 0.0
        self._body_length = self._fed = 0
        self._looked = self._expects = False

    # What asyncio tells

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._secure = transport.get_extra_info("sslcontext") is not None
        owner = self._owner
        full = len(owner.open) >= self._limits.connections_max
        owner.open.add(self)
        if owner.closing or full:
            owner.traffic.turned_away += 1
            self._refuse(503, "too many connections: try again later")
            return
        owner.traffic.opened += 1
        self._resting = True
        self._deadline.set(self._limits.idle_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.open.discard(self)
        self._held.let_go()
        self._deaf = True
        self._queue.clear()
        self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()
        self._hurry()

    def eof_received(self) -> bool:
        """The client sends no more; what it asked before is answered, but nothing is waited for."""
        self._ended = True
        self._hurry()
        return not self._secure and bool(self._current or self._queue or self._waiting)

    def pause_writing(self) -> None:
        self._resting = False
        self._waiting += self._heads.before  # the parser will read it, and its body
        self._heads = self._owner.heads
        self._unread = self._loop.create_future()
        self._held.wait_for_reader(self._answer_bytes or self._transport.get_write_buffer_size())
        self._deadline.set(self._limits.write_seconds)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.set_result(None)
            self._unread = None
        self._held.wait_for_reader(0)
        if self._last_words:
            return  # its deadline runs on: nothing is waited for but that it goes
        self._deadline.clear()
        if self._in_head or self._in_body:
            self._deadline.set(self._limits.head_seconds)
        if self._current is None:
            self._go_on_soon()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._resting:
            self._resting = False
            owner, heads = self._owner, self._heads
            self._heads = owner.heads
            known = heads.split(data)
            if known is not None and self._held.take(len(known[1])):
                self._body_begun = 0.0
                self._hand_out(Request(known[0], known[1], self._secure))
                return
            self._beginning = data = heads.before + data
            if (alone := heads.alone(data)) is not None:
                self._heads, self._resting, self._body_begun = alone, True, self._loop.time()
                self._deadline.set(self._limits.body_seconds)
                return
            if owner.upgrades is not None and owner.hand_over_at_once(self, self._transport, data):
                return
        if self._stopped or self._waiting:
            self._waiting += data
            if len(self._waiting) > self._limits.head_bytes_max:
                # It sends ahead more than we keep for it: let the socket hold the rest.
                self._reading = False
                self._transport.pause_reading()
        elif len(data) <= _SLICE:
            self._feed(data)
        else:
            self._waiting += data
            self._feed_waiting()

    # Parsing

    @property
    def _stopped(self) -> bool:
        """Nothing more is parsed for now: answers come first."""
        answering = self._current is not None or self._unread is not None
        return answering or self._deaf or len(self._queue) > 0

    def _feed_waiting(self) -> None:
        waiting = self._waiting
        while waiting and not self._stopped:
            if self._in_body:
                left = self._body_length - len(self._body)
                size = max(left, _SLICE) if left > 0 else _CHUNKED_SLICE
            else:
                # A head by itself, so that its body comes in one piece.
                end = waiting.find(b"\r\n\r\n", 0, _SLICE)
                size = _SLICE if end < 0 else end + 4
            some = bytes(memoryview(waiting)[:size])
            del waiting[:size]
            self._feed(some)
        if self._deaf:
            waiting.clear()
        if not self._reading and len(waiting) <= self._limits.head_bytes_max:
            self._reading = True
            self._transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        self._feeding = True
        self._resting = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            if self._more_follows:
                self._refuse(400, f"that is no HTTP/1.1: {error}")
            self._deaf = True
        finally:
            self._feeding = False
        refused = self._refusal is not None or self._last_words  # with a deadline of its own
        if not refused and (self._in_head or self._in_body):
            self._check_progress(len(data))
        elif not refused and self._current is None:
            self._rest()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Answer a request that offers another protocol in this one, unless it is handed over."""
        method, headers = self._parser.get_method(), self._headers
        # What is unanswered goes first: afterwards nobody could be told of it.
        alone = self._current is None and not self._queue and self._unread is None
        if alone and self._owner.hand_over(self, self._transport, self._url, headers, rest):
            return
        self._parser = httptools.HttpRequestParser(self)
        if method == b"CONNECT":
            self._refuse(400, "this server is no proxy")
            return
        head = without_offers(method, self._url, headers)
        self._reset()
        self._feed(head + rest)

    def _check_progress(self, size: int) -> None:
        """A request has begun and is not whole yet."""
        limits = self._limits
        self._fed += size
        if self._in_head:
            if self._fed > limits.head_bytes_max:
                self._refuse(431, f"a head has at most {limits.head_bytes_max} bytes")
            elif self._fed == size and self._unread is None:
                self._deadline.set(limits.head_seconds)
            return
        came = len(self._body)
        if self._fed > _FRAMING_MAX * (came + limits.head_bytes_max):
            self._refuse(400, "that is more framing than body")
            return
        if self._unread is None:  # or else it has to read its answer first
            allowed = limits.body_seconds + came / limits.body_rate_min
            self._deadline.set(self._body_begun + allowed - self._loop.time())

    # What the parser tells

    def on_message_begin(self) -> None:
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # What comes after a body in chunks is not asked for, and must not change what was said.
        if self._in_head:
            self._headers[header_name(name)] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._in_head = False
        headers = self._headers
        length = headers.get("content-length")
        if length is None and "transfer-encoding" not in headers:
            return
        self._in_body = True
        self._fed = 0
        self._body_begun = self._body_begun or self._loop.time()
        self._body_length = int(length or 0)
        self._check_size(self._body_length)
        if "expect" in headers and headers["expect"].lower() == "100-continue":
            if self._current is None and not self._queue:
                self._continue()
            else:
                self._expects = True

    def _continue(self) -> None:
        self._expects = False
        if not self._deaf:
            self._transport.write(_CONTINUE)

    def _check_size(self, size: int) -> None:
        """Refuse a body that is too large for who sends it, or for us now."""
        limits = self._limits
        if size > limits.body_bytes_max:
            self._refuse(413, f"a body has at most {limits.body_bytes_max} bytes")
        elif self._held.crowded:
            self._refuse(503, CROWDED)
        elif size > limits.unknown_bytes_max and not self._looked:
            self._looked = True
            request = self._make_request()
            refused = None if request is None else self._owner.app.look(request)
            if refused is not None:
                self._refuse_with(refused)

    def on_body(self, body: bytes) -> None:
        if self._deaf:
            return
        if not self._body:
            self._body = body
        else:
            if type(self._body) is bytes:
                self._body = bytearray(self._body)
            self._body += body
        self._held.add(len(body))
        self._check_size(len(self._body))

    def on_message_complete(self) -> None:
        if self._deaf or self._parser.should_upgrade():
            return
        request = self._make_request()
        if request is None:
            return
        self._more_follows = request.keep_alive = self._parser.should_keep_alive()
        request.takes_chunks = self._parser.get_http_version() != "1.0"
        self._reset()
        if self._beginning:
            self._owner.heads.keep(self._beginning, request)
            self._beginning = b""
        self._queue.append(request)
        if self._current is None and self._unread is None and len(self._queue) == 1:
            self._hand_out(self._queue.popleft())

    def _make_request(self) -> Request | None:
        head = read_head(self._parser.get_method(), self._url, self._headers)
        if head is None:
            self._refuse(400, "the path cannot be read")
            return None
        return Request(head, bytes(self._body), self._secure)

    # Answering

    def _hand_out(self, request: Request) -> None:
        """Hand a request to the app."""
        self._current = request
        self._deadline.clear()
        request.begun = self._loop.time()
        self._owner.app(request, self.respond)
        if self._ended:
            self._hurry()

    def respond(self, response: Response) -> None:
        """Answer the request that was handed out; called once for each."""
        request, transport, owner = self._current, self._transport, self._owner
        if request is None or transport.is_closing():
            return
        owner.traffic.answered(request, response.status, self._loop.time() - request.begun)
        self._answer_bytes = 0
        if len(response.body) > _LARGE:
            # It stays in memory whole until its last byte is taken: that has to be told.
            transport.set_write_buffer_limits(0)
            self._answer_bytes = len(response.body)
        if request.head.method == "HEAD":
            transport.write(self._head(response, len(response.body)))
        elif response.stream is not None:
            self._task = self._loop.create_task(self._stream(request, response, response.stream))
            return
        elif not response.headers and response.is_plain and request.is_plain and not owner.closing:
            transport.write(plain(response))
        else:
            transport.write(self._head(response, len(response.body)) + response.body)
        self._answered(request)

    def _head(self, response: Response, length: int | None, *, chunked: bool = False) -> bytes:
        current, persistence = self._current, "close"
        if current is not None and current.keep_alive and not self._owner.closing:
            persistence = "" if current.takes_chunks else "keep-alive"
        return head_of(response, length, persistence, chunked=chunked)

    async def _stream(
        self, request: Request, response: Response, pieces: AsyncIterator[bytes | memoryview]
    ) -> None:
        """Send a body piece by piece, no faster than it is read."""
        chunked = request.takes_chunks
        if not chunked:
            request.keep_alive = False
        self._transport.write(self._head(response, None, chunked=chunked))
        try:
            async for piece in pieces:
                if piece and chunked:
                    # A piece may be megabytes: it is not copied to stand in its frame.
                    self._transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
                elif piece:
                    self._transport.write(piece)
                if self._unread is not None:
                    await asyncio.shield(self._unread)
        except Exception:
            # The head is gone already: a body that breaks off is all that can be told.
            self.abort()
            return
        if chunked:
            self._transport.write(b"0\r\n\r\n")
        self._task = None
        self._answered(request)

    def _answered(self, request: Request) -> None:
        request.hurry = None
        self._current = None
        self._held.add(-len(request.body))
        if not request.keep_alive or self._owner.closing:
            self._queue.clear()
            self._close()
        elif self._queue or self._waiting:
            # Not from here: a client that sends much ahead must not grow our stack.
            if not self._feeding:
                self._go_on_soon()
        elif self._refusal is not None:
            self._say_last_words()
        elif not self._feeding:
            self._rest()

    def _go_on_soon(self) -> None:
        if not self._going_on:
            self._going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Answer, or parse, what waits."""
        self._going_on = False
        if self._current is not None or self._unread is not None or self._transport.is_closing():
            return
        if self._queue:
            self._hand_out(self._queue.popleft())
        elif self._refusal is not None:
            self._say_last_words()
        else:
            self._feed_waiting()
            self._rest()

    def _rest(self) -> None:
        """Nothing is being answered: wait for the client."""
        if self._current is not None or self._deaf or self._transport.is_closing():
            return
        if self._queue:
            self._go_on_soon()
            return
        if self._ended and not self._waiting:
            self._close()
            return
        if self._expects:
            self._continue()
        if self._unread is None and not (self._in_head or self._in_body):
            self._resting = True
            self._deadline.set(self._limits.idle_seconds)

    def _hurry(self) -> None:
        if self._current is not None and self._current.hurry is not None:
            hurry, self._current.hurry = self._current.hurry, None
            hurry()

    # Refusing and closing

    def _refuse(self, status: int, detail: str) -> None:
        self._refuse_with(refusal(status, detail))

    def _refuse_with(self, response: Response) -> None:
        """Answer what is no request once all before it is answered, and end."""
        if self._deaf:
            return
        self._deaf = True
        self._refusal = response
        self._held.add(-len(self._body))
        self._body = b""
        if self._current is None and not self._queue:
            self._say_last_words()

    def _say_last_words(self) -> None:
        response, self._refusal, transport = self._refusal, None, self._transport
        if response is None or transport.is_closing():
            return
        self._last_words = True
        self._owner.traffic.refused(response.status)
        transport.write(self._head(response, len(response.body)) + response.body)
        if transport.can_write_eof():
            transport.write_eof()
            self._deadline.set(self._limits.linger_seconds)
        else:
            transport.close()

    def _late(self) -> None:
        """Nothing happened for too long."""
        if self._unread is not None or self._last_words or self._transport.is_closing():
            self.abort()
        elif self._in_head or self._in_body or self._heads.before:
            self._refuse(408, "the request did not come in time")
        else:
            self._close()

    def _close(self) -> None:
        """Close once what was written is read, or nobody reads it; of TLS's goodbye not as long."""
        self._deaf = True
        if self._transport.is_closing():
            return  # its deadline runs; a transport of TLS that is closed twice cannot be aborted
        limits, unread = self._limits, self._transport.get_write_buffer_size()
        self._transport.close()
        self._deadline.set(limits.write_seconds if unread else limits.linger_seconds)

    def wind_up(self) -> None:
        """The server stops: finish what is being answered, and close."""
        self._hurry()
        if self._current is None and self._transport is not None:
            self._close()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()
