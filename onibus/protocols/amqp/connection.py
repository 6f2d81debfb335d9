"""A connection: bytes in, bytes out, and its state.

    START → (SASL → SASLED →) GREETED → OPEN → CLOSING → CLOSED

`feed` takes the bytes that arrived and calls the application for each link. `take` returns the
bytes to write, all of a burst together. `wake_at` returns when `tick` has something to do. Time is
an argument, in seconds of any clock that does not jump.

An error of the peer ends the smallest thing that it concerns: link, AMQP session or connection.
After it sends a close, the server reads only the peer's close.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from enum import Enum
from typing import Any, Protocol

from onibus.core.errors import TooManyFailures
from onibus.operation.peers import Bodies
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp import sasl
from onibus.protocols.amqp.decode import values_read
from onibus.protocols.amqp.errors import (
    CONNECTION_FORCED,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INTERNAL_ERROR,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    ConnectionFailed,
    SessionFailed,
)
from onibus.protocols.amqp.frames import (
    EMPTY_FRAME,
    FRAME_BYTES_MIN,
    PROTOCOL_HEADER,
    SASL,
    SASL_HEADER,
    Cutter,
    Frame,
    frame,
)
from onibus.protocols.amqp.link import Link
from onibus.protocols.amqp.runs import AMQP
from onibus.protocols.amqp.session import Session, SessionState

_log = logging.getLogger("onibus.amqp")

#: The largest frame that we take: large messages come in a few.
FRAME_BYTES_MAX = 256 << 10
#: The most bytes that we write into one frame, whatever the peer accepts.
_OUT_BYTES_MAX = 256 << 10
#: Sessions of a connection, as in Service Bus; one client has one for each of its links.
CHANNEL_MAX = 4_999
#: What we ask of peers: to say something in this time. They say it at half of it, or somewhat late.
IDLE_MS = 240_000
_PATIENCE_S = 300.0
#: The server sends keep-alive frames no more often than this.
_IDLE_S_MIN = 1.0
#: With this many bytes to write, the server reads no further requests.
_ANSWERS_BYTES_MAX = 1 << 20
#: Frames that are taken before others have their turn, and values that are read in them.
_FRAMES_MAX = 500
#: Frames that the begin of a session or of a link counts for, as it takes longer.
_LINK_FRAMES = 9
_VALUES_MAX = 10_000
#: Frames of deliveries, and their bytes, that are written before others have their turn.
_CUT_FRAMES = 500
_CUT_BYTES = 1 << 20
#: A peer gets no more deliveries while those that its windows hold back have this many bytes.
_WAITING_BYTES_MAX = 16 << 20
#: For all from the first byte to the open.
HANDSHAKE_S = 30.0
#: The time for a peer to respond to our close: some never read it.
_CLOSING_S = 1.0


class State(Enum):
    """Where a connection is in its life."""

    START = "new"
    SASL = "choosing a mechanism"
    SASLED = "let in"
    GREETED = "greeted"
    OPEN = "open"
    CLOSING = "closed by us"
    CLOSED = "closed"


#: (state, input) → state; other pairs are illegal.
STATES = {
    (State.START, "sasl header"): State.SASL,
    (State.START, "header"): State.GREETED,
    (State.SASL, "sasl frame"): State.SASLED,
    (State.SASLED, "header"): State.GREETED,
    (State.GREETED, "open"): State.OPEN,
    (State.OPEN, "session frame"): State.OPEN,
    (State.OPEN, "close"): State.CLOSED,
    (State.CLOSING, "close"): State.CLOSED,
}


class Application(Protocol):
    """What a connection is for."""

    def let_in(self, name: str, secret: str) -> bool:
        """Return whether a name and its secret are good; may raise TooManyFailures."""

    def attach(self, link: Link) -> None:
        """Accept or reject a link that the peer attaches, now or later."""

    def passed_over(self, state: Any) -> None:
        """Handle a delivery with a transactional state that was too late or too large."""

    def closed(self) -> None:
        """Handle the end of the connection."""


class _Nobody:
    """The application of a connection that has ended.

    The real application refers to its connection. If the connection kept it, reference counting
    could free neither.
    """

    def let_in(self, name: str, secret: str) -> bool:
        return False

    def attach(self, link: Link) -> None:
        """Ignore the link."""

    def passed_over(self, state: Any) -> None:
        """Ignore the state."""

    def closed(self) -> None:
        """Do nothing."""


_NOBODY = _Nobody()


class Flushed(Protocol):
    """An object that writes frames when a burst is over."""

    def flush(self) -> None: ...


class Connection:
    """One connection, as the server of it."""

    def __init__(self, container: str, now: float) -> None:
        self.application: Application
        self.state = State.START
        self._container = container
        self._cutter = Cutter(FRAME_BYTES_MIN)
        #: transfers that came together and are taken one by one
        self._singly: Iterator[tuple[int, say.Transfer, bytes]] = iter(())
        #: received bytes wait: for earlier responses, or for the turn of others
        self._behind = False
        #: frames taken in this turn
        self._frames = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._later: list[Flushed] = []
        self.sessions: dict[int, Session] = {}
        self.peer_frame_max = FRAME_BYTES_MIN
        #: links of all sessions
        self.link_count = 0
        #: how many sessions the peer may have just now
        self.sessions_max = CHANNEL_MAX + 1
        #: what all connections hold
        self.bodies = Bodies()
        #: bytes of deliveries that are not whole, or not settled yet; and of the former alone
        self.held_bytes = 0
        self.unfinished_bytes = 0
        #: bytes of responses that wait until the peer takes them
        self.unsent_bytes = 0
        #: bytes of deliveries to the peer that are not cut into frames yet, and their sessions
        self.waiting_bytes = 0
        self._cutting: dict[Session, None] = {}
        self._has_room_again = False
        #: requests of the peer that wait for the disk
        self.under_way = 0
        #: what the peer calls itself
        self.container_id = ""
        #: how the peer calls us, and the software that it is
        self.hostname = ""
        self.product: object = None
        self._peer_idle_s = 0.0
        self._now = now
        self._heard = now
        self._said = now
        self._deadline = now + HANDSHAKE_S
        #: the peer has not read what was written, so nothing more is written
        self.is_full = False
        #: called when there is something to take outside of `feed`
        self.on_output: Any = None

    # Out

    def write(self, *parts: bytes) -> None:
        """Let bytes wait for the end of the burst."""
        if not self._out and self.on_output is not None:
            self.on_output()
        self._out += parts
        self._out_bytes += sum(map(len, parts))

    def later(self, one: Flushed) -> None:
        """Flush an object when the burst is over."""
        if not self._later and self.on_output is not None:
            self.on_output()
        self._later.append(one)

    def take(self, now: float) -> bytes:
        """Return all bytes to write."""
        self._end_burst()
        if not self.is_full:
            self._cut()
        if not self._out:
            return b""
        self._said = now
        out, self._out, self._out_bytes = self._out, [], 0
        return out[0] if len(out) == 1 else b"".join(out)

    @property
    def waits_much(self) -> bool:
        """Return whether the peer has to take deliveries before it gets more."""
        return self.waiting_bytes > (_ANSWERS_BYTES_MAX if self._cutting else _WAITING_BYTES_MAX)

    def hold_waiting(self, size: int) -> None:
        """Add to the bytes of deliveries that wait; negative when they are cut or dropped."""
        much = self.waits_much
        self.waiting_bytes += size
        self.bodies.held_bytes += size
        if much and not self.waits_much:
            self._has_room_again = True
            if self.on_output is not None:
                self.on_output()

    def cut_later(self, session: Session) -> None:
        """Cut deliveries of a session into frames with the next output."""
        if not self._cutting and self.on_output is not None:
            self.on_output()
        self._cutting[session] = None

    def cut_on(self) -> None:
        """Ask for the next output if deliveries wait to be cut: the peer has read the last."""
        if self._cutting and self.on_output is not None:
            self.on_output()

    def _cut(self) -> None:
        """Cut deliveries into frames, for about a slice."""
        much, count = self.waits_much, _CUT_FRAMES
        while self._cutting and count > 0 and self._out_bytes < _CUT_BYTES:
            session = next(iter(self._cutting))
            del self._cutting[session]
            count -= session.cut(count, _CUT_BYTES - self._out_bytes)
            if session.may_cut:
                # Behind the other sessions.
                self._cutting[session] = None
            elif not session.is_cutting:
                session.tell_room()
        if self._has_room_again or (much and not self.waits_much):
            self._has_room_again = False
            for session in list(self.sessions.values()):
                session.tell_room()
        self.cut_on()

    def _end_burst(self) -> None:
        """Let those speak who waited for the end of the burst."""
        while self._later:
            ready, self._later = self._later, []
            for one in ready:
                one.flush()

    # In

    def feed(self, data: bytes, now: float) -> None:
        """Take what arrived."""
        self._heard = now
        self._cutter.feed(data)
        if self._behind or not self._cutter.is_short:
            self.read_on(now)

    def hold(self, size: int) -> None:
        """Add to the bytes of deliveries that are held; negative when they are released."""
        self.held_bytes += size
        self.bodies.held_bytes += size

    def stored(self) -> None:
        """Report a stored delivery that the peer has settled: there may be room to read more."""
        if self.on_output is not None:
            self.on_output()

    @property
    def kept_bytes(self) -> int:
        """Return the bytes kept for the peer: received and unsent ones."""
        return self._cutter.kept_bytes + self.held_bytes + self.unsent_bytes

    @property
    def is_behind(self) -> bool:
        """Return whether received bytes wait: `read_on` takes more of them.

        Earlier responses must be written first, and other connections get their turn.
        """
        return self._behind and not self.is_over

    def read_on(self, now: float) -> None:
        """Take what arrived and was not taken yet."""
        self._now = now
        self._behind = False
        try:
            self._read()
        except ConnectionFailed as error:
            self.close(error.condition, error.description)
        except Exception as error:
            _log.error("connection failed", exc_info=error)
            self.close(INTERNAL_ERROR, "the server failed; its log says more")

    def _read(self) -> None:
        most = values_read() + _VALUES_MAX
        self._frames = 0
        while self._frames < _FRAMES_MAX and values_read() < most:
            self._frames += 1
            if not self._step():
                return
        self._behind = True

    def _step(self) -> bool:
        """Take the next complete header or frame; return whether there may be more."""
        if self.state in (State.START, State.SASLED):
            header = self._cutter.header()
            if header is not None:
                self._take_header(header)
            return header is not None
        # What the peer's window holds back does not count: its flow has to be read.
        cutting = self.waiting_bytes if self._cutting else 0
        if self._out_bytes + cutting > _ANSWERS_BYTES_MAX:
            self._behind = True
            return False
        if self.state is State.OPEN and self._take_transfers():
            return not self.is_over
        # One by one: a run or a protocol header, which is not a frame, may follow.
        frames = self._cutter.frames(1)
        for one in frames:
            self._take_frame(one)
        return bool(frames) and not self.is_over

    @property
    def is_over(self) -> bool:
        """Return whether the connection has ended."""
        return self.state is State.CLOSED

    def _take_header(self, header: bytes) -> None:
        if header == SASL_HEADER and self.state is State.START:
            self._advance("sasl header")
            self.write(SASL_HEADER)
            self.write(sasl.mechanisms())
        elif header == PROTOCOL_HEADER:
            self._advance("header")
            self._cutter.size_max = FRAME_BYTES_MAX
            self.write(PROTOCOL_HEADER)
        else:
            # The response to any other protocol header is ours (2.2).
            self.write(PROTOCOL_HEADER if self.state is State.SASLED else SASL_HEADER)
            self._end()

    def _take_transfers(self) -> bool:
        """Take transfers of the usual form, all that follow or one; return whether any came."""
        single = next(self._singly, None)
        if single is not None:
            channel, transfer, payload = single
            self._take_session_frame(channel, say.TRANSFER, transfer, payload)
            return True
        run = self._cutter.run()
        if run is None:
            return False
        self._frames += len(run.ids)
        session = self.sessions.get(run.channel)
        if session is None or not session.take_run(run):
            self._singly = run.transfers()
        return True

    def _take_frame(self, one: Frame) -> None:
        kind, channel, body = one
        if (kind == SASL) != (self.state is State.SASL) or kind not in (AMQP, SASL):
            raise ConnectionFailed(
                FRAMING_ERROR, f"unexpected frame of type {kind} in state {self.state.value}"
            )
        if kind == SASL:
            try:
                good = sasl.is_let_in(body, self.application.let_in)
                outcome = sasl.OK if good else sasl.AUTH
            except TooManyFailures:
                outcome = sasl.LATER
            self.write(sasl.outcome(outcome))
            self._advance("sasl frame")
            if outcome != sasl.OK:
                self._end()
            return
        if not body:
            return
        code, fields, at = say.read_list(body)
        if self.state is State.CLOSING:
            if code == say.CLOSE:
                self._end()
            return
        performative = say.read(code, fields)
        if code == say.OPEN:
            self._take_open(channel, performative)
        elif code == say.CLOSE:
            self._advance("close")
            self.write(frame(0, say.close(None)))
            self._end()
        else:
            self._advance("session frame")
            self._take_session_frame(channel, code, performative, body[at:])

    def _take_open(self, channel: int, performative: say.Open) -> None:
        self._advance("open")
        if channel:
            raise ConnectionFailed(NOT_ALLOWED, "open must be sent on channel 0")
        largest = performative.max_frame_size
        if largest is not None and largest < FRAME_BYTES_MIN:
            raise ConnectionFailed(INVALID_FIELD, "max-frame-size must be at least 512 bytes")
        self.peer_frame_max = min(_OUT_BYTES_MAX, largest or _OUT_BYTES_MAX)
        idle_s = (performative.idle_time_out or 0) / 1_000
        self._peer_idle_s = max(idle_s, _IDLE_S_MIN) if idle_s else 0.0
        self.container_id = performative.container_id[:128]
        self.hostname = (performative.hostname or "")[:256]
        self.product = (performative.properties or {}).get("product")
        opened = say.open_(self._container, FRAME_BYTES_MAX, CHANNEL_MAX, IDLE_MS)
        self.write(frame(0, opened))

    def _take_session_frame(self, channel: int, code: int, given: Any, payload: bytes) -> None:
        session = self.sessions.get(channel)
        if code == say.BEGIN:
            if session is not None:
                raise ConnectionFailed(ILLEGAL_STATE, f"channel {channel} already has a session")
            if channel > CHANNEL_MAX:
                raise ConnectionFailed(NOT_ALLOWED, f"channel out of range: at most {CHANNEL_MAX}")
            if given.remote_channel is not None:
                raise ConnectionFailed(ILLEGAL_STATE, "begin has an unknown remote-channel")
            if len(self.sessions) >= self.sessions_max:
                told = f"a connection has at most {self.sessions_max} sessions"
                raise ConnectionFailed(RESOURCE_LIMIT_EXCEEDED, told)
            self._frames += _LINK_FRAMES
            self.sessions[channel] = Session(self, channel, given)
            return
        if session is None:
            raise ConnectionFailed(ILLEGAL_STATE, f"no session on channel {channel}")
        if code == say.END:
            answered = session.state is SessionState.ENDING
            session.advance("ended")
            del self.sessions[channel]
            session.forget()
            if not answered:
                session.say(say.end(None))
            return
        if session.state is SessionState.ENDING:
            if code in (say.TRANSFER, say.DISPOSITION):
                self.passed_over(given.state)
            return
        try:
            if code == say.TRANSFER:
                session.take_transfer(given, payload)
            elif code == say.DISPOSITION:
                session.take_disposition(given)
            elif code == say.FLOW:
                session.take_flow(given)
            elif code == say.ATTACH:
                self._frames += _LINK_FRAMES
                session.take_attach(given)
            else:
                session.take_detach(given)
        except SessionFailed as error:
            session.end(error.condition, error.description)

    def passed_over(self, state: Any) -> None:
        """Handle a frame that reaches no node."""
        if state is not None:
            self.application.passed_over(state)

    # Ending

    def close(self, condition: str, description: str) -> None:
        """Close the connection for a reason; it ends when the peer says so too, or soon."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        if self.state in (State.OPEN, State.GREETED):
            if self.state is State.GREETED:
                self.write(frame(0, say.open_(self._container, FRAME_BYTES_MAX, 0, 0)))
            self._end_burst()
            self._forget()
            self.write(frame(0, say.close(say.error(condition, description))))
            self.state = State.CLOSING
            self._deadline = self._now + _CLOSING_S
        else:
            self._end()

    def lost(self) -> None:
        """Handle the loss of the peer."""
        if self.state is not State.CLOSED:
            self._end()

    def _end(self) -> None:
        self._forget()
        self.state = State.CLOSED
        if self.on_output is not None:
            self.on_output()
        application, self.application = self.application, _NOBODY
        application.closed()
        self._cutter.clear()
        self._singly = iter(())
        self._later.clear()
        self._cutting.clear()

    def _forget(self) -> None:
        sessions, self.sessions = list(self.sessions.values()), {}
        for session in sessions:
            session.state = SessionState.ENDED
            session.forget()

    def _advance(self, event: str) -> None:
        following = STATES.get((self.state, event))
        if following is None:
            raise ConnectionFailed(ILLEGAL_STATE, f"unexpected {event} in state {self.state.value}")
        self.state = following

    # Time

    def wake_at(self) -> float:
        """Return when `tick` has something to do."""
        if self.state is not State.OPEN:
            return self._deadline
        silent = self._heard + _PATIENCE_S
        return min(silent, self._said + self._peer_idle_s / 2) if self._peer_idle_s else silent

    def tick(self, now: float) -> None:
        """Do the actions that are due."""
        self._now = now
        if self.state is State.CLOSING and now >= self._deadline:
            self._end()
        elif self.state is not State.OPEN:
            if now >= self._deadline:
                self.close(CONNECTION_FORCED, "the connection was not opened in time")
        elif now >= self._heard + _PATIENCE_S:
            self.close(CONNECTION_FORCED, "nothing was heard for too long")
        elif self._peer_idle_s and now >= self._said + self._peer_idle_s / 2:
            self.write(EMPTY_FRAME)
