"""A server process: a bus and the listeners of its protocols.

`Server` opens like a Bus. Stopping rejects new requests, finishes those in progress, and closes the
bus, which keeps its locks.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from onibus.bus import Bus
from onibus.core.errors import Stopping
from onibus.operation.logs import log_alarms
from onibus.operation.peers import Peers
from onibus.protocols.amqp.serving import AmqpConnections, PlainAmqpRefused
from onibus.protocols.amqp.websocket import Upgrades
from onibus.protocols.atom.app import AtomApp
from onibus.protocols.http.app import HttpApp
from onibus.protocols.http.connections import Connections
from onibus.protocols.http.limits import Limits
from onibus.protocols.http.plain_text import PlainTextRefused
from onibus.protocols.http.routes import router
from onibus.protocols.service_bus_profile import RELAXED
from onibus.protocols.service_bus_profile import Profile as Tier
from onibus.protocols.sqs.profile import AWS, Profile
from onibus.protocols.sqs.queues import ACCOUNT
from onibus.protocols.sqs.serving import SqsConnections
from onibus.security.attempts import FailedAttempts
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import Keyring
from onibus.security.origins import Origins
from onibus.server.listener import Factory, Listener, Tls
from onibus.server.notify import READY, STOPPING, notify

#: Time for requests in progress to finish when the server stops.
DRAIN_SECONDS = 10.0


class CannotListen(Exception):
    """An address or port that is not available."""

    def __init__(self, option: str, host: str, port: int, error: OSError) -> None:
        flag = "--" + option.replace("_", "-")
        where = f"{host} port {port}"
        if error.errno == errno.EADDRINUSE:
            told = f"is in use: stop the program that listens there, or choose another with {flag}"
            super().__init__(f"{where} {told}")
        elif error.errno == errno.EACCES:
            told = f"requires privileges: choose a port from 1024 on with {flag}"
            super().__init__(f"{where} {told}")
        else:
            why = os.strerror(error.errno) if error.errno else error
            super().__init__(f"{where}: {why}: choose another --host")


class Server:
    """A bus with network listeners."""

    def __init__(
        self,
        bus: Bus,
        keys: KeptKeys | Keyring | None,
        *,
        host: str = "127.0.0.1",
        http_port: int = 5300,
        amqp_port: int | None = None,
        amqps_port: int | None = None,
        tls: Tls | None = None,
        plain_text: bool = True,
        limits: Limits | None = None,
        test_mode: bool = False,
        sqs_port: int | None = None,
        sqs_profile: Profile = AWS,
        sqs_account: str = ACCOUNT,
        service_bus_profile: Tier = RELAXED,
        allow_host: Iterable[str] = (),
    ) -> None:
        self.bus = bus
        keyring = keys.keyring if isinstance(keys, KeptKeys) else keys
        origins = Origins(keyring, {host, *allow_host} - {"0.0.0.0", "::"})
        self.app = HttpApp(
            bus, router(), keyring, limits=limits, test_mode=test_mode, origins=origins
        )
        self.app.kept_keys = keys if isinstance(keys, KeptKeys) else None
        self.app.management = AtomApp(bus, keys, origins, service_bus_profile)
        self._host = host
        self._http_port = http_port
        chosen = self.app.limits
        #: the peers of all listeners
        self.peers = Peers(
            chosen.connections_max,
            chosen.strangers_bytes_max,
            FailedAttempts(chosen.failures_max, chosen.failures_per_second),
            self.app.bodies,
        )
        self._connections = Connections(self.app, chosen, self.app.traffic, self.peers)
        plain_http = None if plain_text else PlainTextRefused

        def listener(factory: Factory, plain: Factory | None) -> Listener:
            seconds = chosen.head_seconds
            return Listener(factory, tls=tls, plain=plain, peers=self.peers, silent_seconds=seconds)

        self._listener = listener(self._connections, plain_http)
        self._amqp_port = amqp_port
        self.amqp = AmqpConnections(bus, keyring, peers=self.peers, profile=service_bus_profile)
        self.app.collector.amqp = self.amqp.traffic
        self.app.collector.peers = self.peers
        if amqp_port is not None:
            self._connections.upgrades = Upgrades(self.amqp, origins)
        self._amqp_listener = listener(self.amqp, None if plain_text else PlainAmqpRefused)
        self._amqps_port = amqps_port
        self._amqps_listener = listener(self.amqp, PlainAmqpRefused)
        self._sqs_port = sqs_port
        self.sqs = SqsConnections(
            bus,
            keyring,
            chosen,
            self.app.traffic,
            peers=self.peers,
            profile=sqs_profile,
            account=sqs_account,
            origins=origins,
        )
        self._sqs_listener = listener(self.sqs, plain_http)
        amqp = (self._amqp_listener, self._amqps_listener)
        self._listeners = (self._listener, *amqp, self._sqs_listener)

    @property
    def http_port(self) -> int:
        """The native API port, chosen by the system if 0 was configured."""
        return self._listener.port

    @property
    def amqp_port(self) -> int | None:
        """The AMQP port, or None."""
        return None if self._amqp_port is None else self._amqp_listener.port

    @property
    def amqps_port(self) -> int | None:
        """The port for AMQP over TLS only, or None."""
        return None if self._amqps_port is None else self._amqps_listener.port

    @property
    def sqs_port(self) -> int | None:
        """The SQS port, or None."""
        return None if self._sqs_port is None else self._sqs_listener.port

    async def start(self) -> None:
        """Listen, and log it."""
        log_alarms(self.bus.broker.alarms)
        await self._listen(self._listener, "http_port", self._http_port)
        if self._amqp_port is not None:
            await self._listen(self._amqp_listener, "amqp_port", self._amqp_port)
        if self._amqps_port is not None:
            await self._listen(self._amqps_listener, "amqps_port", self._amqps_port)
        if self._sqs_port is not None:
            await self._listen(self._sqs_listener, "sqs_port", self._sqs_port)
            self.sqs.resume()
        self.app.history.start()
        notify(READY)

    async def _listen(self, listener: Listener, option: str, port: int) -> None:
        try:
            await listener.start(self._host, port)
        except OSError as error:
            for started in self._listeners:
                started.close()
            raise CannotListen(option, self._host, port, error) from None

    async def stop(self, seconds: float = DRAIN_SECONDS) -> None:
        """Reject new requests, finish those in progress, and close the bus."""
        notify(STOPPING)
        self.app.history.stop()
        for listener in self._listeners:
            listener.close()
        self._connections.closing = self.sqs.closing = True
        if not self.bus.broker.closed:
            for entity in self.bus.broker.namespace.entities.values():
                for waiters in (entity, entity.log_waiters):
                    waiters.send_away(
                        Stopping("the server is stopping: retry when it is available again")
                    )
        await asyncio.gather(
            self._connections.drain(seconds), self.amqp.drain(seconds), self.sqs.drain(seconds)
        )
        await self.bus.close()

    def hurry(self) -> None:
        """Stop waiting for clients; commits in progress still finish."""
        self._connections.abort()
        self.amqp.abort()
        self.sqs.abort()

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
