"""One process: a bus and the listeners of its protocols.

`Server` is opened like a Bus. Stopping takes no new work, lets what is under way finish, and closes
the bus, which keeps its locks.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from types import TracebackType
from typing import Self

from onibus.bus import Bus
from onibus.core.errors import Stopping
from onibus.operation.logs import log_alarms
from onibus.protocols.http.app import HttpApp
from onibus.protocols.http.connections import Connections
from onibus.protocols.http.limits import Limits
from onibus.protocols.http.plain_text import PlainTextRefused
from onibus.protocols.http.routes import router
from onibus.protocols.sqs.app import BODY_BYTES_MAX, SqsApp
from onibus.protocols.sqs.profile import AWS, Profile
from onibus.protocols.sqs.queues import ACCOUNT
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import Keyring
from onibus.server.listener import Listener
from onibus.server.notify import READY, STOPPING, notify

#: How long requests that are under way may take to finish when the server stops.
DRAIN_SECONDS = 10.0


class CannotListenOn(Exception):
    """The port of a protocol cannot be had."""

    def __init__(self, protocol: str, port: int, error: OSError) -> None:
        super().__init__(f"{protocol} on port {port}: {error}")
        self.protocol = protocol
        self.port = port
        self.error = error


class Server:
    """A bus that others reach over the network."""

    def __init__(
        self,
        bus: Bus,
        keys: KeptKeys | Keyring | None,
        *,
        host: str = "127.0.0.1",
        http_port: int = 5300,
        tls: ssl.SSLContext | None = None,
        plain_text: bool = True,
        limits: Limits | None = None,
        test_mode: bool = False,
        sqs_port: int | None = None,
        sqs_profile: Profile = AWS,
        sqs_account: str = ACCOUNT,
    ) -> None:
        self.bus = bus
        keyring = keys.keyring if isinstance(keys, KeptKeys) else keys
        self.app = HttpApp(bus, router(), keyring, test_mode=test_mode)
        self.app.kept_keys = keys if isinstance(keys, KeptKeys) else None
        self._host = host
        self._http_port = http_port
        self._connections = Connections(self.app, limits, self.app.traffic)
        self._listener = self._listening(self._connections, tls, plain_text=plain_text)
        #: None where nobody speaks SQS
        self._sqs_port = sqs_port
        sqs = self._sqs = SqsApp(bus, keyring, profile=sqs_profile, account=sqs_account)
        sqs.traffic.routes = self.app.traffic.routes
        bounded = replace(limits or Limits(), body_bytes_max=BODY_BYTES_MAX)
        self._sqs_connections = Connections(sqs, bounded, sqs.traffic)
        self._sqs_listener = self._listening(self._sqs_connections, tls, plain_text=plain_text)

    def _listening(
        self, connections: Connections, tls: ssl.SSLContext | None, *, plain_text: bool
    ) -> Listener:
        return Listener(
            connections,
            tls=tls,
            plain=None if plain_text else PlainTextRefused,
            silent_max=connections.limits.connections_max,
            silent_seconds=connections.limits.head_seconds,
        )

    @property
    def http_port(self) -> int:
        """The port that is listened on, also where 0 was asked for."""
        return self._listener.port

    @property
    def sqs_port(self) -> int:
        """The port of SQS."""
        return self._sqs_listener.port

    async def start(self) -> None:
        """Listen, and say so."""
        log_alarms(self.bus.broker.alarms)
        await self._listen("http", self._listener, self._http_port)
        if self._sqs_port is not None:
            await self._listen("sqs", self._sqs_listener, self._sqs_port)
            self._sqs.move_tasks.resume()
        notify(READY)

    async def _listen(self, protocol: str, listener: Listener, port: int) -> None:
        try:
            await listener.start(self._host, port)
        except OSError as error:
            raise CannotListenOn(protocol, port, error) from error

    async def stop(self, seconds: float = DRAIN_SECONDS) -> None:
        """Take no new work, finish what is under way, close the bus."""
        notify(STOPPING)
        for listener in (self._listener, self._sqs_listener):
            listener.close()
        self._connections.closing = self._sqs_connections.closing = True
        if not self.bus.broker.closed:
            for entity in self.bus.broker.namespace.entities.values():
                entity.send_away(Stopping("the server is stopping: ask again when it is back"))
        await self._sqs.move_tasks.stop()
        await asyncio.gather(self._connections.drain(seconds), self._sqs_connections.drain(seconds))
        await self.bus.close()

    def hurry(self) -> None:
        """Wait for nobody's answer any more; what is being committed is still finished."""
        self._connections.abort()
        self._sqs_connections.abort()

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
