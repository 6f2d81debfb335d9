"""Raw clients of Onibus and of its peers: bytes that are ready before the clock starts.

A wire connects, makes the bytes of messages, and counts the responses in what it reads. It decodes
nothing else, so that each client costs about the same, and less than its server. All messages are
of 1 KB and durable, each with a different id if the peer detects duplicates.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from typing import Any, Protocol

from bench.measure import BODY_BYTES
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.frames import PROTOCOL_HEADER, SASL, SASL_HEADER, frame
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.incoming import BATCH_FORMAT

BODY = b"x" * BODY_BYTES
#: Messages of one batch.
BATCH = 100
#: Messages that a receiver has at most without having settled them.
PREFETCH = 1_000
_TIMEOUT_S = 300
_u32 = struct.Struct(">I").unpack_from


class Wire(Protocol):
    """One connection to one broker."""

    socket: socket.socket
    #: messages that one request has
    together: int

    def requests(self, prefix: str, count: int) -> list[bytes]:
        """Return `count` complete requests."""

    def answered(self, data: bytes) -> int:
        """Return how many requests are answered by what was read."""


class Receiving(Protocol):
    """One connection that receives."""

    socket: socket.socket

    def begin(self) -> None:
        """Ask for messages."""

    def received(self, data: bytes) -> tuple[int, bytes]:
        """Return how many messages are settled, and the bytes to respond with."""


class _Reading:
    """Reads the responses of a server while a connection is made."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(_TIMEOUT_S)
        self.socket = connected
        self._read = b""

    def until(self, pattern: bytes) -> re.Match[bytes]:
        """Read until a pattern matches; drop the bytes up to its end."""
        while (found := re.search(pattern, self._read, re.DOTALL)) is None:
            came = self.socket.recv(65_536)
            if not came:
                raise SystemExit(f"the connection was closed: {self._read[-500:]!r}")
            self._read += came
        self._read = self._read[found.end() :]
        return found


def _connect(port: int) -> socket.socket:
    connected = socket.create_connection(("127.0.0.1", port))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


class _Counter:
    """Counts something in a stream, however it is torn."""

    def __init__(self, pattern: bytes) -> None:
        self._pattern = pattern
        self._tail = b""

    def count(self, data: bytes) -> int:
        data = self._tail + data
        self._tail = data[-len(self._pattern) + 1 :]
        return data.count(self._pattern)


# Onibus


def _onibus(port: int, name: str, key: str) -> _Reading:
    """Return a connection with a session."""
    reading = _Reading(_connect(port))
    response = to.binary(f"\0{name}\0{key}".encode())
    init = say.performative(0x41, [to.symbol("PLAIN"), response, to.NULL])
    opened = say.performative(say.OPEN, [to.string("bench"), to.NULL, to.uint(1 << 20)])
    window = to.uint(2**31 - 1)
    begun = say.performative(say.BEGIN, [to.NULL, to.uint(0), window, window])
    reading.socket.sendall(
        SASL_HEADER + frame(0, init, SASL) + PROTOCOL_HEADER + frame(0, opened) + frame(0, begun)
    )
    reading.until(rb"\x00\x53\x11")
    return reading


def _attach(reading: _Reading, role: bool, queue: str) -> None:
    termini = [
        say.performative(say.SOURCE, [to.string(queue)]),
        say.performative(say.TARGET, [to.string(queue)]),
    ]
    count = to.uint(0) if role == say.SENDER else to.NULL
    fields = [to.string("bench"), to.uint(0), to.boolean(role), to.ubyte(0), to.ubyte(1), *termini]
    fields += [to.NULL, to.NULL, count]
    reading.socket.sendall(frame(0, say.performative(say.ATTACH, fields)))
    reading.until(rb"\x00\x53\x12")


