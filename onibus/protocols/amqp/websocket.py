"""AMQP over WebSocket, for clients behind proxies that pass only HTTP.

A request to /$servicebus/websocket on the HTTP port becomes a stream: its binary messages carry
AMQP, split anywhere. An `AmqpProtocol` gets the bytes as if from a socket.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any, cast

from wsproto.frame_protocol import Frame, FrameDecoder, MessageDecoder, Opcode, ParseFailed
from wsproto.utilities import generate_accept_token

from onibus.operation.peers import Peer
from onibus.protocols.amqp.serving import LINGER_S, AmqpConnections
from onibus.protocols.ended import ENDED
from onibus.security.origins import Origins

PATH = b"/$servicebus/websocket"
_PATHS = (PATH, PATH.replace(b"$", b"%24"))
SUBPROTOCOL = "AMQPWSB10"
#: The first bytes of every AMQP connection, whether SASL, TLS or AMQP itself comes first.
_AMQP = b"AMQP"
#: Why a stream ends (RFC 6455, 7.4.1).
_NORMAL, _GOING_AWAY, _UNSUPPORTED = 1000, 1001, 1003
#: The first byte of a frame that is a message, or an end, as a whole.
_WHOLE = 0x80
#: Frames that are taken before others have their turn.
FRAMES_A_SLICE = 250


def is_wanted(url: bytes, headers: Mapping[str, str]) -> bool:
    """Return whether a request asks for AMQP over WebSocket in a form that the server supports."""
    offered = [one.strip() for one in headers.get("sec-websocket-protocol", "").split(",")]
    return (
        url.partition(b"?")[0].rstrip(b"/") in _PATHS
        and headers.get("upgrade", "").lower() == "websocket"
        and headers.get("sec-websocket-version") == "13"
        and bool(headers.get("sec-websocket-key"))
        and SUBPROTOCOL in offered
    )


def accepted(headers: Mapping[str, str]) -> bytes:
    """Return the response after which the stream begins."""
    token = generate_accept_token(headers["sec-websocket-key"].encode("latin-1")).decode()
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "upgrade: websocket",
        "connection: Upgrade",
        f"sec-websocket-accept: {token}",
        f"sec-websocket-protocol: {SUBPROTOCOL}",
        *("", ""),
    )
    return "\r\n".join(lines).encode("latin-1")


class Upgrades:
    """Takes over HTTP connections that switch to AMQP."""

    def __init__(self, connections: AmqpConnections, origins: Origins) -> None:
        self._connections = connections
        self._origins = origins

    def take(
        self,
        peer: Peer,
        transport: asyncio.Transport,
        url: bytes,
        headers: Mapping[str, str],
        rest: bytes,
    ) -> bool:
        """Take over a connection, with the bytes it sent ahead; return whether it was taken."""
        if not is_wanted(url, headers):
            return False
        self._origins.check(headers)
        transport.write(accepted(headers))
        bridge = WebSocketBridge(self._connections, peer)
        transport.set_protocol(bridge)
        bridge.connection_made(transport)
        if rest:
            bridge.data_received(rest)
        return True

    def take_at_once(self, peer: Peer, transport: asyncio.Transport, data: bytes) -> bool:
        """Take over a connection that speaks AMQP at once; return whether it does.

        Clients that both manage entities and send messages have one connection string, with one
        port.
        """
        if not data.startswith(_AMQP):
            return False
        protocol = self._connections(peer)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)
        return True


class _Stream(asyncio.Transport):
    """What an AMQP connection writes to: a transport that wraps bytes in messages."""

    def __init__(self, bridge: WebSocketBridge, transport: asyncio.Transport) -> None:
        super().__init__()
        self._bridge = bridge
        self._transport = transport

    def write(self, data: Any) -> None:
        self._bridge.send(bytes(data))

    def close(self) -> None:
        self._bridge.end()

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        self._bridge.pause()

    def resume_reading(self) -> None:
        self._bridge.resume()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()


class WebSocketBridge(asyncio.Protocol):
    """Messages of a WebSocket in, the bytes that they carry out; and back."""

    def __init__(self, connections: AmqpConnections, peer: Peer) -> None:
        self._amqp = connections(peer)
        self._frames = FrameDecoder(client=False)
        self._messages = MessageDecoder()
        self._transport: asyncio.Transport = ENDED
        #: reading and writing have ended
        self._over = False
        #: AMQP takes nothing more for now; frames are read when the loop comes round
        self._paused = self._soon = False
        self._reading = True
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._amqp.connection_made(_Stream(self, self._transport))

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._frames.receive_bytes(data)
        if not self._soon:
            self._read_on()

    def _read_on(self) -> None:
        """Take frames for a slice. Tiny ones take far longer than their bytes take to arrive."""
        self._soon = False
        count = 0
        try:
            while not self._over and not self._paused:
                if count == FRAMES_A_SLICE:
                    self._soon = True
                    asyncio.get_running_loop().call_soon(self._read_on)
                    break
                frame = self._frames.process_buffer()
                if frame is None:
                    break
                count += 1
                self._take(frame)
        except ParseFailed as error:
            self._close(_code(error.code))
        if not self._over:
            self._amqp.ahead(len(self._frames.buffer))
            self._read(not (self._paused or self._soon))

    def _read(self, wanted: bool) -> None:
        """Read from the socket, or leave the rest there."""
        if self._reading and not wanted:
            self._transport.pause_reading()
        elif wanted and not self._reading:
            self._transport.resume_reading()
        self._reading = wanted

    def pause(self) -> None:
        """Pass nothing more on: AMQP has to catch up."""
        self._paused = True
        self._read(False)

    def resume(self) -> None:
        """Pass on what waits, when the loop comes round."""
        self._paused = False
        if not self._soon and not self._over:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def _take(self, frame: Frame) -> None:
        content = cast("bytes", frame.payload)
        if frame.opcode is Opcode.PING:
            self._say(Opcode.PONG, content)
        elif frame.opcode is Opcode.CLOSE:
            # Echo the peer's code (RFC 6455, 5.5.1).
            self._close(content[:2] if len(content) >= 2 else _code(_NORMAL))
        elif frame.opcode is not Opcode.PONG:
            whole = self._messages.process_frame(frame)
            if whole.opcode is Opcode.TEXT:
                self._close(_code(_UNSUPPORTED))
            else:
                self._amqp.data_received(content)

    def send(self, data: bytes) -> None:
        """Write bytes of AMQP."""
        self._say(Opcode.BINARY, data)

    def end(self) -> None:
        """Close the stream: the AMQP connection has ended."""
        self._close(_code(_GOING_AWAY))

    def _say(self, opcode: Opcode, content: bytes) -> None:
        if not self._over and not self._transport.is_closing():
            self._transport.write(_frame(opcode, content))

    def _close(self, why: bytes) -> None:
        """Send a close frame, and close when the peer has read it or time is up."""
        if self._over:
            return
        self._say(Opcode.CLOSE, why)
        self._over = True
        self._transport.close()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LINGER_S, self._transport.abort)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._amqp.pause_writing()

    def resume_writing(self) -> None:
        self._amqp.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._over = True
        self._transport = ENDED
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._amqp.connection_lost(error)


def _code(code: int) -> bytes:
    return struct.pack("!H", code)


def _frame(opcode: Opcode, content: bytes) -> bytes:
    """Return an unmasked frame with a whole message."""
    first, length = _WHOLE | opcode, len(content)
    if length < 126:
        return struct.pack("!BB", first, length) + content
    if length < 1 << 16:
        return struct.pack("!BBH", first, 126, length) + content
    return struct.pack("!BBQ", first, 127, length) + content
