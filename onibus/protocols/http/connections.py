"""All connections of a listener: how many there are, what they hold, and how they end."""

from __future__ import annotations

import asyncio

from onibus.operation.traffic import Traffic
from onibus.protocols.http.connection import Connection
from onibus.protocols.http.heads import Heads
from onibus.protocols.http.limits import Limits
from onibus.protocols.http.messages import App


class Connections:
    """All open connections of a listener."""

    def __init__(
        self, app: App, limits: Limits | None = None, traffic: Traffic | None = None
    ) -> None:
        self.app = app
        self.limits = limits or Limits()
        self.traffic = traffic or Traffic()
        self.open: set[Connection] = self.traffic.open
        self.heads = Heads(self.limits.unknown_bytes_max)
        #: bytes of bodies that are being read or worked on
        self.body_bytes = 0
        self.closing = False

    def __call__(self) -> Connection:
        return Connection(self)

    async def drain(self, seconds: float) -> None:
        """Take no more requests; wait for those under way, then close what is left."""
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
