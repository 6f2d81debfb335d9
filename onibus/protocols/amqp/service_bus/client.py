"""One client: its credentials, its rights, and the nodes of its links.

Every link and every request asks `grant` first. A link lives as long as a token allows it; a client
that shows none is closed after a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from onibus.bus import Bus
from onibus.core.errors import (
    EntityNotFound,
    Forbidden,
    InvalidOperation,
    OnibusError,
    TooManyFailures,
    Unauthorized,
)
from onibus.core.message import ReceivedMessage
from onibus.directory import routing
from onibus.gateway.broker import Broker
from onibus.operation.peers import LOCAL, Peer
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.connection import CHANNEL_MAX, Connection
from onibus.protocols.amqp.errors import (
    CONNECTION_FORCED,
    RESOURCE_LIMIT_EXCEEDED,
    UNAUTHORIZED,
    AmqpError,
    SessionFailed,
)
from onibus.protocols.amqp.link import IncomingLink, Link, OutgoingLink
from onibus.protocols.amqp.service_bus.cbs import TokenNode
from onibus.protocols.amqp.service_bus.conditions import condition_of
from onibus.protocols.amqp.service_bus.decimals import PYTHON, readable
from onibus.protocols.amqp.service_bus.management import ManagementNode
from onibus.protocols.amqp.service_bus.outgoing import write_message
from onibus.protocols.amqp.service_bus.places import CBS, Place, path_of, place_of
from onibus.protocols.amqp.service_bus.receiver import EmptyNode, ReceiverNode
from onibus.protocols.amqp.service_bus.sender import SenderNode
from onibus.protocols.amqp.service_bus.session_receiver import (
    SESSION_FILTER,
    SessionReceiverNode,
    session_filter,
)
from onibus.protocols.amqp.service_bus.transactions import CoordinatorNode, Transactions
from onibus.protocols.service_bus_profile import RELAXED
from onibus.security.keys import Doorkeeper
from onibus.security.rights import ALL, Granted, Right
from onibus.security.sas import make_token

#: How long a client may show no token, as in Service Bus.
NAMELESS_S = 20.0
#: Tokens of one client: more are for more entities than it has links for.
TOKENS_MAX = 5_000
#: Links and sessions of a client that has shown none: $cbs needs two, and one.
NAMELESS_LINKS_MAX = 16
#: A message sent on such a link is forwarded from its entity to this one. A bus transaction spans
#: entities, so the message goes there directly, when the transaction is committed.
TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"
#: Tells senders how large a batch may be.
BATCH_BYTES_MAX = "com.microsoft:max-message-batch-size"
#: Deliveries that a sender may have under way.
CREDIT = 1_000
#: Kinds of links, with what each needs on its entity: one of these rights. Any token at all is
#: enough for the coordinator, and none is needed to put one. tools/rights.py shows it.
TOKENS, COORDINATOR = "link to $cbs", "link to the coordinator of transactions"
REQUESTS, SENDER, RECEIVER = "link to $management", "link that sends", "link that receives"
LINKS: dict[str, tuple[Right, ...] | None] = {
    TOKENS: None,
    COORDINATOR: (),
    REQUESTS: (Right.LISTEN, Right.SEND),
    SENDER: (Right.SEND,),
    RECEIVER: (Right.LISTEN,),
}


class Client:
    """The application of one connection."""

    def __init__(
        self, bus: Bus, keys: Doorkeeper | None, connection: Connection, peer: Peer = LOCAL
    ) -> None:
        self.bus = bus
        self.connection = connection
        self.profile = RELAXED
        self._keys = keys
        self._peer = peer
        #: the granted rights, by the resource that a SAS token was put for
        self._granted: dict[str, Granted] = {}
        #: how to check the same token again, when access keys were replaced
        self._asks: dict[str, Callable[[float], Granted]] = {}
        if keys is None:
            self._granted[""] = Granted("", ALL)
        else:
            connection.sessions_max = NAMELESS_LINKS_MAX
        #: links with their kind, and the path that they need a right on
        self._links: dict[Link, tuple[str, str]] = {}
        self._begun = time.time()
        self._find_wake_at()
        self.transactions = Transactions(self.broker)
        #: nodes that respond to requests, by their path
        self._tokens: TokenNode | None = None
        self._management: dict[str, ManagementNode] = {}
        self._unread: set[ReceiverNode] = set()
        #: receivers of sessions, for requests about the sessions that they hold
        self.sessions: dict[tuple[str, str], SessionReceiverNode] = {}

    @property
    def broker(self) -> Broker:
        return self.bus.broker

    def writer(self) -> Callable[[ReceivedMessage], bytes]:
        """Return how messages are written for this client."""
        if self.connection.product == PYTHON:
            return lambda received: readable(write_message(received))
        return write_message

    # Authentication

    def let_in(self, name: str, secret: str) -> bool:
        """Return whether an access key, shown by name, grants any right."""
        keys = self._keys
        if keys is None:
            return True

        def ask(now: float) -> Granted:
            # The key is checked as if it had signed a token just now.
            shown = make_token("sb://localhost/", name, secret, int(now) + 86_400)
            granted = keys.check(shown, now)
            return Granted(granted.name, granted.rights, entity=granted.entity)

        try:
            self._take("", ask)
        except TooManyFailures:
            raise
        except OnibusError:
            return False
        return True

    def put_token(self, resource: str, token: str) -> None:
        """Take a SAS token that the client puts, or reject it."""
        keys = self._keys
        if keys is not None:
            if len(self._granted) >= TOKENS_MAX and resource not in self._granted:
                raise Forbidden(f"too many tokens: a connection has at most {TOKENS_MAX}")
            self._take(resource, lambda now: keys.check(token, now))
        path = path_of(resource)
        # Service Bus rejects a token for an entity that does not exist, and keeps none.
        known = self.broker.namespace.entities
        if path and not path.startswith("$") and place_of(path).entity not in known:
            self._granted.pop(resource, None)
            self._asks.pop(resource, None)
            raise EntityNotFound(f"no entity {path!r}", path)

    def _take(self, resource: str, ask: Callable[[float], Granted]) -> None:
        self._peer.check_attempts()
        try:
            self._granted[resource] = ask(time.time())
        except Unauthorized:
            self._peer.failed()
            raise
        self._peer.know()
        self._asks[resource] = ask
        self.connection.sessions_max = CHANNEL_MAX + 1
        self._find_wake_at()

    def ask_again(self) -> None:
        """End the links that no key allows any longer, after keys were replaced."""
        now = time.time()
        for resource, ask in list(self._asks.items()):
            try:
                self._granted[resource] = ask(now)
            except OnibusError:
                del self._granted[resource], self._asks[resource]
        self._end_links(now)

    def grant(self, right: Right, path: str) -> None:
        """Authorise the client for an operation, or reject it."""
        self._check_known()
        now = time.time()
        refusal: Forbidden | None = None
        for granted in self._granted.values():
            try:
                granted.grant(right, path, now)
            except Forbidden as error:
                refusal = error
            else:
                return
        assert refusal is not None
        raise refusal

    def _check_known(self) -> None:
        if not self._granted:
            raise Unauthorized("no token: put one to $cbs first")

    def _grant_link(self, kind: str, path: str) -> None:
        """Authorise the client for a link, or reject it."""
        rights = LINKS[kind]
        if rights is None:
            return
        self._check_known()
        for right in rights[:-1]:
            try:
                self.grant(right, path)
            except Forbidden:
                continue
            return
        for right in rights[-1:]:
            self.grant(right, path)

    def wake_at(self) -> float:
        """Return the wall time at which tokens must be checked again."""
        return self._wake_at if self._granted else self._begun + NAMELESS_S

    def _find_wake_at(self) -> None:
        self._wake_at = min(
            (granted.until for granted in self._granted.values()), default=float("inf")
        )

    def check_tokens(self) -> None:
        """End the links of SAS tokens that have expired."""
        now = time.time()
        if not self._granted:
            if now >= self._begun + NAMELESS_S:
                self.connection.close(CONNECTION_FORCED, "no token was put to $cbs in time")
            return
        if all(granted.until > now for granted in self._granted.values()):
            return
        self._granted = {
            name: granted for name, granted in self._granted.items() if granted.until > now
        }
        self._asks = {name: ask for name, ask in self._asks.items() if name in self._granted}
        self._end_links(now)

    def _end_links(self, now: float) -> None:
        """End links that no token allows any longer."""
        for link, (kind, path) in list(self._links.items()):
            try:
                self._grant_link(kind, path)
            except OnibusError as error:
                link.detach(UNAUTHORIZED, f"the token for {path} is good no more: {error}")
        self._begun = now
        self._find_wake_at()

    def receivers(self, entity: str) -> Iterator[tuple[Any, ...]]:
        """Yield address, container, name, keys, credit, deliveries, place of receiver links."""
        keys = sorted({one.name for one in self._granted.values() if one.name})
        for link in self._links:
            node = link.node
            if isinstance(node, ReceiverNode) and node.place.entity == entity:
                about = (self._peer.address, self.connection.container_id, link.name, keys)
                held = node.accepted if isinstance(node, SessionReceiverNode) else None
                session = None if held is None else held.session_id
                yield (*about, node.link.credit, node.link.delivery_count, node.place.dead, session)

    # Links

    def attach(self, link: Link) -> None:
        """Connect a link to its node, or reject it."""
        if self._keys is None:
            self._peer.know()
        if not self._granted and self.connection.link_count > NAMELESS_LINKS_MAX:
            told = f"without a token a connection has at most {NAMELESS_LINKS_MAX} links"
            raise SessionFailed(RESOURCE_LIMIT_EXCEEDED, told)
        try:
            self.bus.check_alive()
            self._attach(link)
        except (OnibusError, AmqpError) as error:
            condition, description, _ = condition_of(error, link)
            self.forget(link)
            link.refuse(condition, description)

    def _attach(self, link: Link) -> None:
        attach = link.attach
        if isinstance(link, IncomingLink):
            if say.is_coordinator(attach.target):
                self._keep(link, COORDINATOR, "the coordinator")
                link.open(CoordinatorNode(self), CREDIT, _WORD_BYTES_MAX)
                return
            address = say.address_of(attach.target)
        else:
            address = say.address_of(attach.source)
        if path_of(address) == CBS:
            if self._tokens is None:
                self._tokens = TokenNode(self)
            self._open(link, self._tokens, _WORD_BYTES_MAX)
            return
        place = place_of(address)
        if place.management:
            self._keep(link, REQUESTS, place.path)
            self.broker.find(place.entity)
            self._open(link, self._management_of(place), _REQUEST_BYTES_MAX)
        elif isinstance(link, IncomingLink):
            self._grant_link(SENDER, place.path)
            self._attach_sender(link, place)
        else:
            assert isinstance(link, OutgoingLink)
            self._keep(link, RECEIVER, place.path)
            self._attach_receiver(link, place)

    def _keep(self, link: Link, kind: str, path: str) -> None:
        """Ask for what a link needs, now and when tokens or keys change."""
        self._grant_link(kind, path)
        self._links[link] = (kind, path)

    def _management_of(self, place: Place) -> ManagementNode:
        node = self._management.get(place.path)
        if node is None:
            node = self._management[place.path] = ManagementNode(self, place)
        return node

    def _open(self, link: Link, node: Any, request_bytes_max: int) -> None:
        if isinstance(link, IncomingLink):
            link.open(node, CREDIT, request_bytes_max)
        else:
            link.answer(node, 0)
            node.join(link)

    def _attach_sender(self, link: IncomingLink, place: Place) -> None:
        onward = (link.attach.properties or {}).get(TRANSFER_DESTINATION)
        if isinstance(onward, str):
            routing.open_for_sends(self.broker, place.entity)
            place = place_of(onward)
            self._grant_link(SENDER, place.path)
        if place.dead or place.management:
            raise InvalidOperation("cannot send to a dead-letter queue")
        node = SenderNode(self, link, place.entity)
        self._links[link] = (SENDER, place.path)
        link.properties[BATCH_BYTES_MAX] = to.ulong(node.batch_bytes_max)
        link.open(node, CREDIT, node.message_bytes_max)

    def _attach_receiver(self, link: OutgoingLink, place: Place) -> None:
        settings = self.broker.find(place.entity).outlet_settings()
        wanted = session_filter(link.attach)
        sessions = settings.requires_session and not place.dead
        if place.transfer:
            link.answer(EmptyNode(self), 0)
        elif wanted is None:
            if sessions:
                raise InvalidOperation(
                    f"{place.entity} requires sessions: accept a session to receive"
                )
            link.answer(ReceiverNode(self, link, place), self.message_bytes(place))
        elif not sessions:
            raise InvalidOperation(f"{place.entity} has no sessions ({SESSION_FILTER} was given)")
        else:
            SessionReceiverNode(self, link, place).accept(wanted)

    def message_bytes(self, place: Place) -> int:
        """Return how large a message of an entity can be."""
        entity = self.broker.find(place.entity)
        return self.profile.message_bytes((entity.topic or entity).log_settings)

    def reading(self, node: ReceiverNode, waits: bool) -> None:
        """Add or remove a receiver that waits until the client reads what was written."""
        if waits:
            self._unread.add(node)
        else:
            self._unread.discard(node)

    def read(self) -> None:
        """Fetch for waiting receivers: the client has read what was written."""
        waiting, self._unread = self._unread, set()
        for node in waiting:
            node.fetch()

    def stop_receiving(self) -> None:
        """Stop all deliveries: the server stops."""
        for link in list(self._links):
            if isinstance(link.node, ReceiverNode):
                link.node.stop()

    def passed_over(self, state: Any) -> None:
        """Fail the transaction of a delivery that was not taken."""
        told = "a message was too large, or its link or session had ended"
        self.transactions.spoil(state, InvalidOperation(told))

    def forget(self, link: Link) -> None:
        """Forget a link that has ended."""
        self._links.pop(link, None)

    # The life of the connection

    def closed(self) -> None:
        """Roll back open transactions and drop all links: the connection has ended."""
        self.transactions.forget_all()
        self._links.clear()
        self._unread.clear()
        # Nodes know their client: none of them may be kept by it.
        self._tokens = None
        self._management.clear()
        self.sessions.clear()


#: A management request: only messages to schedule are large.
_REQUEST_BYTES_MAX = 8 << 20
#: A SAS token, or a request to the coordinator: decoded before a client is authenticated.
_WORD_BYTES_MAX = 64 << 10
