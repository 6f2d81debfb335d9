"""Links: one direction of deliveries between a client and a node, with its credit.

A link is an `IncomingLink` if the client sends and an `OutgoingLink` if it receives. It leads to a
`Node`, which the application chooses when the link is attached, at once or later. Between the
attach and its response a link is PENDING. Nothing arrives on it then, since a sender has no credit
yet.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from onibus.protocols import tracking
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.errors import (
    ILLEGAL_STATE,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    RESOURCE_LIMIT_EXCEEDED,
    LinkFailed,
    SessionFailed,
)
from onibus.protocols.amqp.performatives import Attach, Flow, Transfer
from onibus.protocols.amqp.runs import Run

if TYPE_CHECKING:
    from onibus.protocols.amqp.session import Session

SERIAL = 0xFFFFFFFF
#: Deliveries of a connection that are not whole: the largest message, and a little.
UNFINISHED_BYTES_MAX = 112 << 20


class LinkState(Enum):
    """Where a link is in its life."""

    PENDING = "attached by the peer, not answered"
    ATTACHED = "attached"
    DETACHING = "detached by us, the peer has not said so yet"
    DETACHED = "gone"


#: (state, input) → state; other pairs are illegal.
LINK_STATES = {
    (LinkState.PENDING, "answer"): LinkState.ATTACHED,
    (LinkState.PENDING, "refuse"): LinkState.DETACHING,
    (LinkState.PENDING, "detached"): LinkState.DETACHED,
    (LinkState.ATTACHED, "detach"): LinkState.DETACHING,
    (LinkState.ATTACHED, "detached"): LinkState.DETACHED,
    (LinkState.DETACHING, "detached"): LinkState.DETACHED,
}


class Delivery:
    """A message that a client sent."""

    __slots__ = ("format", "id", "link", "payload", "settled", "state")

    def __init__(
        self,
        link: IncomingLink,
        delivery_id: int,
        message_format: int,
        payload: bytes,
        settled: bool = False,
        state: Any = None,
    ) -> None:
        self.link = link
        self.id = delivery_id
        self.format = message_format
        self.payload = payload
        #: the sender waits for no outcome
        self.settled = settled
        #: a transactional state, or None
        self.state = state

    def settle(self, state: bytes) -> None:
        """Send its outcome to the sender."""
        if not self.settled:
            self.link.session.settle([self.id], state)


class Node(Protocol):
    """What a link leads to."""

    def received(self, delivery: Delivery) -> None:
        """Handle a delivery of a client."""

    def flowed(self, link: OutgoingLink) -> None:
        """Handle a flow: the client has changed its credit."""

    def settled(self, link: OutgoingLink, ids: list[int], state: Any, settled: bool) -> None:
        """Handle the outcome that a client asks for."""

    def detached(self, link: Link) -> None:
        """Handle the end of the link."""


class Link:
    """What both directions have in common."""

    incoming = False

    def __init__(self, session: Session, attach: Attach) -> None:
        self.session = session
        self.attach = attach
        self.name = attach.name
        self.handle = attach.handle
        self.state = LinkState.PENDING
        self.node: Node | None = None
        #: the termini sent to the client: its own addresses, and what the node adds
        self.source: bytes = say.source(attach.source)
        self.target: bytes = say.target(attach.target)
        #: properties sent to the client, encoded
        self.properties: dict[str, bytes] = {}

    @property
    def is_open(self) -> bool:
        return self.state is LinkState.ATTACHED

    def advance(self, event: str) -> None:
        """Take the link to its next state."""
        following = LINK_STATES.get((self.state, event))
        if following is None:
            raise SessionFailed(
                ILLEGAL_STATE, f"unexpected {event} on a link in state {self.state.value}"
            )
        self.state = following

    def answer(self, node: Node, message_bytes_max: int) -> None:
        """Attach the link to a node."""
        self.advance("answer")
        self.node = node
        self._say_attached(self.source, self.target, message_bytes_max)

    def refuse(self, condition: str, description: str) -> None:
        """Do not attach the link: both termini null, then a detach that says why."""
        self.advance("refuse")
        self._say_attached(to.NULL, to.NULL, 0)
        self.session.say(say.detach(self.handle, say.error(condition, description)))
        self.session.dropped(self)

    def detach(self, condition: str, description: str) -> None:
        """End the link for a reason."""
        if self.state is LinkState.PENDING:
            self.refuse(condition, description)
            self.forget()
        elif self.state is LinkState.ATTACHED:
            self.advance("detach")
            self.session.say(say.detach(self.handle, say.error(condition, description)))
            self.session.dropped(self)
            self.forget()

    def forget(self) -> None:
        """Let the node go."""
        node, self.node = self.node, None
        if node is not None:
            node.detached(self)

    def _say_attached(self, source: bytes, target: bytes, message_bytes_max: int) -> None:
        asked = self.attach
        modes = [
            to.ubyte(say.MIXED if asked.snd_settle_mode is None else asked.snd_settle_mode),
            to.ubyte(asked.rcv_settle_mode or say.FIRST),
        ]
        count = to.NULL if self.incoming else to.uint(0)
        fields = [
            to.string(self.name),
            to.uint(self.handle),
            to.boolean(not asked.role),
            *modes,
            source,
            target,
            to.NULL,
            to.NULL,
            count,
            to.ulong(message_bytes_max),
            to.NULL,
            to.NULL,
            to.fields(self.properties) if self.properties else to.NULL,
        ]
        self.session.say(say.performative(say.ATTACH, fields))


class IncomingLink(Link):
    """A client sends on it."""

    incoming = True

    def __init__(self, session: Session, attach: Attach) -> None:
        super().__init__(session, attach)
        self.credit = 0
        self._granted = 0
        self.delivery_count = attach.initial_delivery_count or 0
        self._bytes_max = 0
        #: where the node takes whole deliveries together
        self.on_run: Callable[[Run], None] | None = None
        self._first: Transfer | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def open(self, node: Node, credit: int, message_bytes_max: int) -> None:
        """Attach the link to a node and let the client send."""
        self._bytes_max = message_bytes_max
        self.answer(node, message_bytes_max)
        self._granted = credit
        self.grant()

    def grant(self) -> None:
        """Grant the client more credit; `held_bytes` bounds the messages not stored yet."""
        self.credit = self._granted
        self.session.flow((self.handle, self.delivery_count, self.credit, False))

    def take_run(self, run: Run) -> bool:
        """Take deliveries that came together, if all can be taken; return whether they were."""
        if (
            self.on_run is None
            or self._first is not None
            or self.state is not LinkState.ATTACHED
            or run.bytes_max > self._bytes_max
        ):
            return False
        self.on_run(run)
        left = len(run.ids)
        while left:
            # Stop where the next credit is granted, as if they had arrived one by one.
            step = min(left, max(self.credit - self._granted // 2, 1))
            self.session.count_in(step)
            self._count(step)
            self._top_up()
            left -= step
        return True

    def transfer(self, transfer: Transfer, payload: bytes) -> None:
        """Take a delivery, or a part of one."""
        if self.state is LinkState.DETACHING:
            self.session.connection.passed_over(transfer.state)
            return
        if self.node is None:
            raise SessionFailed(
                ILLEGAL_STATE, f"transfer on link {self.name!r}, which is not attached"
            )
        if self._first is None:
            if transfer.delivery_id is None:
                raise LinkFailed(
                    INVALID_FIELD, "the first transfer of a delivery has no delivery-id"
                )
            if not transfer.more and not transfer.aborted:
                self._take(transfer, payload, len(payload))
                return
            self._first = transfer
        if transfer.aborted:
            self._clear()
            return
        self._size += len(payload)
        connection = self.session.connection
        if self._size > self._bytes_max:
            # It will be rejected when its last part arrives; nothing of it is kept until then.
            self._drop_parts()
        elif connection.unfinished_bytes + len(payload) > UNFINISHED_BYTES_MAX:
            # Waiting does not help: nothing of them is stored before it is whole.
            told = f"deliveries that are not whole have at most {UNFINISHED_BYTES_MAX} bytes"
            raise LinkFailed(RESOURCE_LIMIT_EXCEEDED, told)
        elif transfer.more and connection.bodies.crowded:
            told = "too much is being sent or received at once: try again later"
            raise LinkFailed(RESOURCE_LIMIT_EXCEEDED, told)
        else:
            self._parts.append(payload)
            self.session.held(len(payload))
        if not transfer.more:
            first, whole, size = self._first, b"".join(self._parts), self._size
            if transfer.settled or transfer.state is not None:
                first = first._replace(
                    settled=transfer.settled or first.settled, state=transfer.state or first.state
                )
            self._clear()
            self._take(first, whole, size)

    def _drop_parts(self) -> None:
        self.session.held(-sum(map(len, self._parts)))
        self._parts = []

    def _clear(self) -> None:
        self._drop_parts()
        self._first, self._size = None, 0

    def _take(self, transfer: Transfer, payload: bytes, size: int) -> None:
        self._count(1)
        assert self.node is not None
        assert transfer.delivery_id is not None
        delivery = Delivery(
            self,
            transfer.delivery_id,
            transfer.message_format or 0,
            payload,
            bool(transfer.settled),
            transfer.state,
        )
        if size > self._bytes_max:
            told = (
                f"The received message (delivery-id:{transfer.delivery_id}, size:{size} bytes) "
                f"exceeds the limit ({self._bytes_max} bytes) currently allowed on the link."
            )
            connection = self.session.connection
            connection.passed_over(transfer.state)
            told = tracking.tracked(told, connection.hostname, "")
            delivery.settle(say.rejected(say.error(MESSAGE_SIZE_EXCEEDED, told)))
        else:
            self.node.received(delivery)
        self._top_up()

    def _count(self, deliveries: int) -> None:
        self.credit -= deliveries
        self.delivery_count = (self.delivery_count + deliveries) & SERIAL

    def _top_up(self) -> None:
        if self.credit * 2 <= self._granted and self.is_open:
            self.grant()

    def forget(self) -> None:
        if self._first is not None:
            self.session.connection.passed_over(self._first.state)
        self._clear()
        self.on_run = None
        super().forget()


class OutgoingLink(Link):
    """A client receives on it."""

    def __init__(self, session: Session, attach: Attach) -> None:
        super().__init__(session, attach)
        self.credit = 0
        self.drain = False
        self.delivery_count = 0
        #: the client asks for deliveries that are settled already
        self.settles = attach.snd_settle_mode == say.SETTLED

    def flow(self, flow: Flow) -> None:
        """Take the credit that a client sends."""
        if flow.link_credit is not None:
            seen = 0 if flow.delivery_count is None else flow.delivery_count
            left = (seen + flow.link_credit - self.delivery_count) & SERIAL
            self.credit = left if left < 1 << 31 else 0
        self.drain = bool(flow.drain)
        if self.node is not None:
            self.node.flowed(self)
        if flow.echo and self.is_open:
            self.say_flow()

    def send(self, payload: bytes, tag: bytes, token: bytes | None = None) -> None:
        """Send a message: settled already, unless there is a token by which it will be."""
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & SERIAL
        self.session.send(self, payload, tag, token)

    def send_all(self, deliveries: list[tuple[bytes, bytes, bytes]]) -> None:
        """Send messages that will be settled: the payload, tag and token of each."""
        self.credit -= len(deliveries)
        self.delivery_count = (self.delivery_count + len(deliveries)) & SERIAL
        self.session.send_all(self, deliveries)

    def drained(self) -> None:
        """There is nothing more: use the credit up, and say so."""
        self.delivery_count = (self.delivery_count + self.credit) & SERIAL
        self.credit = 0
        self.say_flow(drain=True)
        self.drain = False

    def say_flow(self, drain: bool = False) -> None:
        self.session.flow_of(self, drain)
