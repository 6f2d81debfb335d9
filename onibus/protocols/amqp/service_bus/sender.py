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
from onibus.protocols.amqp.service_bus.naming import name_message, needs_key

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.client import Client

_ACCEPTED = say.accepted()


def rejected(error: BaseException) -> bytes:
    """Return the outcome of what is refused."""
    condition, description, _ = condition_of(error)
    return say.rejected(say.error(condition, description))


class Stored:
    """Waits until a delivery is on the disk. A duplicate is accepted like any other (D1).

    Its bytes count as held from here on: whatever becomes of it is told here, once.
    """

    __slots__ = ("_delivery", "_told")

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._told = False
        connection = delivery.link.session.connection
        connection.held_bytes += len(delivery.payload)
        connection.under_way += 1

    def done(self) -> bool:
        return self._told

    def set_result(self, result: Any) -> None:
        self._settle(_ACCEPTED)

    def set_exception(self, error: BaseException) -> None:
        self._settle(rejected(error))

    def _settle(self, state: bytes) -> None:
        self._told = True
        delivery = self._delivery
        connection = delivery.link.session.connection
        connection.held_bytes -= len(delivery.payload)
        connection.under_way -= 1
        delivery.settle(state)


class SenderNode:
    """A queue or a topic, for one who sends to it."""

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        found = sending.open_for_sends(client.broker, entity)
        self._entity = found.name
        self._needs_key = needs_key(found)
        self.message_bytes_max = found.log_settings.max_message_bytes

    def received(self, delivery: Delivery) -> None:
        """Store a message, or a batch whole or not at all."""
        if delivery.state is not None:
            self._in_transaction(delivery)
            return
        stored = Stored(delivery)
        broker, payload = self._client.broker, delivery.payload
        try:
            if delivery.format == BATCH_FORMAT:
                sending.send(broker, self._entity, self._read_batch(payload), stored)
            else:
                message = read_message(payload)
                if message.message_id is None:
                    name_message(message, self._needs_key)
                sending.send_one(broker, self._entity, message, stored)
        except Exception as error:
            fail(stored, error)

    def _read_batch(self, payload: bytes) -> list[Message]:
        messages = read_batch(payload)
        for message in messages:
            if message.message_id is None:
                name_message(message, self._needs_key)
        return messages

    def _in_transaction(self, delivery: Delivery) -> None:
        try:
            transactions, size = self._client.transactions, len(delivery.payload)
            transaction, state = transactions.of(delivery.state, say.accepted(), size)
            if delivery.format == BATCH_FORMAT:
                messages = self._read_batch(delivery.payload)
            else:
                messages = [read_message(delivery.payload)]
                if messages[0].message_id is None:
                    name_message(messages[0], self._needs_key)
            transaction.send(self._entity, messages)
        except (OnibusError, AmqpError) as error:
            state = rejected(error)
        delivery.settle(state)

    def flowed(self, link: OutgoingLink) -> None:
        raise AssertionError("nobody receives here")

    def settled(self, link: OutgoingLink, ids: list[int], state: Any, settled: bool) -> None:
        raise AssertionError("nobody receives here")

    def detached(self, link: Link) -> None:
        self._client.forget(link)
