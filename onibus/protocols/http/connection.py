"""An HTTP/1.1 connection: it parses requests, gives them to the app, and sends its responses.

It serves one request at a time, in order. Requests sent ahead wait, and everything waits while the
client does not read its responses. Everything a client can make long has a limit (`Limits`), and
every wait has a deadline: for a header or body that does not arrive, an idle connection, a response
that is not read. Bytes that are not a request get a problem document, after the earlier responses,
and the connection ends. An ended connection is freed at once, with all its buffers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httptools

from onibus.operation.peers import Peer
from onibus.protocols.ended import ENDED
from onibus.protocols.http.deadline import Deadline
from onibus.protocols.http.held import HeldBytes
from onibus.protocols.http.incoming import Incoming
from onibus.protocols.http.messages import Request, Response, head_of, plain
from onibus.protocols.http.problems import refusal
from onibus.protocols.http.usual_heads import AnyHeads

if TYPE_CHECKING:
    from onibus.protocols.http.connections import Connections

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Bytes parsed at once, which limits the requests that a client can send ahead.
_SLICE = 4_096
_CHUNKED_SLICE, _LARGE = 16 << 10, 64 << 10


class HttpConnection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, owner: Connections, peer: Peer) -> None:
        self._owner = owner
        self.app = owner.app
        self.limits = owner.limits
        self.loop = asyncio.get_running_loop()
        self.peer = peer
        self._transport: Any = ENDED
        self.is_secure = False
        self.held = HeldBytes(owner.peers.bodies)
        self.deadline = Deadline(self.loop, self._late)
        #: the request that the parser reads; bytes that wait for it; requests that wait for a
        #: response
        self._incoming = Incoming(self)
        self._waiting = bytearray()
        self._queue: deque[Request] = deque()
        self._current: Request | None = None  #: the request that the app executes
        self._task: asyncio.Task[None] | None = None
        #: the final error, sent after all earlier responses; from then on nothing is read
        self._refusal: Response | None = None
        self.is_deaf = self._last_words = self._feeding = self._going_on = self._ended = False
        self._reading = True
        self._resting = False  #: idle: the next bytes begin a request
        self._beginning = b""  #: its first bytes
        self._heads: AnyHeads = owner.heads  #: reads common headers without the parser
        #: set while the client does not read; a streamed response waits for it
        self._unread: asyncio.Future[None] | None = None
        self._answer_bytes = 0  #: size of the last response, if it is large
        self._more_follows = True  #: the client has not ended the connection

    # Callbacks of asyncio

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        self.peer.abort = self.abort
        owner = self._owner
        owner.open.add(self)
        if owner.closing or self.peer.is_rejected:
            owner.traffic.turned_away += 1
            self.refuse(503, "too many connections: try again later")
            return
        owner.traffic.opened += 1
        self._resting = True
        # A client connects to send a request. It may be idle only between two requests.
        self.deadline.set(self.limits.head_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        self.peer.leave()
        self.let_go()

    def let_go(self) -> None:
        """Break all reference cycles: the connection has ended, or changed its protocol."""
        self._owner.open.discard(self)
        self.is_deaf = True
        self._queue.clear()
        self.deadline.end()
        self._incoming.end()
        self._waiting.clear()
        self._beginning, self._heads = b"", self._owner.heads
        self._refusal = None
        self._transport, self._unread = ENDED, None
        if self._task is not None:
            # The task was sending a streamed response.
            self._task.cancel()
            self._task = self._current = None
        # The app holds the current request until it responds.
        self.held.let_go(0 if self._current is None else len(self._current.body))
        self._hurry()

    def eof_received(self) -> bool:
        """Handle the end of input: send the pending responses, and wait for nothing more."""
        self._ended = self.peer.has_left = True
        self._hurry()
        return not self.is_secure and bool(self._current or self._queue or self._waiting)

    def pause_writing(self) -> None:
        self._resting = False
        self._waiting += self._heads.before  # the parser reads it, and its body
        self._heads = self._owner.heads
        self._unread = self.loop.create_future()
        self.held.wait_for_reader(self._answer_bytes or self._transport.get_write_buffer_size())
        self.deadline.set(self.limits.write_seconds)
        if self.peer.is_stranger:
            self._count_kept()

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.set_result(None)
            self._unread = None
        self.held.wait_for_reader(0 if self._task is None else self._answer_bytes)
        if self._last_words:
            return  # its deadline still runs: the connection only has to end
        self.deadline.clear()
        if self._incoming.has_begun:
            self.deadline.set(self.limits.head_seconds)
        if self._current is None:
            self._go_on_soon()

    def data_received(self, data: bytes) -> None:
        if not self.is_deaf:
            self._take(data)
            if self.peer.is_stranger:
                self._count_kept()

    def _count_kept(self) -> None:
        """Record the bytes kept for a stranger, unless another protocol took over."""
        if not self.is_deaf:
            waiting = len(self._waiting) + len(self._heads.before)
            unread = self._transport.get_write_buffer_size()
            self.peer.hold(waiting + self._incoming.kept_bytes + unread)

    def _take(self, data: bytes) -> None:
        if self._resting:
            self._resting = False
            owner, heads = self._owner, self._heads
            self._heads = owner.heads
            known = heads.split(data)
            if known is not None and self.held.take(len(known[1])):
                self._incoming.body_begun = 0.0
                self._hand_out(Request(known[0], known[1], self.is_secure, peer=self.peer))
                return
            self._beginning = data = heads.before + data
            if (alone := heads.alone(data)) is not None:
                self._heads, self._resting = alone, True
                self._incoming.body_begun = self.loop.time()
                self.deadline.set(self.limits.body_seconds)
                return
            if owner.upgrades is not None and owner.hand_over_at_once(self, self._transport, data):
                return
        if self._stopped or self._waiting:
            self._waiting += data
            if len(self._waiting) > self.limits.head_bytes_max:
                # It sends ahead more than the server buffers: leave the rest in the socket.
                self._reading = False
                self._transport.pause_reading()
        elif len(data) <= _SLICE:
            self._feed(data)
        else:
            self._waiting += data
            self._feed_waiting()
        # A request that did not arrive in one piece cannot be recognised later.
        self._beginning = b""

    # Parsing

    @property
    def is_unread(self) -> bool:
        """Return whether the client has unread responses."""
        return self._unread is not None

    @property
    def _stopped(self) -> bool:
        """Stop parsing for now: responses come first."""
        answering = self._current is not None or self._unread is not None
        return answering or self.is_deaf or len(self._queue) > 0

    def _feed_waiting(self) -> None:
        waiting = self._waiting
        while waiting and not self._stopped:
            if self._incoming.in_body:
                left = self._incoming.body_left
                size = max(left, _SLICE) if left > 0 else _CHUNKED_SLICE
            else:
                # A header on its own, so that its body arrives in one piece.
                end = waiting.find(b"\r\n\r\n", 0, _SLICE)
                size = _SLICE if end < 0 else end + 4
            some = bytes(memoryview(waiting)[:size])
            del waiting[:size]
            self._feed(some)
        if self.is_deaf:
            waiting.clear()
        if not self._reading and len(waiting) <= self.limits.head_bytes_max:
            self._reading = True
            self._transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        self._feeding = True
        self._resting = False
        try:
            self._incoming.feed(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            if self._more_follows:
                self.refuse(400, f"not HTTP/1.1: {error}")
            self.is_deaf = True
        finally:
            self._feeding = False
        refused = self._refusal is not None or self._last_words  # which has its own deadline
        if not refused and self._incoming.has_begun:
            self._incoming.check_progress(len(data))
        elif not refused and self._current is None:
            self._rest()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Handle a request that offers another protocol, unless it takes the connection over."""
        if self.is_deaf:
            return
        method, url, headers, head = self._incoming.without_upgrade()
        # Send pending responses first: afterwards there is no way to send them.
        alone = self._current is None and not self._queue and self._unread is None
        if alone:
            if not self._reading:
                self._reading = True
                self._transport.resume_reading()
            ahead = rest + bytes(self._waiting)
            if self._owner.hand_over(self, self._transport, url, headers, ahead):
                return
        if method == b"CONNECT":
            self.refuse(400, "this server is not a proxy")
            return
        self._feed(head + rest)

    def expected(self) -> None:
        """Send 100 Continue, unless earlier requests come first."""
        if self._current is None and not self._queue:
            self._continue()

    def _continue(self) -> None:
        self._incoming.expects = False
        if not self.is_deaf:
            self._transport.write(_CONTINUE)

    def arrived(self, request: Request) -> None:
        """Queue a complete request, or hand it to the app."""
        self._more_follows = request.keep_alive
        if self._beginning:
            self._owner.heads.keep(self._beginning, request)
            self._beginning = b""
        self._queue.append(request)
        if self._current is None and self._unread is None and len(self._queue) == 1:
            self._hand_out(self._queue.popleft())

    # Responses

    def _hand_out(self, request: Request) -> None:
        """Give a request to the app."""
        self._current = request
        self.deadline.clear()
        request.begun = self.loop.time()
        self.app(request, self.respond)
        if self._ended:
            self._hurry()

    def respond(self, response: Response) -> None:
        """Respond to the current request; called once for each."""
        request, transport, owner = self._current, self._transport, self._owner
        if request is None:
            return
        if transport.is_closing():
            self._forget(request)
            return
        owner.traffic.answered(request, response.status, self.loop.time() - request.begun)
        self._answer_bytes = 0
        if len(response.body) > _LARGE:
            # It stays in memory until its last byte is sent: count it.
            transport.set_write_buffer_limits(0)
            self._answer_bytes = len(response.body)
        if request.head.method == "HEAD":
            transport.write(self._head(response, len(response.body)))
        elif response.stream is not None:
            # Counted from now on: others may ask before the client is seen not to read.
            self._answer_bytes = response.held_bytes
            self.held.wait_for_reader(response.held_bytes)
            self._task = self.loop.create_task(self._stream(request, response, response.stream))
            if self._ended:
                # The client closed its side before: a stream without an end would never stop.
                self._hurry()
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
        """Send a body piece by piece, no faster than the client reads."""
        chunked = request.takes_chunks
        if not chunked:
            request.keep_alive = False
        self._transport.write(self._head(response, None, chunked=chunked))
        late, rate = self.loop.time() + self.limits.write_seconds, self.limits.body_rate_min
        try:
            async for piece in pieces:
                late += len(piece) / rate
                if piece and chunked:
                    # A piece may be megabytes: do not copy it into its frame.
                    self._transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
                elif piece:
                    self._transport.write(piece)
                if self._unread is not None:
                    if request.endless and self._owner.closing:
                        self.abort()
                        return
                    await asyncio.shield(self._unread)
                    if response.held_bytes and self.loop.time() > late:
                        # It reads so slowly that the rest would be held for hours.
                        self.abort()
                        return
                else:
                    # The next piece takes time: others have their turn.
                    await asyncio.sleep(0)
        except Exception:
            # The header is sent already: only an incomplete body can report the error.
            self.abort()
            return
        if chunked:
            self._transport.write(b"0\r\n\r\n")
        self._task, self._answer_bytes = None, 0
        unread = 0 if self._unread is None else self._transport.get_write_buffer_size()
        self.held.wait_for_reader(unread)
        self._answered(request)

    def _forget(self, request: Request) -> None:
        request.hurry = None
        self._current = None
        self.held.add(-len(request.body))

    def _answered(self, request: Request) -> None:
        self._forget(request)
        if not request.keep_alive or self._owner.closing:
            self._queue.clear()
            self._close()
        elif self._queue or self._waiting:
            # Not from here: a client that sends ahead must not deepen the stack.
            if not self._feeding:
                self._go_on_soon()
        elif self._refusal is not None:
            self._say_last_words()
        elif not self._feeding:
            self._rest()

    def _go_on_soon(self) -> None:
        if not self._going_on:
            self._going_on = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Respond to, or parse, the next waiting request."""
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
        """Wait for the client: no response is pending."""
        if self._current is not None or self.is_deaf or self._transport.is_closing():
            return
        if self._queue:
            self._go_on_soon()
            return
        if self._ended and not self._waiting:
            self._close()
            return
        if self._incoming.expects:
            self._continue()
        if self.peer.is_stranger:
            self._count_kept()
        if self._unread is None and not self._incoming.has_begun:
            self._resting = True
            self.deadline.set(self.limits.idle_seconds)

    def _hurry(self) -> None:
        if self._current is not None and self._current.hurry is not None:
            hurry, self._current.hurry = self._current.hurry, None
            hurry()

    # Rejecting and closing

    def refuse(self, status: int, detail: str) -> None:
        self.refuse_with(refusal(status, detail))

    def refuse_with(self, response: Response) -> None:
        """Reject bytes that are not a request, after all pending responses, and end."""
        if self.is_deaf:
            return
        self.is_deaf = True
        self._refusal = response
        self.held.add(-self._incoming.drop_body())
        self.peer.hold(0)
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
            self.deadline.set(self.limits.linger_seconds)
        else:
            self._close()

    def _late(self) -> None:
        """Handle a missed deadline."""
        if self._unread is not None or self._last_words or self._transport.is_closing():
            self.abort()
        elif self._incoming.has_begun or self._heads.before:
            self.refuse(408, "the request did not arrive in time: send it again")
        else:
            self._close()

    def _close(self) -> None:
        """Close once the client has read everything, or has not in time; wait less for TLS."""
        self.is_deaf = True
        if self._transport.is_closing():
            return  # its deadline runs; a TLS transport closed twice cannot be aborted
        limits, unread = self.limits, self._transport.get_write_buffer_size()
        self._transport.close()
        self.deadline.set(limits.write_seconds if unread else limits.linger_seconds)

    def wind_up(self) -> None:
        """Finish the current response and close: the server stops."""
        self._hurry()
        current = self._current
        if current is None:
            self._close()
        elif current.endless and self._unread is not None:
            # Its client does not read, so the stream would not end.
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()
