"""Response to a client that uses plain text on a TLS port."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from onibus.api.wire import PROBLEM, Problem
from onibus.operation.peers import Peer
from onibus.protocols.ended import ENDED

_BODY = msgspec.json.encode(
    Problem(
        type="plain-text",
        outcome="refused",
        title="this port requires TLS",
        status=403,
        detail="use https; if you sent a key, rotate it, because it was not encrypted",
    )
)
_ANSWER = (
    b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
) % (PROBLEM.encode(), len(_BODY))


class PlainTextRefused(asyncio.Protocol):
    """A protocol that rejects the first request, and closes."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._transport: Any = ENDED

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._peer.abort = transport.abort

    def data_received(self, data: bytes) -> None:
        self._transport.write(_ANSWER + _BODY)
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._peer.leave()
        self._transport = ENDED
