"""What inputs are fed to, and what must hold of each: anything else that is raised is a defect.

Peers are told of protocol errors and refusals only; what decodes encodes to something that decodes
to the same; a stream that is fed byte by byte is answered as if it had come whole; and a connection
that is gone leaves nothing behind.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from onibus.core.errors import Refused
from onibus.core.message import Message, ReceivedMessage
from onibus.core.message import decode as stored
from onibus.core.path.admit import admit
from onibus.core.settings import QueueSettings
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp import sasl
from onibus.protocols.amqp.connection import Connection
from onibus.protocols.amqp.decode import decode, skip
from onibus.protocols.amqp.errors import AmqpError, DecodeError
from onibus.protocols.amqp.frames import EMPTY_FRAME, PROTOCOL_HEADER, Cutter, Frame, frame
from onibus.protocols.amqp.runs import AMQP
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.client import Client
from onibus.protocols.amqp.service_bus.incoming import read_batch, read_message
from onibus.protocols.amqp.service_bus.outgoing import write_message
from onibus.security.keys import Keyring
from tests.amqp.fuzz.world import NOW_MS, World

#: What one input can make the server say at most.
_ANSWER_BYTES_MAX = 1 << 20
_FRAME_BYTES_MAX = 2_048


def types(data: bytes) -> None:
    """Any value."""
    try:
        value, end = decode(data)
    except DecodeError:
        return
    assert end == skip(data, 0) <= len(data)
    again = to.encode(value)
    found, end = decode(again)
    assert end == skip(again, 0) == len(again)
    # Not the values: some numbers are not equal to themselves.
    assert to.encode(found) == again


def frames(data: bytes) -> None:
    """A stream of frames, cut whole and torn."""
    assert _cut(data, _piece(data)) == _cut(data, len(data) or 1)


def _piece(data: bytes) -> int:
    """Return in which pieces an input is fed besides: of one byte, where it is not too long.

    One of eight long ones is fed so, too; the others in pieces of which most frames have several.
    """
    return 1 if len(data) < _SHORT_BYTES or zlib.crc32(data) % 8 == 0 else 11


_SHORT_BYTES = 100


def _cut(data: bytes, piece: int) -> tuple[list[Frame], str, bool]:
    cutter = Cutter(_FRAME_BYTES_MAX)
    found: list[Frame] = []
    for at in range(0, len(data), piece):
        cutter.feed(data[at : at + piece])
        try:
            while some := cutter.frames(2):
                found += some
        except AmqpError as error:
            return found, error.condition, False
        assert piece > 1 or cutter._have < _FRAME_BYTES_MAX
    return found, "", cutter.waiting


def performatives(data: bytes) -> None:
    """The body of a frame."""
    with suppress(AmqpError):
        sasl.is_let_in(data, lambda name, secret: True)
    plain = say.read_plain(data) if data.startswith(say.PLAIN_TRANSFER) else None
    try:
        code, fields, at = say.read_list(data)
        found = say.read(code, fields)
    except AmqpError:
        assert plain is None
        return
    assert at <= len(data)
    if plain is not None:
        assert plain == (found.handle, found.delivery_id, found.message_format, at)
        assert not any((found.settled, found.more, *found[6:]))
    again = say.performative(code, [to.encode(field) for field in fields])
    told, fields_again, end = say.read_list(again)
    assert (told, end) == (code, len(again))
    assert say.performative(code, [to.encode(field) for field in fields_again]) == again
    if code == say.ATTACH:
        for terminus in (say.source(found.source), say.target(found.target)):
            decode(terminus)


_SETTINGS = QueueSettings(requires_duplicate_detection=True)


def messages(data: bytes) -> None:
    """A message, or a batch: taken in, stored, and written for its receivers."""
    for read in (read_batch, lambda payload: [read_message(payload)]):
        try:
            found = list(read(data))
        except (AmqpError, Refused):
            continue
        for message in found:
            try:
                row = admit(message, _SETTINGS, b"").row
            except Refused:
                continue
            _write(stored(row))


def _write(message: Message) -> None:
    given: dict[str, Any] = {"sequence_number": 7, "enqueued_time_ms": NOW_MS}
    back = read_message(write_message(ReceivedMessage(message=message, **given)))
    for name in _KEPT:
        assert getattr(back, name) == getattr(message, name), name
    # One without an id is shown with one.
    assert message.message_id in (None, back.message_id)
    assert to.encode(back.properties) == to.encode(message.properties)
    dead = ReceivedMessage(message=message, dead_letter_reason="r", delivery_count=1, **given)
    assert read_message(write_message(dead)).properties["DeadLetterReason"] == "r"
    changed = replace(message, subject="other", properties={"n": 5}, rewritten=True)
    told = read_message(write_message(ReceivedMessage(message=changed, **given)))
    assert (told.subject, told.properties, told.body) == ("other", {"n": 5}, message.body)


_KEPT = ("body", "format", "session_id", "subject", "to", "correlation_id")


#: The well-known key: nobody needs another.
_KEYS = Keyring(development=True)
_BEGIN = say.performative(say.BEGIN, [to.NULL, to.uint(0), to.uint(2_048), to.uint(2_048)])
_OPEN = say.performative(say.OPEN, [to.string("me"), to.NULL, to.uint(_FRAME_BYTES_MAX)])
_GREETING = PROTOCOL_HEADER + frame(0, _OPEN) + frame(0, _BEGIN)


class _Place:
    """A world to talk to, made anew when much has changed in it."""

    def __init__(self) -> None:
        self._world: World | None = None
        #: what has changed it
        self.history: list[bytes] = []

    def answer(self, greeting: bytes, stream: bytes, piece: int) -> bytes:
        """Return all that is said to a peer."""
        if self._world is None or len(self.history) == _HISTORY_MAX:
            self._world, self.history = World(), []
        # Where something goes wrong nobody uses it any more.
        world, self._world = self._world, None
        changes = world.changes
        world.use()
        connection = Connection("onibus", 0.0)
        client = Client(world, None if greeting else _KEYS, connection)
        connection.application = client
        if greeting:
            connection.feed(greeting, 0.0)
        said = b""
        # An empty frame ends a burst: what it asked for is done, and answered.
        for burst in stream.split(EMPTY_FRAME):
            for at in range(0, len(burst), piece):
                connection.feed(burst[at : at + piece], 0.0)
            said += self._said(world, connection)
        connection.lost()
        world.settle()
        assert not world.alarms, world.alarms
        assert (connection.held_bytes, connection.unfinished_bytes) == (0, 0)
        assert (connection.unsent_bytes, connection.under_way, connection.link_count) == (0, 0, 0)
        assert not client._links
        if world.changes != changes:
            self.history.append(stream)
        self._world = world
        return said

    def _said(self, world: World, connection: Connection) -> bytes:
        said = connection.take(0.0)
        while connection.is_behind or not world.is_settled:
            if connection.is_behind:
                connection.read_on(0.0)
            world.settle()
            said += connection.take(0.0)
        return said


#: Inputs that change a world before there is a new one: making one takes longer than all else.
_HISTORY_MAX = 24
_places: list[_Place] = []


def _converse(greeting: bytes, stream: bytes) -> None:
    """Answer a stream in two worlds that have seen the same: whole, and in pieces."""
    global _places
    places, _places = _places or [_Place(), _Place()], []
    piece = _piece(stream)
    try:
        _compare(places, greeting, stream, piece)
    except Exception as error:
        _compare([_Place(), _Place()], greeting, stream, piece)
        before = "\n".join(one.hex() for one in places[0].history)
        raise AssertionError(f"alone it does not fail; before it came\n{before}") from error
    _places = places


def _compare(places: list[_Place], greeting: bytes, stream: bytes, piece: int) -> None:
    whole = places[0].answer(greeting, stream, len(stream) or 1)
    assert len(whole) <= _ANSWER_BYTES_MAX
    _check_said(whole)
    torn = places[1].answer(greeting, stream, piece)
    assert torn == whole or _ordered(torn) == _ordered(whole), (torn, whole)


def _frames_of(said: bytes) -> Iterator[Frame]:
    """Yield the frames that the server says, without protocol headers."""
    cutter = Cutter(1 << 20)
    cutter.feed(said)
    while cutter.waiting:
        if said.startswith(b"AMQP", len(said) - cutter._have):
            cutter.header()
        else:
            yield from cutter.frames(1)


def _ordered(said: bytes) -> tuple[list[Frame], Counter[str]]:
    """Return the frames whose order matters, and the outcomes of deliveries, which have none."""
    frames: list[Frame] = []
    outcomes: Counter[str] = Counter()
    for kind, channel, body in _frames_of(said):
        code, fields, _ = say.read_list(body) if body else (0, [], 0)
        if kind == AMQP and code == say.DISPOSITION:
            role, first, last, *rest = fields
            for delivery in range(first, (first if last is None else last) + 1):
                outcomes[repr((channel, role, delivery, rest))] += 1
        else:
            frames.append((kind, channel, body))
    return frames, outcomes


def _check_said(said: bytes) -> None:
    """See to it that what we say can be read."""
    begun: dict[tuple[int, int], bytes] = {}
    for _, channel, body in _frames_of(said):
        if not body:
            continue
        code, fields, at = say.read_list(body)
        if code != say.TRANSFER:
            assert at == len(body)
            continue
        payload = begun.pop((channel, fields[0]), b"") + body[at:]
        if fields[5]:
            begun[channel, fields[0]] = payload
        else:
            sections.split(payload)
    assert not begun


def handshakes(data: bytes) -> None:
    """A connection from its first byte."""
    _converse(b"", data)


def conversations(data: bytes) -> None:
    """What is said once a connection and a session are open."""
    _converse(_GREETING, data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "types": types,
    "frames": frames,
    "performatives": performatives,
    "messages": messages,
    "handshakes": handshakes,
    "conversations": conversations,
}
#: Those whose inputs are streams of frames.
STREAMS = frozenset({"frames", "handshakes", "conversations"})
