"""Senders: what clients send is stored, and settled when it is on the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onibus.broker import sending
from onibus.broker.replies import fail
from onibus.core.errors import OnibusError
from onibus.core.message import Message
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.errors import AmqpError
from onibus.protocols.amqp.link import Delivery, Link, OutgoingLink
from onibus.protocols.amqp.service_bus.conditions import condition_of
from onibus.protocols.amqp.service_bus.incoming import BATCH_FORMAT, read_batch, read_message

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.client import Client

_ACCEPTED = say.accepted()


def rejected(error: BaseException) -> bytes:
    """Return the outcome of what is refused."""
    condition, description, _ = condition_of(error)
    return say.rejected(say.error(condition, description))


class Stored:
    """Waits until deliveries are on the disk. A duplicate is accepted like any other (D1).

    Their bytes count as held until then: whatever becomes of them is told here, once.
    """

    __slots__ = ("_deliveries", "_told")

    def __init__(self, deliveries: list[Delivery]) -> None:
        self._deliveries = deliveries
        self._told = False

    def done(self) -> bool:
        return self._told

    def set_result(self, result: Any) -> None:
        self._settle(_ACCEPTED)

    def set_exception(self, error: BaseException) -> None:
        self._settle(rejected(error))

    def _settle(self, state: bytes) -> None:
        self._told = True
        let_go(self._deliveries)
        ids = [delivery.id for delivery in self._deliveries if not delivery.settled]
        if ids:
            self._deliveries[0].link.session.settle(ids, state)


def hold(delivery: Delivery) -> None:
    """Count a delivery as held, and under way."""
    connection = delivery.link.session.connection
    connection.held_bytes += len(delivery.payload)
    connection.under_way += 1


def let_go(deliveries: list[Delivery]) -> None:
    """Count deliveries of one link no more."""
    connection = deliveries[0].link.session.connection
    connection.held_bytes -= sum([len(delivery.payload) for delivery in deliveries])
    connection.under_way -= len(deliveries)


class SenderNode:
    """A queue or a topic, for one who sends to it."""

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        found = sending.open_for_sends(client.broker, entity)
        self._entity = found.name
        self.message_bytes_max = found.log_settings.max_message_bytes
        #: single messages of this burst, which are stored together when it is over
        self._deliveries: list[Delivery] = []
        self._messages: list[Message] = []

    def received(self, delivery: Delivery) -> None:
        """Store a message when the burst is over, or a batch whole or not at all."""
        if delivery.state is not None:
            self._in_transaction(delivery)
            return
        hold(delivery)
        try:
            if delivery.format == BATCH_FORMAT:
                batch = read_batch(delivery.payload)
                # What came before it stays before it.
                self.flush()
                stored = Stored([delivery])
                sending.send(self._client.broker, self._entity, batch, stored)
                return
            message = read_message(delivery.payload)
        except Exception as error:
            fail(Stored([delivery]), error)
            return
        if not self._deliveries:
            self._client.connection.later(self)
        self._deliveries.append(delivery)
        self._messages.append(message)

    def flush(self) -> None:
        """Store what came singly in this burst: each by itself, but in one go."""
        if not self._deliveries:
            return
        deliveries, self._deliveries = self._deliveries, []
        messages, self._messages = self._messages, []

        def stored(places: list[int]) -> Stored:
            if len(places) == len(deliveries):
                return Stored(deliveries)
            return Stored([deliveries[place] for place in places])

        def refuse(place: int, error: BaseException) -> None:
            fail(Stored([deliveries[place]]), error)

        try:
            sending.send_each(self._client.broker, self._entity, messages, stored, refuse)
        except Exception as error:
            fail(Stored(deliveries), error)

    def _in_transaction(self, delivery: Delivery) -> None:
        try:
            transactions, size = self._client.transactions, len(delivery.payload)
            transaction, state = transactions.of(delivery.state, say.accepted(), size)
            if delivery.format == BATCH_FORMAT:
                messages = read_batch(delivery.payload)
            else:
                messages = [read_message(delivery.payload)]
            transaction.send(self._entity, messages)
        except (OnibusError, AmqpError) as error:
            self._client.transactions.spoil(delivery.state, error)
            state = rejected(error)
        delivery.settle(state)

    def flowed(self, link: OutgoingLink) -> None:
        raise AssertionError("nobody receives here")

    def settled(self, link: OutgoingLink, ids: list[int], state: Any, settled: bool) -> None:
        raise AssertionError("nobody receives here")

    def detached(self, link: Link) -> None:
        self.flush()
        self._client.forget(link)
