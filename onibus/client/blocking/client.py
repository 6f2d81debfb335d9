"""The client: every call of a server, on persistent connections."""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Self

from onibus.api.sessions import AcceptedOut
from onibus.client.asking import WAIT_MS_MAX, path_of, post, without_none
from onibus.client.blocking.claims import ClaimCalls
from onibus.client.blocking.clock import ClockCalls
from onibus.client.blocking.entities import EntityCalls
from onibus.client.blocking.fifo import FifoReceiver
from onibus.client.blocking.keys import KeyCalls
from onibus.client.blocking.log import LogCalls
from onibus.client.blocking.receiving import Receiver
from onibus.client.blocking.sending import SendCalls
from onibus.client.blocking.sessions import SessionReceiver
from onibus.client.blocking.staging import StagingCalls
from onibus.client.blocking.testing import TestCalls
from onibus.client.blocking.tidying import TidyCalls
from onibus.client.blocking.transactions import Transaction
from onibus.client.blocking.transport import HttpTransport
from onibus.client.connecting import Target
from onibus.client.held import RENEW_MS
from onibus.client.retrying import Retry
from onibus.core.errors import NoSession


class Client(
    EntityCalls,
    SendCalls,
    TidyCalls,
    LogCalls,
    ClaimCalls,
    StagingCalls,
    KeyCalls,
    ClockCalls,
    TestCalls,
):
    """A client of a server. Create it with `connect`."""

    @staticmethod
    def connect(
        address: str,
        *,
        key_name: str = "",
        key: str = "",
        token: str | None = None,
        verify: ssl.SSLContext | str | bool = True,
        connections: int = 100,
        retry: Retry | None = None,
    ) -> Client:
        """Return a client for a connection string, or for http://host:port.

        With an address, `key_name` and `key`, or a `token`, are the credentials. `verify` is the
        file of a certificate to trust, or False to trust any server.
        """
        target = Target.parse(address)
        if key:
            target = Target(target.url, key_name, key, target.entity)
        credentials = target.credentials() if token is None else lambda: token
        transport = HttpTransport(target.url, credentials, verify=verify, connections=connections)
        return Client(transport, retry)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def receiver(
        self,
        entity: str,
        *,
        dead_letters: bool = False,
        delete: bool = False,
        renew_ms: int = RENEW_MS,
    ) -> Receiver:
        """Return a receiver of a queue or subscription, or of its dead-letter queue.

        With `delete`, messages are deleted when they are received. Otherwise they are locked until
        they are settled, and their locks are renewed for `renew_ms`.
        """
        return Receiver(self, entity, dead_letters, delete, renew_ms)

    def fifo_receiver(self, entity: str) -> FifoReceiver:
        """Return a receiver of a FIFO queue."""
        return FifoReceiver(self, entity)

    def accept_session(
        self,
        entity: str,
        session_id: str | None = None,
        *,
        owner: str = "",
        wait_ms: int = 0,
        renew_ms: int = RENEW_MS,
    ) -> SessionReceiver:
        """Lock a session, a named one or the next available, and return its receiver.

        `sessions` lists the holder of a session by the name `owner`.
        """
        while True:
            slice_ms = min(wait_ms, WAIT_MS_MAX)
            body = without_none(session_id=session_id, owner=owner, wait_ms=slice_ms)
            path = path_of("entities", entity, "sessions", "accept")
            wait_ms -= slice_ms
            try:
                told: AcceptedOut = self.ask(post(path, body, wait_ms=slice_ms), AcceptedOut)
            except NoSession:
                if wait_ms <= 0:
                    raise
                continue
            return SessionReceiver(
                self, entity, told.session_id, told.token, told.locked_until_ms, renew_ms
            )

    def transaction(self) -> Transaction:
        """Begin a transaction, whose sends and settlements happen atomically."""
        return Transaction(self)
