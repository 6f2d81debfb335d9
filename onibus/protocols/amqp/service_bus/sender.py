"""Senders: what clients send is stored, and settled when it is on the disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from onibus.core.errors import InvalidArgument, InvalidOperation, OnibusError
from onibus.core.limits import BATCH_COUNT_MAX
from onibus.core.message import Message
from onibus.directory import routing
from onibus.gateway import sending
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.connection import State
from onibus.protocols.amqp.decode import values_read
from onibus.protocols.amqp.errors import AmqpError
from onibus.protocols.amqp.link import Delivery, IncomingLink, Link, OutgoingLink
from onibus.protocols.amqp.runs import Run
from onibus.protocols.amqp.service_bus.conditions import condition_of
from onibus.protocols.amqp.service_bus.incoming import BATCH_FORMAT, read_batch, read_message
from onibus.shard.replies import fail

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.client import Client

_ACCEPTED = say.accepted()
#: Messages of batches, and values in them, that are read before others have their turn.
READ_A_SLICE = 500
VALUES_A_SLICE = 10_000


def rejected(error: BaseException, link: Link) -> bytes:
    """Return the outcome of a rejected delivery."""
    condition, description, _ = condition_of(error, link)
    return say.rejected(say.error(condition, description))


class Stored:
    """Waits until deliveries of a link are stored; a duplicate is accepted like any other (D1).

    Their bytes count as held until their outcome, which comes here once. No client waits for the
    outcome of a delivery whose id is None.
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


class _Singles:
    """Single messages that arrived after a batch which is being read."""

    def __init__(
        self,
        node: SenderNode,
        ids: Sequence[int | None],
        data: bytes,
        bounds: Sequence[tuple[int, int]],
    ) -> None:
        self._node, self._ids, self._data, self._bounds = node, ids, data, bounds
        self.whole = False

    def read(self, count: int, most: int) -> int:
        """Read and store the messages; return how many."""
        self.whole = True
        self._node.store(self._ids, self._data, self._bounds)
        return len(self._ids)


class _Batch:
    """A batch that is read in slices, then stored atomically."""

    def __init__(self, node: SenderNode, stored: Stored, payload: bytes) -> None:
        self._node = node
        self._stored = stored
        self._payload = payload
        self._source: Iterator[Message] | None = None
        self._messages: list[Message] = []
        self._admission: sending.Admission | None = None
        self.whole = False

    def read(self, count: int, most: int) -> int:
        """Read up to `count` messages, until `most` values were read; return how many.

        When the batch is whole, store it.
        """
        before = len(self._messages)
        try:
            self._read(count, most)
        except Exception as error:
            self.whole = True
            fail(self._stored, error)
        return len(self._messages) - before + 1

    def _read(self, count: int, most: int) -> None:
        if self._stored.is_unwanted():
            raise InvalidOperation("the client closed the connection and nothing was stored")
        if self._admission is None or self._source is None:
            self._admission = self._node.admission()
            self._source = self._node.read_batch(self._payload)
        some: list[Message] = []
        for message in self._source:
            some.append(message)
            if len(some) == count or values_read() > most:
                break
        else:
            self.whole = True
        self._messages += some
        self._admission.admit_more(some)
        if self.whole:
            if not self._messages:
                raise InvalidArgument("a batch must have at least one message")
            self._node.send(self._messages, self._admission, self._stored)


class SenderNode:
    """A queue or a topic, for one who sends to it."""

    def __init__(self, client: Client, link: IncomingLink, entity: str) -> None:
        self._client = client
        self._link = link
        link.on_run = self._received_run
        found = routing.open_for_sends(client.broker, entity)
        self._entity = found.name
        self._profile = client.profile
        self._settings = found.log_settings
        self.message_bytes_max = client.profile.message_bytes(self._settings)
        self.batch_bytes_max = client.profile.batch_bytes(self._settings)
        #: batches that are read in slices, and single messages that arrived after them
        self._queue: deque[_Batch | _Singles] = deque()

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
        self, ids: Sequence[int | None], data: bytes, bounds: Sequence[tuple[int, int]]
    ) -> None:
        """Store single messages that arrived together, after the batches before them."""
        connection = self._client.connection
        connection.under_way += len(ids)
        connection.hold(sum([end - start for start, end in bounds]))
        if self._queue:
            self._queue.append(_Singles(self, ids, data, bounds))
        else:
            self.store(ids, data, bounds)

    def store(
        self, given: Sequence[int | None], data: bytes, bounds: Sequence[tuple[int, int]]
    ) -> None:
        """Store single messages that arrived together, independently of each other."""
        profile = self._profile
        ids: list[int | None] = []
        sizes: list[int] = []
        messages: list[Message] = []
        for delivery_id, (start, end) in zip(given, bounds, strict=True):
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
        self._queue.append(_Batch(self, stored, payload))
        if len(self._queue) == 1:
            self._read_on()

    def _read_on(self, count: int = READ_A_SLICE) -> None:
        """Read messages of batches, and those after them, for about a slice."""
        most = values_read() + VALUES_A_SLICE
        while self._queue:
            if count <= 0 or values_read() > most:
                self._client.broker.turns.soon(self._read_on)
                return
            one = self._queue[0]
            count -= one.read(count, most)
            if one.whole:
                self._queue.popleft()

    def read_batch(self, payload: bytes) -> Iterator[Message]:
        """Return the messages of a batch, each read and checked against the tier when due."""
        self._profile.check_batch(len(payload), self._settings)
        messages = read_batch(payload)
        return messages if self._profile.quotas is None else map(self._checked, messages)

    def _checked(self, message: Message) -> Message:
        self._profile.check_fields(message)
        return message

    def admission(self) -> sending.Admission:
        """Return a new batch on its way into the entity."""
        broker = self._client.broker
        return sending.Admission(broker, routing.open_for_sends(broker, self._entity))

    def send(self, batch: list[Message], admission: sending.Admission, stored: Stored) -> None:
        """Store a batch that was read."""
        sending.send(
            self._client.broker,
            self._entity,
            batch,
            stored,
            strict=self._profile.strict_batches,
            admission=admission,
        )

    def _in_transaction(self, delivery: Delivery) -> None:
        try:
            transactions, size = self._client.transactions, len(delivery.payload)
            transaction, state = transactions.of(delivery.state, say.accepted(), size)
            if delivery.format == BATCH_FORMAT:
                # More than a transaction takes are not read.
                messages = list(islice(self.read_batch(delivery.payload), transaction.room + 1))
            else:
                messages = [read_message(delivery.payload)]
                self._profile.check_fields(messages[0])
            # What arrived before it stays before it, and is read at once.
            while self._queue:
                self._read_on(BATCH_COUNT_MAX)
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