class OnibusSending:
    """A sender; with `together`, in batches of Service Bus."""

    def __init__(self, port: int, queue: str, name: str, key: str, together: int = 1) -> None:
        reading = _onibus(port, name, key)
        self.socket = reading.socket
        self.together = together
        self._rest = b""
        _attach(reading, say.SENDER, queue)
        reading.until(rb"\x00\x53\x13.{20}")

    def requests(self, prefix: str, count: int) -> list[bytes]:
        return [self._transfer(number, prefix) for number in range(count)]

    def _transfer(self, number: int, prefix: str) -> bytes:
        form = 0 if self.together == 1 else BATCH_FORMAT
        fields = [to.uint(0), to.uint(number), to.binary(number.to_bytes(4, "big")), to.uint(form)]
        head = say.performative(say.TRANSFER, [*fields, to.FALSE, to.FALSE])
        if self.together == 1:
            return frame(0, head + self._message(f"{prefix}-{number}"))
        many = [
            sections.data_section(self._message(f"{prefix}-{number}-{more}"))
            for more in range(self.together)
        ]
        return frame(0, head + b"".join(many))

    def _message(self, message_id: str) -> bytes:
        properties = sections.section(sections.PROPERTIES, to.list_([to.string(message_id)]))
        return properties + sections.data_section(BODY)

    def answered(self, data: bytes) -> int:
        data = self._rest + data
        at, end, count = 0, len(data), 0
        while end - at >= 8 and end - at >= (size := _u32(data, at)[0]):
            code = data[at + 10]
            if code == say.DISPOSITION:
                count += self._settled(data[at + 8 : at + size])
            elif code != say.FLOW:
                raise SystemExit(f"the server said {data[at : at + size]!r}")
            at += size
        self._rest = data[at:]
        return count

    def _settled(self, body: bytes) -> int:
        _, (_, first, last, _, state, *_), _ = say.read_list(body)
        if state.descriptor != say.ACCEPTED:
            raise SystemExit(f"the server refused: {state}")
        return 1 if last is None else int(last - first + 1)


class OnibusReceiving:
    """A receiver: what it reads it accepts, and counts when that is confirmed."""

    def __init__(self, port: int, queue: str, name: str, key: str) -> None:
        reading = _onibus(port, name, key)
        self.socket = reading.socket
        self._rest = b""
        self._seen = self._accepted = self._credited = 0
        _attach(reading, say.RECEIVER, queue)

    def begin(self) -> None:
        self.socket.sendall(self._credit())

    def _credit(self) -> bytes:
        self._credited = self._seen
        return frame(0, say.flow(0, 2**31 - 1, 0, (0, self._seen, PREFETCH, False)))

    def received(self, data: bytes) -> tuple[int, bytes]:
        if self._rest:
            data = self._rest + data
        at, end, done = 0, len(data), 0
        while end - at >= 8 and end - at >= (size := _u32(data, at)[0]):
            code = data[at + 10]
            if code == say.TRANSFER:
                self._seen += 1
            elif code == say.DISPOSITION:
                _, (_, first, last, _, state, *_), _ = say.read_list(data[at + 8 : at + size])
                if state.descriptor != say.ACCEPTED:
                    raise SystemExit(f"the server refused: {state}")
                done += last - first + 1
            at += size
        self._rest = data[at:]
        out = b""
        if self._seen > self._accepted:
            ids = [to.uint(self._accepted), to.uint(self._seen - 1)]
            told = [to.boolean(say.RECEIVER), *ids, to.FALSE, say.accepted()]
            out = frame(0, say.performative(say.DISPOSITION, told))
            self._accepted = self._seen
        if (self._seen - self._credited) * 2 >= PREFETCH:
            out += self._credit()
        return done, out


# RabbitMQ, by AMQP 0.9.1


