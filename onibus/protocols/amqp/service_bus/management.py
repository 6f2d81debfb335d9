"""$management: requests about an entity, each with a response on the client's own link."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onibus.core.commands import HeldSession
from onibus.core.errors import InvalidOperation, SessionLockLost
from onibus.core.message import ReceivedMessage
from onibus.gateway.broker import Broker
from onibus.gateway.transacting import OpenTransaction
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.errors import NOT_IMPLEMENTED
from onibus.protocols.amqp.service_bus.awaited import Awaited, Bounded
from onibus.protocols.amqp.service_bus.operations import (
    locks,
    peeking,
    rules,
    scheduling,
    sessions,
)
from onibus.protocols.amqp.service_bus.operations.operation import Operation, session_of
from onibus.protocols.amqp.service_bus.places import Place
from onibus.protocols.amqp.service_bus.requests import AnsweringNode, Request
from onibus.protocols.service_bus_profile import Profile
from onibus.shard.replies import KeptReply

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.client import Client
    from onibus.protocols.amqp.service_bus.session_receiver import SessionReceiverNode

#: The link of the receiver or sender that makes a request.
ASSOCIATED_LINK = "associated-link-name"

#: How long the server may take for a request, in milliseconds.
SERVER_TIMEOUT = "com.microsoft:server-timeout"
_TIMEOUT_MS_MAX = 2**32 - 1

OPERATIONS: dict[str, Operation] = {
    **peeking.OPERATIONS,
    **locks.OPERATIONS,
    **scheduling.OPERATIONS,
    **sessions.OPERATIONS,
    **rules.OPERATIONS,
}


class ManagementNode(AnsweringNode):
    """Responds to requests about one entity, or its dead-letter queue."""

    def __init__(self, client: Client, place: Place) -> None:
        super().__init__()
        self._client = client
        path = place.path.removesuffix("/$management")
        #: the entity that is asked about
        self.place = place._replace(path=path)

    @property
    def broker(self) -> Broker:
        return self._client.broker

    @property
    def profile(self) -> Profile:
        return self._client.profile

    @property
    def write(self) -> Callable[[ReceivedMessage], bytes]:
        return self._client.writer()

    def answer(self, request: Request) -> None:
        operation = OPERATIONS.get(str(request.operation))
        if operation is None:
            text = f"there is no operation {request.operation!r}"
            self.say(request, 501, text, condition=NOT_IMPLEMENTED)
            return
        self._client.grant(operation.right, f"{self.place.path}/$management")
        if request.delivery.state is not None and not operation.transacts:
            raise InvalidOperation(f"{request.operation} cannot be part of a transaction")
        operation.run(self, request)

    def fail(self, request: Request, error: BaseException) -> None:
        self._client.transactions.spoil(request.delivery.state, error)
        super().fail(request, error)

    def ask(
        self,
        request: Request,
        command: Callable[[KeptReply], object],
        told: Callable[[Any], bytes] = lambda value: b"",
    ) -> None:
        """Give the broker a command, and respond with its result."""

        def done(kept: KeptReply) -> None:
            if kept.error is not None:
                self.fail(request, kept.error)
            else:
                self.say(request, 200, body=told(kept.value))

        self.awaited(request, done).ask(command)

    def transaction_of(self, request: Request) -> OpenTransaction | None:
        """Return the bus transaction that a request is part of; None if it has none."""
        delivery = request.delivery
        if delivery.state is None:
            return None
        found, _ = self._client.transactions.of(
            delivery.state, say.accepted(), len(delivery.payload)
        )
        return found

    def awaited(self, request: Request, then: Callable[[KeptReply], None]) -> Awaited:
        """Return an outcome that the client waits for, as long as its request says."""
        wait_ms = request.properties.get(SERVER_TIMEOUT)
        if type(wait_ms) is not int or not 0 < wait_ms <= _TIMEOUT_MS_MAX:
            # The client has no time left to wait for a response, or sets no bound.
            return Awaited(self._client.connection, then)
        return Bounded(self._client.connection, then, self.broker, wait_ms)

    def held_session(self, request: Request, session_id: str) -> SessionReceiverNode:
        """Return the receiver that holds a session for this client.

        Two receivers of one connection may name the same session: the one whose link the request
        names may have lost it to the other (B9).
        """
        found = self._client.sessions.get((self.place.entity, session_id))
        link_name = request.properties.get(ASSOCIATED_LINK)
        if found is None or (isinstance(link_name, str) and link_name != found.link.name):
            raise SessionLockLost(f"this receiver does not hold session {session_id!r}")
        return found

    def session_held(self, request: Request) -> HeldSession | None:
        """Return the session that a request names, with its holder's token; None if none."""
        session_id = session_of(request)
        return None if session_id is None else self.held_session(request, session_id).held

    def detached(self, link: Any) -> None:
        super().detached(link)
        self._client.forget(link)
