"""The client: every call of a server, on persistent connections."""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import TYPE_CHECKING, Self

from onibus.api.sessions import AcceptedOut
from onibus.client.aio.caller import AsyncTransport
from onibus.client.aio.claims import AsyncClaimCalls
from onibus.client.aio.clock import AsyncClockCalls
from onibus.client.aio.entities import AsyncEntityCalls
from onibus.client.aio.fifo import AsyncFifoReceiver
from onibus.client.aio.keys import AsyncKeyCalls
from onibus.client.aio.log import AsyncLogCalls
from onibus.client.aio.receiving import AsyncReceiver
from onibus.client.aio.sending import AsyncSendCalls
from onibus.client.aio.sessions import AsyncSessionReceiver
from onibus.client.aio.staging import AsyncStagingCalls
from onibus.client.aio.testing import AsyncTestCalls
from onibus.client.aio.tidying import AsyncTidyCalls
from onibus.client.aio.transactions import AsyncTransaction
from onibus.client.aio.transport import AsyncHttpTransport
from onibus.client.asking import WAIT_MS_MAX, path_of, post, without_none
from onibus.client.connecting import Target
from onibus.client.held import RENEW_MS
from onibus.client.retrying import Retry
from onibus.core.errors import NoSession
from onibus.extras import explained

# blocking: leave out
if TYPE_CHECKING:
    from onibus.bus import Bus
# blocking: go on


class AsyncClient(
    AsyncEntityCalls,
    AsyncSendCalls,
    AsyncTidyCalls,
    AsyncLogCalls,
    AsyncClaimCalls,
    AsyncStagingCalls,
    AsyncKeyCalls,
    AsyncClockCalls,
    AsyncTestCalls,
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
    ) -> AsyncClient:
        """Return a client for a connection string, or for http://host:port.

        With an address, `key_name` and `key`, or a `token`, are the credentials. `verify` is the
        file of a certificate to trust, or False to trust any server.
        """
        target = Target.parse(address)
        if key:
            target = Target(target.url, key_name, key, target.entity)
        credentials = target.credentials() if token is None else lambda: token
        transport = AsyncHttpTransport(
            target.url, credentials, verify=verify, connections=connections
        )
        return AsyncClient(transport, retry)

    # blocking: leave out
    @staticmethod
    def on(bus: Bus) -> AsyncClient:
        """Return a client of a Bus in this process: the same calls, without a network."""
        with explained():
            from onibus.client.aio.in_process import InProcess
        transport: AsyncTransport = InProcess(bus)
        return AsyncClient(transport)

    # blocking: go on

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def receiver(
        self,
        entity: str,
        *,
        dead_letters: bool = False,
        delete: bool = False,
        renew_ms: int = RENEW_MS,
    ) -> AsyncReceiver:
        """Return a receiver of a queue or subscription, or of its dead-letter queue.

        With `delete`, messages are deleted when they are received. Otherwise they are locked until
        they are settled, and their locks are renewed for `renew_ms`.
        """
        return AsyncReceiver(self, entity, dead_letters, delete, renew_ms)

    def fifo_receiver(self, entity: str) -> AsyncFifoReceiver:
        """Return a receiver of a FIFO queue."""
        return AsyncFifoReceiver(self, entity)

    async def accept_session(
        self,
        entity: str,
        session_id: str | None = None,
        *,
        owner: str = "",
        wait_ms: int = 0,
        renew_ms: int = RENEW_MS,
    ) -> AsyncSessionReceiver:
        """Lock a session, a named one or the next available, and return its receiver.

        `sessions` lists the holder of a session by the name `owner`.
        """
        while True:
            slice_ms = min(wait_ms, WAIT_MS_MAX)
            body = without_none(session_id=session_id, owner=owner, wait_ms=slice_ms)
            path = path_of("entities", entity, "sessions", "accept")
            wait_ms -= slice_ms
            try:
                told: AcceptedOut = await self.ask(post(path, body, wait_ms=slice_ms), AcceptedOut)
            except NoSession:
                if wait_ms <= 0:
                    raise
                continue
            return AsyncSessionReceiver(
                self, entity, told.session_id, told.token, told.locked_until_ms, renew_ms
            )

    def transaction(self) -> AsyncTransaction:
        """Begin a transaction, whose sends and settlements happen atomically."""
        return AsyncTransaction(self)