def _short(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def _frame091(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def _method(channel: int, family: int, number: int, arguments: bytes = b"") -> bytes:
    return _frame091(1, channel, struct.pack(">HH", family, number) + arguments)


def _rabbitmq(port: int, queue: str) -> _Reading:
    """Return a connection with a channel, and with a durable quorum queue."""
    reading = _Reading(_connect(port))
    login = b"\0\0\0\0" + _short("PLAIN") + struct.pack(">I", 12) + b"\0guest\0guest"
    kind = _short("x-queue-type") + b"S" + struct.pack(">I", 6) + b"quorum"
    declared = b"\0\0" + _short(queue) + b"\x02" + struct.pack(">I", len(kind)) + kind
    talk = (
        (b"AMQP\0\0\x09\x01", rb"\x00\x0a\x00\x0a.*\xce"),
        (_method(0, 10, 11, login + _short("en_US")), rb"\x00\x0a\x00\x1e.{8}\xce"),
        (
            _method(0, 10, 31, struct.pack(">HIH", 100, 131_072, 0))
            + _method(0, 10, 40, _short("/") + b"\0\0"),
            rb"\x00\x0a\x00\x29.\xce",
        ),
        (_method(1, 20, 10, b"\0"), rb"\x00\x14\x00\x0b.{4}\xce"),
        (_method(1, 50, 10, declared), rb"\x00\x32\x00\x0b.*\xce"),
    )
    for said, heard in talk:
        reading.socket.sendall(said)
        reading.until(heard)
    return reading


class RabbitmqSending:
    """A publisher with confirms."""

    together = 1

    def __init__(self, port: int, queue: str) -> None:
        reading = _rabbitmq(port, queue)
        self.socket = reading.socket
        self._rest = b""
        #: all up to here are confirmed, and some beyond
        self._confirmed = 0
        self._beyond: set[int] = set()
        self._publish = _method(1, 60, 40, b"\0\0" + _short("") + _short(queue) + b"\0")
        self.socket.sendall(_method(1, 85, 10, b"\0"))
        reading.until(rb"\x00\x55\x00\x0b\xce")

    def requests(self, prefix: str, count: int) -> list[bytes]:
        body = _frame091(3, 1, BODY)
        made = []
        for number in range(count):
            # Persistent, and with a message id like all others.
            properties = b"\x02" + _short(f"{prefix}-{number}")
            head = struct.pack(">HHQH", 60, 0, BODY_BYTES, 0x1080) + properties
            made.append(self._publish + _frame091(2, 1, head) + body)
        return made

    def answered(self, data: bytes) -> int:
        data = self._rest + data
        before, at = self._confirmed, 0
        beyond = self._beyond
        while len(data) - at >= 21:
            family, number, tag, many = struct.unpack_from(">HHQB", data, at + 7)
            if (family, number) != (60, 80):
                raise SystemExit(f"RabbitMQ said {data[at : at + 100]!r}")
            if many:
                self._confirmed = max(tag, self._confirmed)
                beyond = {one for one in beyond if one > tag}
            else:
                beyond.add(tag)
            while self._confirmed + 1 in beyond:
                self._confirmed += 1
                beyond.discard(self._confirmed)
            at += 21
        self._beyond = beyond
        self._rest = data[at:]
        return self._confirmed - before


class RabbitmqReceiving:
    """A consumer: all that came together is acknowledged together."""

    def __init__(self, port: int, queue: str) -> None:
        reading = _rabbitmq(port, queue)
        self.socket = reading.socket
        self._rest = b""
        self._seen = 0
        self.socket.sendall(_method(1, 60, 10, struct.pack(">IHB", 0, PREFETCH, 0)))
        reading.until(rb"\x00\x3c\x00\x0b\xce")
        self._consume = _method(1, 60, 20, b"\0\0" + _short(queue) + b"\0\0" + b"\0\0\0\0")

    def begin(self) -> None:
        self.socket.sendall(self._consume)

    def received(self, data: bytes) -> tuple[int, bytes]:
        if self._rest:
            data = self._rest + data
        at, end, seen = 0, len(data), self._seen
        while end - at >= 8 and end - at >= (size := _u32(data, at + 3)[0] + 8):
            seen += data[at] == 3
            at += size
        self._rest = data[at:]
        new, self._seen = seen - self._seen, seen
        return new, _method(1, 60, 80, struct.pack(">QB", seen, 1)) if new else b""


# NATS


class NatsSending:
    """A publisher to JetStream: each message with its id, each acknowledged for itself."""

    together = 1

    def __init__(self, port: int, queue: str) -> None:
        reading = _Reading(_connect(port))
        self.socket = reading.socket
        reading.until(rb"INFO [^\r]*\r\n")
        stream = {"name": queue, "subjects": [queue], "storage": "file", "num_replicas": 1}
        given = json.dumps({**stream, "duplicate_window": 600 * 10**9}).encode()
        told = {"verbose": False, "headers": True, "no_responders": True}
        # Each connection hears of its own messages only.
        name, inbox = queue.encode(), os.urandom(8).hex().encode()
        self.socket.sendall(
            b"CONNECT %b\r\nSUB %b.made 1\r\n" % (json.dumps(told).encode(), inbox)
            + b"SUB %b.done 2\r\n" % inbox
            + b"PUB $JS.API.STREAM.CREATE.%b %b.made %d\r\n" % (name, inbox, len(given))
            + given
            + b"\r\n"
        )
        made = reading.until(rb"MSG [0-9a-f]+.made 1 [^\r]*\r\n[^\r]*\r\n")[0]
        if b'"config"' not in made:
            raise SystemExit(f"NATS made no stream: {made!r}")
        self._head = b"HPUB %b %b.done " % (name, inbox)
        self._counter = _Counter(b'"seq":')

    def requests(self, prefix: str, count: int) -> list[bytes]:
        made = []
        for number in range(count):
            headers = b"NATS/1.0\r\nNats-Msg-Id: %b-%d\r\n\r\n" % (prefix.encode(), number)
            sizes = b"%d %d\r\n" % (len(headers), len(headers) + BODY_BYTES)
            made.append(self._head + sizes + headers + BODY + b"\r\n")
        return made

    def answered(self, data: bytes) -> int:
        if b'"error"' in data or b'"duplicate"' in data or b"NATS/1.0 503" in data:
            raise SystemExit(f"NATS said {data[:500]!r}")
        return self._counter.count(data)


# PostgreSQL


class PostgresSending:
    """A table as a queue: one INSERT per message, which does nothing for an existing id."""

    def __init__(self, folder: str, queue: str, together: int) -> None:
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(f"{folder}/.s.PGSQL.5432")
        reading = _Reading(connected)
        self.socket = connected
        self.together = together
        login = b"\0\x03\0\0user\0bench\0database\0postgres\0\0"
        insert = f"INSERT INTO {queue} (message_id, body) VALUES ($1, $2) ON CONFLICT DO NOTHING"
        types = struct.pack(">hii", 2, 25, 17)
        connected.sendall(
            struct.pack(">I", len(login) + 4)
            + login
            + self._message(b"P", b"insert\0" + insert.encode() + b"\0" + types)
            + self._message(b"S")
        )
        reading.until(rb"Z\x00\x00\x00\x05I.*Z\x00\x00\x00\x05I")
        self._commits = _Counter(b"Z\0\0\0\x05I")
        self._inserts = _Counter(b"INSERT 0 1\0")
        self._inserted = self._committed = 0

    def _message(self, kind: bytes, content: bytes = b"") -> bytes:
        return kind + struct.pack(">I", len(content) + 4) + content

    def requests(self, prefix: str, count: int) -> list[bytes]:
        execute, sync = self._message(b"E", b"\0\0\0\0\0"), self._message(b"S")
        made = []
        for number in range(count):
            binds = []
            for more in range(self.together):
                name = f"{prefix}-{number}-{more}".encode()
                values = struct.pack(">hi", 2, len(name)) + name
                values += struct.pack(">i", BODY_BYTES) + BODY
                bind = b"\0insert\0" + struct.pack(">hh", 1, 1) + values + b"\0\0"
                binds += [self._message(b"B", bind), execute]
            made.append(b"".join((*binds, sync)))
        return made

    def answered(self, data: bytes) -> int:
        """Count commits: what a statement answers may come before."""
        commits = self._commits.count(data)
        self._committed += commits
        self._inserted += self._inserts.count(data)
        if self._committed * self.together > self._inserted:
            raise SystemExit(f"PostgreSQL said {data[:500]!r}")
        return commits


def sending(kind: str, *given: Any) -> Wire:
    """Return a connection that sends, by the name of what it sends to."""
    found: Wire = _SENDING[kind](*given)
    return found


def receiving(kind: str, *given: Any) -> Receiving:
    found: Receiving = _RECEIVING[kind](*given)
    return found


_SENDING: dict[str, Any] = {
    "onibus": OnibusSending,
    "rabbitmq": RabbitmqSending,
    "nats": NatsSending,
    "postgres": PostgresSending,
}
_RECEIVING: dict[str, Any] = {"onibus": OnibusReceiving, "rabbitmq": RabbitmqReceiving}


def one_after_the_other(requests: list[bytes]) -> tuple[memoryview, list[int]]:
    """Return requests in one place, and where each begins and the last one ends."""
    places = [0]
    for request in requests:
        places.append(places[-1] + len(request))
    return memoryview(b"".join(requests)), places
