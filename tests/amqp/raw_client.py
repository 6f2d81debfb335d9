"""A client that says exactly what it is told to: frames in, frames out, over a socket."""

from __future__ import annotations

import socket
import time
from typing import Any

from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.decode import decode
from onibus.protocols.amqp.frames import (
    PROTOCOL_HEADER,
    SASL,
    SASL_HEADER,
    Cutter,
    frame,
)
from onibus.protocols.amqp.service_bus import sections

_PATIENCE_S = 180


class RawClient:
    """One connection. Methods say something; `expect` waits for what the server says."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        self._cutter = Cutter(1 << 20)
        self._heard: list[tuple[int, list[Any], bytes]] = []
        self.ended = False
        #: the condition of the server's close
        self.closed_for = ""

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)

    # What is said

    def let_in(self) -> None:
        """Choose ANONYMOUS."""
        init = say.performative(0x41, [to.symbol("ANONYMOUS"), to.NULL, to.NULL])
        self.send(SASL_HEADER + frame(0, init, SASL))
        self.expect_header(SASL_HEADER)
        self.expect(0x40)
        assert self.expect(0x44)[1][0] == 0

    def open(self, *, frame_max: int = 65_536) -> None:
        self.let_in()
        opened = say.performative(say.OPEN, [to.string("raw"), to.NULL, to.uint(frame_max)])
        self.send(PROTOCOL_HEADER + frame(0, opened))
        self.expect_header(PROTOCOL_HEADER)
        self.expect(say.OPEN)

    def begin(self, channel: int = 0, window: int = 2**31 - 1) -> None:
        windows = [to.uint(0), to.uint(window), to.uint(window)]
        self.say(say.performative(say.BEGIN, [to.NULL, *windows]), channel)
        self.expect(say.BEGIN)

    def say(self, performative: bytes, channel: int = 0) -> None:
        self.send(frame(channel, performative))

    def attach(
        self, handle: int, role: bool, source: str, target: str, channel: int = 0, **more: Any
    ) -> list[Any]:
        """Attach a link; return the fields of the server's attach."""
        self.say(attach(handle, role, source, target, **more), channel)
        return self.expect(say.ATTACH)[1]

    def put_token(self, resource: str, token: str, handle: int = 100) -> int:
        """Show a token; return the status."""
        self.attach(handle, say.RECEIVER, "$cbs", "me")
        self.attach(handle + 1, say.SENDER, "me", "$cbs")
        self.flow(handle, 10)
        body = b"".join(
            (
                sections.section(
                    sections.PROPERTIES,
                    to.list_([to.string("1"), to.NULL, to.NULL, to.NULL, to.string("me")]),
                ),
                sections.section(
                    sections.APPLICATION_PROPERTIES,
                    to.text_map({"operation": to.string("put-token"), "name": to.string(resource)}),
                ),
                sections.section(sections.VALUE, to.string(token)),
            )
        )
        self.say(transfer(handle + 1, 0, body))
        payload = self.expect(say.TRANSFER)[2]
        found = {code: value for code, _, value, _ in sections.split(payload)}
        told, _ = decode(payload, found[sections.APPLICATION_PROPERTIES])
        status: int = told["status-code"]
        return status

    def flow(self, handle: int, credit: int, count: int = 0, drain: bool = False) -> None:
        self.say(say.flow(0, 2**31 - 1, 0, (handle, count, credit, drain)))

    # What is heard

    def expect_header(self, header: bytes) -> None:
        while (found := self._cutter.header()) is None:
            self._read()
        assert found == header

    def expect(self, code: int) -> tuple[int, list[Any], bytes]:
        """Return the next performative of that kind; others are passed over."""
        while True:
            for at, heard in enumerate(self._heard):
                if heard[0] == code:
                    del self._heard[: at + 1]
                    return heard
            self._heard = []
            self._take()

    def _take(self) -> None:
        # One by one: a protocol header may follow a frame.
        while not (found := self._cutter.frames(1)):
            self._read()
        for _, _, body in found:
            if body:
                code, fields, at = say.read_list(body)
                if code == say.CLOSE and fields[0] is not None:
                    self.closed_for = str(fields[0].value[0])
                self._heard.append((code, fields, body[at:]))

    def _read(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            self.ended = True
            raise EOFError("the server has closed the connection")
        self._cutter.feed(data)

    def is_closed(self) -> bool:
        """Tell whether the server closes the connection, soon."""
        deadline = time.monotonic() + _PATIENCE_S
        try:
            while time.monotonic() < deadline:
                self._read()
        except (EOFError, ConnectionError):
            return True
        return False


def attach(handle: int, role: bool, source: str, target: str, **more: Any) -> bytes:
    """Return an attach."""
    name = more.get("name", f"link-{handle}")
    modes = [to.ubyte(more.get("snd", 0)), to.ubyte(more.get("rcv", 0))]
    termini = [
        more.get("from_") or say.performative(say.SOURCE, [to.string(source)]),
        more.get("terminus") or say.performative(say.TARGET, [to.string(target)]),
    ]
    count = to.uint(0) if role == say.SENDER else to.NULL
    fields = [to.string(name), to.uint(handle), to.boolean(role), *modes, *termini]
    fields += [to.NULL, to.NULL, count]
    if "properties" in more:
        fields += [to.NULL, to.NULL, to.NULL, to.fields(more["properties"])]
    return say.performative(say.ATTACH, fields)


def transfer(
    handle: int,
    delivery_id: int,
    payload: bytes,
    *,
    settled: bool = False,
    more: bool = False,
    state: bytes = to.NULL,
    message_format: int = 0,
) -> bytes:
    """Return a transfer with its payload."""
    fields = [to.uint(handle), to.uint(delivery_id), to.binary(b"%d" % delivery_id)]
    fields += [to.uint(message_format), to.boolean(settled), to.boolean(more), to.NULL, state]
    return say.performative(say.TRANSFER, fields) + payload


def message(body: bytes, message_id: str | None = None) -> bytes:
    """Return a message with one data section."""
    head = b""
    if message_id is not None:
        head = sections.section(sections.PROPERTIES, to.list_([to.string(message_id)]))
    return head + sections.data_section(body)
