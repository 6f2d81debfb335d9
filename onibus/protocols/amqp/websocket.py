"""AMQP over WebSocket, for clients behind proxies that let nothing but HTTP through.

A request to /$servicebus/websocket on the port of HTTP becomes a stream: what binary messages carry
is AMQP, however it is cut. The bytes go to an `AmqpProtocol` as if a socket had brought them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError, generate_accept_token

from onibus.protocols.amqp.serving import AmqpConnections
from onibus.security.origins import refuse_web_pages

PATH = b"/$servicebus/websocket"
_PATHS = (PATH, PATH.replace(b"$", b"%24"))
SUBPROTOCOL = "AMQPWSB10"
#: What every connection of AMQP begins with, whether SASL, TLS or AMQP itself comes first.
_AMQP = b"AMQP"
#: Why a stream ends (RFC 6455, 7.4.1).
_GOING_AWAY, _PROTOCOL_ERROR, _UNSUPPORTED = 1001, 1002, 1003


def is_wanted(url: bytes, headers: Mapping[str, str]) -> bool:
    """Tell whether a request asks for AMQP over WebSocket, in a way that can be answered."""
    offered = [one.strip() for one in headers.get("sec-websocket-protocol", "").split(",")]
    return (
        url.partition(b"?")[0].rstrip(b"/") in _PATHS
        and headers.get("upgrade", "").lower() == "websocket"
        and headers.get("sec-websocket-version") == "13"
        and bool(headers.get("sec-websocket-key"))
        and SUBPROTOCOL in offered
    )


def accepted(headers: Mapping[str, str]) -> bytes:
    """Return the answer after which the stream begins."""
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
    """Takes connections of HTTP over that want to speak AMQP."""

    def __init__(self, connections: AmqpConnections) -> None:
        self._connections = connections

    def take(
        self, transport: asyncio.Transport, url: bytes, headers: Mapping[str, str], rest: bytes
    ) -> bool:
        """Take a connection over, with what it sent ahead; tell whether it was."""
        if not is_wanted(url, headers):
            return False
        if self._connections.keys is None:
            refuse_web_pages(headers)
        transport.write(accepted(headers))
        bridge = WebSocketBridge(self._connections)
        transport.set_protocol(bridge)
        bridge.connection_made(transport)
        if rest:
            bridge.data_received(rest)
        return True

    def take_at_once(self, transport: asyncio.Transport, data: bytes) -> bool:
        """Take a connection over that speaks AMQP without asking; tell whether it does.

        Clients that manage entities and send messages have one connection string, with one port.
        """
        if not data.startswith(_AMQP):
            return False
        protocol = self._connections()
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
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()


class WebSocketBridge(asyncio.Protocol):
    """Messages of a WebSocket in, the bytes that they carry out; and back."""

    def __init__(self, connections: AmqpConnections) -> None:
        self._amqp = connections()
        self._frames = Connection(ConnectionType.SERVER)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._amqp.connection_made(_Stream(self, self._transport))

    def data_received(self, data: bytes) -> None:
        try:
            self._frames.receive_data(data)
            for event in self._frames.events():
                self._take(event)
        except RemoteProtocolError:
            self._say(CloseConnection(code=_PROTOCOL_ERROR))
            self._transport.close()

    def _take(self, event: Any) -> None:
        if isinstance(event, BytesMessage):
            self._amqp.data_received(bytes(event.data))
        elif isinstance(event, Ping):
            self._say(event.response())
        elif isinstance(event, CloseConnection):
            self._say(event.response())
            self._transport.close()
        elif isinstance(event, TextMessage):
            self._say(CloseConnection(code=_UNSUPPORTED))
            self._transport.close()

    def send(self, data: bytes) -> None:
        """Write bytes of AMQP."""
        self._say(BytesMessage(data=data))

    def end(self) -> None:
        """The AMQP connection is over."""
        self._say(CloseConnection(code=_GOING_AWAY))
        self._transport.close()

    def _say(self, event: Any) -> None:
        if self._frames.state is ConnectionState.CLOSED or self._transport.is_closing():
            return
        try:
            self._transport.write(self._frames.send(event))
        except LocalProtocolError:
            # The peer has said goodbye already: nothing is said after that.
            return

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._amqp.pause_writing()

    def resume_writing(self) -> None:
        self._amqp.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._amqp.connection_lost(error)
