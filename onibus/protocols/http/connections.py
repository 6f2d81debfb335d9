"""All connections of a listener: their number, memory and end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from onibus.core.errors import OnibusError
from onibus.operation.peers import Bodies, Peer, Peers
from onibus.operation.traffic import Traffic
from onibus.protocols.http.connection import HttpConnection
from onibus.protocols.http.heads import Heads
from onibus.protocols.http.limits import Limits
from onibus.protocols.http.messages import App
from onibus.protocols.http.usual_heads import UsualHeads


class Upgrades(Protocol):
    """A protocol that takes connections over."""

    def take(
        self, peer: Peer, transport: Any, url: bytes, headers: Mapping[str, str], rest: bytes
    ) -> bool: ...

    def take_at_once(self, peer: Peer, transport: Any, data: bytes) -> bool: ...


class Connections:
    """All open connections of a listener."""

    def __init__(
        self,
        app: App,
        limits: Limits | None = None,
        traffic: Traffic | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.app = app
        self.limits = limits or Limits()
        self.traffic = traffic or Traffic()
        #: the peers of all listeners
        self.peers = peers or Peers(
            self.limits.connections_max, bodies=Bodies(self.limits.all_bodies_bytes_max)
        )
        self.open: set[HttpConnection] = self.traffic.open
        #: reads common headers without the parser
        self.heads: Heads | UsualHeads = Heads(self.limits.unknown_bytes_max)
        self.closing = False
        #: protocols that may take a connection over
        self.upgrades: Upgrades | None = None

    def __call__(self, peer: Peer | None = None) -> HttpConnection:
        return HttpConnection(self, self.peers.join() if peer is None else peer)

    def hand_over(
        self,
        connection: HttpConnection,
        transport: Any,
        url: bytes,
        headers: Mapping[str, str],
        rest: bytes,
    ) -> bool:
        """Offer a connection to another protocol; return whether it took it over."""
        if self.upgrades is None or self.closing:
            return False
        try:
            taken = self.upgrades.take(connection.peer, transport, url, headers, rest)
        except OnibusError:
            # Otherwise respond to it as a request for an unknown path.
            return False
        if taken:
            connection.let_go()
        return taken

    def hand_over_at_once(self, connection: HttpConnection, transport: Any, data: bytes) -> bool:
        """Offer a connection by its first bytes to another protocol; return whether it accepted."""
        if self.upgrades is None or self.closing:
            return False
        if not self.upgrades.take_at_once(connection.peer, transport, data):
            return False
        connection.let_go()
        return True

    async def drain(self, seconds: float) -> None:
        """Stop accepting requests, wait for those in progress, then close the rest."""
        self.closing = True
        for connection in list(self.open):
            connection.wind_up()
        deadline = asyncio.get_running_loop().time() + seconds
        while self.open and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        self.abort()

    def abort(self) -> None:
        """Close every connection at once."""
        for connection in list(self.open):
            connection.abort()
