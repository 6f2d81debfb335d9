"""Sending: admit, route, gather; one batch a partition goes through the core with the commit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from onibus.broker.entity import Entity, Seat
from onibus.broker.message_store import MessageStore, SendRequest
from onibus.broker.replies import Outcome, Reply, answer, fail
from onibus.broker.routing import Part, any_seat, route, seat_of, size_of
from onibus.core.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    OnibusError,
    PartitionOffline,
    Refused,
    Unknown,
)
from onibus.core.limits import BATCH_COUNT_MAX
from onibus.core.message import Message, Sent
from onibus.core.path.admit import Prepared, admit
from onibus.core.path.enqueue import find_duplicates
from onibus.core.path.enqueue import send as send_to_partition

if TYPE_CHECKING:
    from onibus.broker.broker import Broker


def send_one(broker: Broker, name: str, message: Message, reply: Reply) -> None:
    """Store one message; the reply gets a list of one `Sent` when it is durable."""
    entity = open_for_sends(broker, name)
    prepared = admit(message, entity.log_settings, broker.namespace.secret)
    seat = seat_of(entity, prepared)
    keyless = prepared.key is None and len(entity.seats) > 1
    _put(broker, SendRequest(seat, [prepared], reply, keyless, len(prepared.row)))


def send(broker: Broker, name: str, messages: Sequence[Message], reply: Reply) -> None:
    """Store messages; the reply gets a `Sent` for each when all are durable."""
    entity = open_for_sends(broker, name)
    if type(messages) not in (list, tuple) or not 0 < len(messages) <= BATCH_COUNT_MAX:
        raise InvalidArgument(f"a batch is a list of 1 to {BATCH_COUNT_MAX} messages")
    settings, secret = entity.log_settings, broker.namespace.secret
    batch = [admit(message, settings, secret) for message in messages]
    parts = route(entity, batch)
    if len(parts) == 1:
        seat, _, keyless = parts[0]
        _put(broker, SendRequest(seat, batch, reply, keyless, size_of(batch)))
    else:
        _send_parts(broker, batch, parts, reply)


def open_for_sends(broker: Broker, name: str) -> Entity:
    """Return an entity that messages can be sent to, or refuse."""
    entity = broker.find(name)
    if entity.topic is not None:
        raise InvalidOperation(f"{entity.name} is a subscription: send to {entity.topic.name}")
    if not entity.log_settings.sends:
        raise EntityDisabled(f"{entity.name} is {entity.settings.status}: it takes no messages")
    return entity


def _send_parts(broker: Broker, batch: list[Prepared], parts: list[Part], reply: Reply) -> None:
    """Store a batch over several partitions; it is acknowledged when all of it is durable (P13)."""
    for seat, _, _ in parts:
        seat.store.check_disk()
    answers: list[Sent | None] = [None] * len(batch)
    errors: list[BaseException] = []
    left = len(parts)

    def collect(positions: list[int], outcome: Outcome) -> None:
        nonlocal left
        left -= 1
        if outcome.error is not None:
            errors.append(outcome.error)
        else:
            for position, sent in zip(positions, outcome.value, strict=True):
                answers[position] = sent
        if not left:
            _answer_parts(reply, answers, errors)

    for seat, positions, keyless in parts:
        outcome = Outcome(partial(collect, positions))
        chosen = [batch[position] for position in positions]
        _put(broker, SendRequest(seat, chosen, outcome, keyless, size_of(chosen)))


def _answer_parts(reply: Reply, answers: list[Sent | None], errors: list[BaseException]) -> None:
    """Answer for a whole batch: 'refused' only where nothing at all was stored."""
    if not errors:
        answer(reply, answers)
    elif all(sent is None for sent in answers) and all(isinstance(e, Refused) for e in errors):
        fail(reply, errors[0])
    else:
        fail(reply, Unknown(f"part of the batch may be stored: {errors[0]}"))


def _put(broker: Broker, request: SendRequest) -> None:
    request.seat.pending_bytes += request.size
    store = request.seat.store
    store.inbox.append(request)
    if len(store.inbox) == 1:
        broker.start(store)


def apply_inbox(broker: Broker, store: MessageStore) -> None:
    """Apply the sends that gathered, as one batch a partition, right before a commit."""
    if not store.inbox or store.loop is None:
        return
    requests, store.inbox = store.inbox, []
    by_seat: dict[Seat, list[SendRequest]] = {}
    for request in requests:
        request.seat.pending_bytes -= request.size
        group = by_seat.get(request.seat)
        if group is None:
            by_seat[request.seat] = [request]
        else:
            group.append(request)
    try:
        store.check_disk()
    except OnibusError as error:
        for request in requests:
            _move(broker, request, error)
        return
    now, wall = broker.clock.now(), broker.clock.wall()
    out = store.loop.gathering
    for seat, group in by_seat.items():
        batch = group[0].prepared
        if len(group) > 1:
            batch = [prepared for request in group for prepared in request.prepared]
        try:
            if seat.id not in store.seats:
                raise EntityNotFound(f"{seat.entity.name} was deleted")
            broker.advance(seat, now)
            originals = broker.ask(seat, find_duplicates, batch, now)
        except OnibusError as error:
            for request in group:
                _move(broker, request, error)
            continue
        # Nothing is read from here on, so nothing can fail half-way.
        partition = seat.online()
        answers = send_to_partition(partition, batch, originals, now, wall, out)
        partition.finish(now, out)
        broker.written(seat, partition, now)
        seat.entity.last_used = now
        if len(batch) == len(group):
            for request, answer_to_one in zip(group, answers, strict=True):
                store.loop.answer_after(request.reply, [answer_to_one])
            continue
        start = 0
        for request in group:
            end = start + len(request.prepared)
            store.loop.answer_after(request.reply, answers[start:end])
            start = end


def move_elsewhere(broker: Broker, request: SendRequest) -> None:
    """A store failed before this send was tried on it."""
    request.seat.pending_bytes -= request.size
    _move(broker, request, PartitionOffline(f"store {request.seat.store.name} failed"))


def _move(broker: Broker, request: SendRequest, error: OnibusError) -> None:
    """A send cannot be tried where it should: a keyless one goes to another partition (P5)."""
    if not request.keyless or isinstance(error, EntityNotFound):
        fail(request.reply, error)
        return
    try:
        request.seat = any_seat(request.seat.entity, request.size)
    except OnibusError as refusal:
        fail(request.reply, refusal)
    else:
        _put(broker, request)
