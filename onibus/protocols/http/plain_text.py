"""What a client is told that speaks plain text where TLS is asked for."""

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
        title="this port speaks TLS",
        status=403,
        detail="use https: plain text is refused here, and a key that was sent so may be known",
    )
)
_ANSWER = (
    b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
) % (PROBLEM.encode(), len(_BODY))


class PlainTextRefused(asyncio.Protocol):
    """Answers whatever is said first, and closes."""

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
