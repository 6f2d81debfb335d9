"""Receivers: the broker sends what the client's credit, windows and reading speed allow.

Available messages are sent at once, as many as credit allows; for the rest a receiver waits in the
broker. After a number of messages, other receivers get their turn.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from onibus.core.errors import OnibusError
from onibus.core.message import ReceivedMessage
from onibus.directory.entity import Waiter
from onibus.gateway import receiving
from onibus.protocols.amqp.link import Delivery, Link, OutgoingLink
from onibus.protocols.amqp.service_bus.conditions import condition_of
from onibus.protocols.amqp.service_bus.places import Place
from onibus.protocols.amqp.service_bus.settlement import Settling
from onibus.shard.replies import KeptReply

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.client import Client

#: Messages in one go, and their bytes.
TURN_MAX = 200
TURN_BYTES_MAX = 1 << 20
#: A receiver waits as long as its link lives.
FOREVER_MS = 1 << 50


def tag_of(token: bytes) -> bytes:
    """Return a token as a delivery tag: the bytes of a GUID in the order that .NET writes it."""
    return _TAG(*_TOKEN(token))


_TOKEN = struct.Struct(">IHH8s").unpack
_TAG = struct.Struct("<IHH8s").pack


class EmptyNode:
    """A sub-queue that never has anything."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def received(self, delivery: Delivery) -> None:
        raise AssertionError("nobody sends here")

    def flowed(self, link: OutgoingLink) -> None:
        if link.drain:
            link.drained()

    def settled(self, link: OutgoingLink, ids: list[int], state: Any, settled: bool) -> None:
        """Ignore settlements: no delivery was sent here."""

    def detached(self, link: Link) -> None:
        self._client.forget(link)


class ReceiverNode:
    """A queue, a subscription or a dead-letter queue, for one receiver."""

    def __init__(self, client: Client, link: OutgoingLink, place: Place) -> None:
        self.client = client
        self.link = link
        self.place = place
        self._settling = Settling(client, link, place.entity)
        self._waiter: Waiter | None = None
        #: a receive is pending in the broker
        self._asked = False
        self._soon = False
        #: the server stops: request nothing more, and wait for pending messages
        self._stopping = False
        self._take = link.settles
        self._write = client.writer()

    # In

    def received(self, delivery: Delivery) -> None:
        raise AssertionError("nobody sends here")

    def flowed(self, link: OutgoingLink) -> None:
        """Handle a flow: the client has changed its credit."""
        if link.is_open:
            self._stop()
            self.fetch()

    def settled(self, link: OutgoingLink, ids: list[int], state: Any, settled: bool) -> None:
        self._settling.settle(ids, state, settled)

    def detached(self, link: Link) -> None:
        self._stop()
        self.client.forget(link)
        self.client.reading(self, False)

    # Out

    def fetch(self) -> None:
        """Send available messages, or wait for some."""
        link = self.link
        if self._asked or self._soon or self._stopping or not link.is_open:
            return
        limit = min(link.credit, link.session.room, TURN_MAX)
        if link.session.connection.is_full:
            # The client reads first what was written; then it gets more.
            self.client.reading(self, True)
            return
        if limit > 0:
            self._asked = True
            try:
                waiter = self.ask(limit, 0 if link.drain else FOREVER_MS, KeptReply(self._told))
            except OnibusError as error:
                self._asked = False
                self._end(error)
                return
            self._waiter = waiter if self._asked else None
        elif link.drain and not link.session.is_cutting:
            link.drained()

    def ask(self, limit: int, wait_ms: int, reply: KeptReply) -> Waiter | None:
        """Ask the broker for messages."""
        return receiving.receive(
            self.client.broker,
            self.place.entity,
            limit,
            wait_ms,
            reply,
            dead=self.place.dead,
            take=self._take,
            bytes_max=TURN_BYTES_MAX,
        )

    def _told(self, kept: KeptReply) -> None:
        """Handle the result of a receive."""
        self._asked = False
        self._waiter = None
        if self._stopping:
            self.link.session.connection.under_way -= 1
        if kept.error is not None:
            self._end(kept.error)
            return
        messages: list[ReceivedMessage] = kept.value
        link = self.link
        if not link.is_open:
            return
        write = self._write
        if self._take:
            for received in messages:
                # Nothing is locked: as in the service, the tag is empty.
                link.send(write(received), b"")
        else:
            link.send_all(
                [(write(one), tag_of(token), token) for one in messages if (token := one.token)]
            )
        if messages and (link.credit > 0 or link.drain):
            # Other waiting receivers get their turn first.
            self._soon = True
            self.client.broker.call_soon(self._again)
        elif link.drain and not link.session.is_cutting:
            link.drained()

    def _again(self) -> None:
        self._soon = False
        self.fetch()

    def stop(self) -> None:
        """Request nothing more; a pending receive, which may delete messages, is still sent."""
        self._stop()
        if not self._stopping and self._asked:
            self.link.session.connection.under_way += 1
        self._stopping = True

    def _stop(self) -> None:
        """Wait no longer; messages delivered already still arrive."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            drain, self.link.drain = self.link.drain, False
            receiving.stop_waiting(self.client.broker, waiter)
            self.link.drain = drain

    def _end(self, error: BaseException) -> None:
        condition, description, _ = condition_of(error, self.link)
        self.link.detach(condition, description)
