"""Senders: what clients send is stored, and settled when it is on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onibus.broker import sending
from onibus.core.errors import OnibusError
from onibus.core.message import Message
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.connection import State
from onibus.protocols.amqp.errors import AmqpError
from onibus.protocols.amqp.link import Delivery, IncomingLink, Link, OutgoingLink
from onibus.protocols.amqp.runs import Run
from onibus.protocols.amqp.service_bus.conditions import condition_of
from onibus.protocols.amqp.service_bus.incoming import BATCH_FORMAT, read_batch, read_message
from onibus.shard.replies import fail

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.client import Client

_ACCEPTED = say.accepted()


def rejected(error: BaseException, link: Link) -> bytes:
    """Return the outcome of what is refused."""
    condition, description, _ = condition_of(error, link)
    return say.rejected(say.error(condition, description))


class Stored:
    """Waits until deliveries of a link are stored; a duplicate is accepted like any other (D1).

    Their bytes count as held until then: whatever becomes of them is told here, once. Nobody waits
    to hear of one whose id is None.
    """

    __slots__ = ("_held_bytes", "_ids", "_link", "_told")

    def __init__(self, link: IncomingLink, ids: list[int | None], held_bytes: int) -> None:
        self._link = link
        self._ids = ids
        self._held_bytes = held_bytes
        self._told = False

    def done(self) -> bool:
        return self._told

    def is_unwanted(self) -> bool:
        # What the client settled itself is stored even if it has closed the connection since.
        ended = self._link.session.connection.state is State.CLOSED
        return ended and all(one is not None for one in self._ids)

    def set_result(self, result: Any) -> None:
        self._settle(_ACCEPTED)

    def set_exception(self, error: BaseException) -> None:
        self._settle(rejected(error, self._link))

    def _settle(self, state: bytes) -> None:
        self._told = True
        session = self._link.session
        session.connection.hold(-self._held_bytes)
        session.connection.under_way -= len(self._ids)
        ids = [one for one in self._ids if one is not None]
        if ids:
            session.settle(ids, state)
        else:
            session.connection.stored()


class SenderNode:
    """A queue or a topic, for one who sends to it."""

    def __init__(self, client: Client, link: IncomingLink, entity: str) -> None:
        self._client = client
        self._link = link
        link.on_run = self._received_run
        found = sending.open_for_sends(client.broker, entity)
        self._entity = found.name
        self._profile = client.profile
        self._settings = found.log_settings
        self.message_bytes_max = client.profile.message_bytes(self._settings)
        self.batch_bytes_max = client.profile.batch_bytes(self._settings)

    def received(self, delivery: Delivery) -> None:
        """Store a message, or a batch atomically."""
        if delivery.state is not None:
            self._in_transaction(delivery)
            return
        delivery_id = None if delivery.settled else delivery.id
        if delivery.format == BATCH_FORMAT:
            self._take_batch(delivery_id, delivery.payload)
        else:
            self._take([delivery_id], delivery.payload, [(0, len(delivery.payload))])

    def _received_run(self, run: Run) -> None:
        """Store deliveries that arrived together."""
        if run.format == BATCH_FORMAT:
            for delivery_id, (start, end) in zip(run.ids, run.bounds, strict=True):
                self._take_batch(delivery_id, run.data[start:end])
        else:
            self._take(run.ids, run.data, run.bounds)

    def _take(
        self, given: Sequence[int | None], data: bytes, bounds: Sequence[tuple[int, int]]
    ) -> None:
        """Store single messages that arrived together, independently of each other."""
        connection, profile = self._client.connection, self._profile
        ids: list[int | None] = []
        sizes: list[int] = []
        messages: list[Message] = []
        connection.under_way += len(given)
        for delivery_id, (start, end) in zip(given, bounds, strict=True):
            connection.hold(end - start)
            try:
                message = read_message(data, start, end)
                if profile.quotas is not None:
                    profile.check_fields(message)
            except Exception as error:
                fail(Stored(self._link, [delivery_id], end - start), error)
                continue
            ids.append(delivery_id)
            sizes.append(end - start)
            messages.append(message)

        def stored(places: list[int]) -> Stored:
            if len(places) == len(ids):
                return Stored(self._link, ids, sum(sizes))
            held_bytes = sum([sizes[place] for place in places])
            return Stored(self._link, [ids[place] for place in places], held_bytes)

        def refuse(place: int, error: BaseException) -> None:
            fail(stored([place]), error)

        try:
            sending.send_each(self._client.broker, self._entity, messages, stored, refuse)
        except Exception as error:
            fail(Stored(self._link, ids, sum(sizes)), error)

    def _take_batch(self, delivery_id: int | None, payload: bytes) -> None:
        connection = self._client.connection
        connection.hold(len(payload))
        connection.under_way += 1
        stored = Stored(self._link, [delivery_id], len(payload))
        try:
            self._profile.check_batch(len(payload), self._settings)
            batch = read_batch(payload)
            for message in batch:
                self._profile.check_fields(message)
            strict = self._profile.strict_batches
            sending.send(self._client.broker, self._entity, batch, stored, strict=strict)
        except Exception as error:
            fail(stored, error)

    def _in_transaction(self, delivery: Delivery) -> None:
        try:
            transactions, size = self._client.transactions, len(delivery.payload)
            transaction, state = transactions.of(delivery.state, say.accepted(), size)
            if delivery.format == BATCH_FORMAT:
                self._profile.check_batch(size, self._settings)
                messages = read_batch(delivery.payload)
            else:
                messages = [read_message(delivery.payload)]
            for message in messages:
                self._profile.check_fields(message)
            transaction.send(self._entity, messages)
        except (OnibusError, AmqpError) as error:
            self._client.transactions.spoil(delivery.state, error)
            state = rejected(error, self._link)
        delivery.settle(state)

    def flowed(self, link: OutgoingLink) -> None:
        raise AssertionError("nobody receives here")

    def settled(self, link: OutgoingLink, ids: list[int], state: Any, settled: bool) -> None:
        raise AssertionError("nobody receives here")

    def detached(self, link: Link) -> None:
        self._client.forget(link)
