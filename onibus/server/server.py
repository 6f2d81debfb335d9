"""One process: a bus and the listeners of its protocols.

`Server` is opened like a Bus. Stopping takes no new work, lets what is under way finish, and closes
the bus, which keeps its locks.
"""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Self

from onibus.bus import Bus
from onibus.operation.logs import log_alarms
from onibus.protocols.http.app import HttpApp
from onibus.protocols.http.connection import Connections, Limits
from onibus.protocols.http.routes import router
from onibus.security.keys import Keyring
from onibus.server.notify import READY, STOPPING, notify

#: How long requests that are under way may take to finish when the server stops.
DRAIN_SECONDS = 10.0


class Server:
    """A bus that others reach over the network."""

    def __init__(
        self,
        bus: Bus,
        keys: Keyring | None,
        *,
        host: str = "127.0.0.1",
        http_port: int = 5300,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        test_mode: bool = False,
    ) -> None:
        self.bus = bus
        self.app = HttpApp(bus, router(), keys, test_mode=test_mode)
        self._host = host
        self._http_port = http_port
        self._tls = tls
        self._connections = Connections(self.app, limits, self.app.traffic)
        self._listener: asyncio.Server | None = None

    @property
    def http_port(self) -> int:
        """The port that is listened on, also where 0 was asked for."""
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen, and say so."""
        log_alarms(self.bus.broker.alarms)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._connections, self._host, self._http_port, ssl=self._tls, backlog=4_096
        )
        notify(READY)

    async def stop(self) -> None:
        """Take no new work, finish what is under way, close the bus."""
        notify(STOPPING)
        if self._listener is not None:
            self._listener.close()
        await self._connections.drain(DRAIN_SECONDS)
        await self.bus.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
