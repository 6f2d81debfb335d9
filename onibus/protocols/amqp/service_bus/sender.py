"""Senders: what clients send is stored, and settled when it is on the disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from onibus.broker import sending
from onibus.broker.replies import fail
from onibus.core.errors import InvalidArgument, InvalidOperation, OnibusError
from onibus.core.limits import BATCH_COUNT_MAX
from onibus.core.message import Message
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.connection import State
from onibus.protocols.amqp.decode import values_read
from onibus.protocols.amqp.errors import AmqpError
from onibus.protocols.amqp.link import Delivery, IncomingLink, Link, OutgoingLink
from onibus.protocols.amqp.runs import Run
from onibus.protocols.amqp.service_bus.conditions import condition_of
from onibus.protocols.amqp.service_bus.incoming import BATCH_FORMAT, read_batch, read_message

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.client import Client

_ACCEPTED = say.accepted()
#: Messages of batches, and values in them, that are read before others have their turn.
READ_A_SLICE = 500
VALUES_A_SLICE = 10_000


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


class _Single:
    """A message that came after a batch which is being read."""

    def __init__(self, node: SenderNode, delivery_id: int | None, payload: bytes) -> None:
        self._node, self._id, self._payload = node, delivery_id, payload
        self.whole = False
        self.stored = node.stored(delivery_id, len(payload))

    def read(self, count: int, most: int) -> int:
        """Read the message."""
        self.whole = True
        message = self._node.read_message(self._payload)
        self._node.keep(self._id, message, len(self._payload))
        return 1


class _Batch:
    """A batch that is read in slices, then stored whole or not at all."""

    def __init__(self, node: SenderNode, delivery_id: int | None, payload: bytes) -> None:
        self._node = node
        self.whole = False
        self.stored = node.stored(delivery_id, len(payload))
        self._source = node.read_batch(payload)
        self._messages: list[Message] = []
        self._admission: sending.Admission | None = None

    def read(self, count: int, most: int) -> int:
        """Read up to `count` messages, until `most` values were read; return how many.

        When the batch is whole, store it.
        """
        if self.stored.is_unwanted():
            raise InvalidOperation("the client closed the connection and nothing was stored")
        if self._admission is None:
            self._admission = self._node.admission()
        some: list[Message] = []
        for message in self._source:
            some.append(message)
            if len(some) == count or values_read() > most:
                break
        else:
            self.whole = True
        self._admission.admit_more(some)
        self._messages += some
        if self.whole:
            if not self._messages:
                raise InvalidArgument("a batch must have at least one message")
            self._node.send(self._messages, self._admission, self.stored)
        return len(some) + 1


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
        #: single messages of this burst, which are stored together when it is over: the ids and
        #: sizes of their deliveries, and they
        self._ids: list[int | None] = []
        self._sizes: list[int] = []
        self._messages: list[Message] = []
        #: batches that are read in slices, and what came after them
        self._queue: deque[_Batch | _Single] = deque()

    def received(self, delivery: Delivery) -> None:
        """Store a message when the burst is over, or a batch whole or not at all."""
        if delivery.state is not None:
            self._in_transaction(delivery)
            return
        delivery_id = None if delivery.settled else delivery.id
        if delivery.format == BATCH_FORMAT:
            self._take_batch(delivery_id, delivery.payload)
        else:
            self._take_single(delivery_id, delivery.payload, 0, len(delivery.payload))

    def _received_run(self, run: Run) -> None:
        """Take deliveries that came together."""
        data, deliveries = run.data, zip(run.ids, run.bounds, strict=True)
        if run.format == BATCH_FORMAT:
            for delivery_id, (start, end) in deliveries:
                self._take_batch(delivery_id, data[start:end])
            return
        take = self._take_single
        for delivery_id, (start, end) in deliveries:
            take(delivery_id, data, start, end)

    def _take_single(self, delivery_id: int | None, data: bytes, start: int, end: int) -> None:
        """Keep a message until the burst is over, or until batches before it are stored."""
        connection, size = self._client.connection, end - start
        connection.hold(size)
        connection.under_way += 1
        if self._queue:
            self._queue.append(_Single(self, delivery_id, data[start:end]))
            return
        try:
            message = read_message(data, start, end)
            if self._profile.quotas is not None:
                self._profile.check_fields(message)
        except Exception as error:
            fail(Stored(self._link, [delivery_id], size), error)
            return
        self.keep(delivery_id, message, size)

    def keep(self, delivery_id: int | None, message: Message, size: int) -> None:
        """Store a message when the burst is over."""
        if not self._ids:
            self._client.connection.later(self)
        self._ids.append(delivery_id)
        self._sizes.append(size)
        self._messages.append(message)

    def _take_batch(self, delivery_id: int | None, payload: bytes) -> None:
        connection = self._client.connection
        connection.hold(len(payload))
        connection.under_way += 1
        self._queue.append(_Batch(self, delivery_id, payload))
        if len(self._queue) == 1:
            self._read_on(READ_A_SLICE)

    def _read_on(self, count: int) -> None:
        """Read messages of batches, and those after them, for about a slice."""
        most = values_read() + VALUES_A_SLICE
        while self._queue:
            if count <= 0 or values_read() > most:
                self._client.broker.turns.soon(lambda: self._read_on(READ_A_SLICE))
                return
            one = self._queue[0]
            try:
                count -= one.read(count, most)
            except Exception as error:
                one.whole = True
                fail(one.stored, error)
            if one.whole:
                self._queue.popleft()

    def read_message(self, payload: bytes) -> Message:
        """Return a message that the tier accepts."""
        message = read_message(payload)
        self._profile.check_fields(message)
        return message

    def read_batch(self, payload: bytes) -> Iterator[Message]:
        """Yield the messages of a batch that the tier accepts."""
        self._profile.check_batch(len(payload), self._settings)
        for message in read_batch(payload):
            self._profile.check_fields(message)
            yield message

    def admission(self) -> sending.Admission:
        """Return a new batch on its way into the entity."""
        broker = self._client.broker
        return sending.Admission(broker, sending.open_for_sends(broker, self._entity))

    def send(self, batch: list[Message], admission: sending.Admission, stored: Stored) -> None:
        """Store a batch that was read."""
        # What came before it stays before it.
        self.flush()
        sending.send(
            self._client.broker,
            self._entity,
            batch,
            stored,
            strict=self._profile.strict_batches,
            admission=admission,
        )

    def stored(self, delivery_id: int | None, size: int) -> Stored:
        """Return what waits until a delivery is stored."""
        return Stored(self._link, [delivery_id], size)

    def flush(self) -> None:
        """Store what came singly in this burst: each by itself, but in one go."""
        if not self._ids:
            return
        ids, self._ids = self._ids, []
        sizes, self._sizes = self._sizes, []
        messages, self._messages = self._messages, []

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

    def _in_transaction(self, delivery: Delivery) -> None:
        try:
            transactions, size = self._client.transactions, len(delivery.payload)
            transaction, state = transactions.of(delivery.state, say.accepted(), size)
            if delivery.format == BATCH_FORMAT:
                # More than a transaction takes are not read.
                messages = list(islice(self.read_batch(delivery.payload), transaction.room + 1))
            else:
                messages = [self.read_message(delivery.payload)]
            # What came before it stays before it, and is read in one piece for once.
            self._read_on(BATCH_COUNT_MAX * (len(self._queue) + 1))
            self.flush()
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
        self.flush()
        self._client.forget(link)
