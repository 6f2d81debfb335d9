"""Receiving: one receive over all partitions, and receivers that wait for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from onibus.broker.entity import Entity
from onibus.core.checks import check_whole
from onibus.core.commands import AcceptSession, Command, HeldSession, Receive, ReceiveFifo
from onibus.core.errors import (
    EntityDisabled,
    InvalidOperation,
    NoSession,
    OnibusError,
    PartitionOffline,
    QuotaExceeded,
)
from onibus.core.inspection import NonExclusive
from onibus.core.limits import RECEIVED_MAX
from onibus.core.message import ReceivedMessage
from onibus.core.path.route import partition_of
from onibus.shard.replies import TOLD, Reply, answer, fail
from onibus.shard.seat import Seat

if TYPE_CHECKING:
    from onibus.broker.broker import Broker

T = TypeVar("T")

#: Tries once to get messages for a receiver; on success completes the reply and returns True.
Fetch = Callable[["Waiter"], bool]


#: Receivers of one kind wait for the same: if one finds no message, none does.
Kind = tuple[Any, ...]

#: Waiting receivers that are tried before other clients have their turn.
TRIED_A_SLICE = 200


class Waiter:
    """A receiver that waits. `nothing` is its result when its wait time is over."""

    __slots__ = ("attempt_id", "entity", "fetch", "kind", "nothing", "reply")

    def __init__(
        self,
        entity: Entity,
        fetch: Fetch,
        nothing: Any,
        reply: Reply,
        kind: Kind | None = None,
        attempt_id: str | None = None,
    ) -> None:
        self.entity = entity
        self.fetch = fetch
        self.nothing = nothing
        self.reply = reply
        #: None if no other receiver waits for the same
        self.kind = kind
        #: a receive under the same id, in the meantime, is repeated for it (F9)
        self.attempt_id = attempt_id

    def let_go(self) -> None:
        """Drop the reply: lists and timers keep a finished waiter until they are swept."""
        self.reply, self.fetch = TOLD, _nothing_more


def _nothing_more(waiter: Waiter) -> bool:
    """Fetch nothing for a waiter that has its reply."""
    return False


def receive(
    broker: Broker,
    name: str,
    limit: int,
    wait_ms: int,
    reply: Reply,
    *,
    dead: bool = False,
    take: bool = False,
    visibility_ms: int | None = None,
    held_max: int | None = None,
    bytes_max: int | None = None,
) -> Waiter | None:
    """Deliver messages of any partition, locked or deleted; wait if no message is available.

    It delivers at most RECEIVED_MAX at once, whatever the limit.

    `visibility_ms` replaces the lock duration of the entity. If receivers hold `held_max` messages
    already, they get none. `bytes_max` bounds the bytes that are delivered, except those of the
    first message.
    """
    entity = _receivable(broker, name, wait_ms)
    settings = entity.outlet_settings()
    if settings.forward_to is not None and not dead:
        raise InvalidOperation(f"{entity.name} forwards to {settings.forward_to}: receive there")
    if settings.requires_session and not dead:
        if settings.fifo:
            raise InvalidOperation(f"{entity.name} is a FIFO queue: use fifo_receiver")
        raise InvalidOperation(f"{entity.name} requires sessions: use accept_session")
    command = Receive(
        entity.number,
        limit,
        dead,
        take,
        visibility_ms,
        bytes_max=bytes_max,
        held_max=_share(entity, held_max),
    )
    limit = min(limit, RECEIVED_MAX)

    def fetch(waiter: Waiter) -> bool:
        found: list[ReceivedMessage] = []
        left, over = bytes_max, held_max is not None
        for seat in in_turn(entity):
            wanted = (
                command
                if not found
                else replace(command, limit=limit - len(found), bytes_max=left, at_least_one=False)
            )
            received = _try(broker, entity, seat, wanted)
            if received is None:
                continue
            over &= received.over
            if received.messages and take:
                # Deleted messages are delivered once their deletion is on the disk.
                _after_commit(broker, seat, waiter.reply, received.messages)
                return True
            found += received.messages
            left = received.left
            if len(found) >= limit or (left is not None and left <= 0):
                break
        if found:
            answer(waiter.reply, found)
        elif not wait_ms:
            waiter.nothing = QuotaExceeded("too many messages are in flight") if over else []
        return bool(found)

    kind = ("receive", dead, held_max)
    return _try_or_wait(broker, Waiter(entity, fetch, [], reply, kind), wait_ms)


def receive_fifo(
    broker: Broker,
    name: str,
    limit: int,
    wait_ms: int,
    reply: Reply,
    *,
    visibility_ms: int | None = None,
    attempt_id: str | None = None,
    held_max: int | None = None,
    bytes_max: int | None = None,
) -> Waiter | None:
    """Deliver messages of a FIFO queue, group by group; see `receive`."""
    entity = _receivable(broker, name, wait_ms)
    settings = entity.outlet_settings()
    if not settings.fifo:
        raise InvalidOperation(f"{entity.name} is not a FIFO queue: use receiver")
    visible_ms = settings.lock_duration_ms if visibility_ms is None else visibility_ms
    command = ReceiveFifo(entity.number, limit, visible_ms, attempt_id, bytes_max, held_max)

    def fetch(waiter: Waiter) -> bool:
        found = _use(broker, entity, entity.seats[0], command)
        if found:
            answer(waiter.reply, found)
        return bool(found)

    waiter = Waiter(entity, fetch, [], reply, ("fifo", held_max), attempt_id)
    return _try_or_wait(broker, waiter, wait_ms)


def _share(entity: Entity, held_max: int | None) -> int | None:
    """Return how many messages receivers may hold in one partition of an entity."""
    return None if held_max is None else -(-held_max // len(entity.seats))


def accept(
    broker: Broker,
    name: str,
    session_id: str | None,
    owner: str,
    wait_ms: int,
    reply: Reply,
    sharing: NonExclusive | None = None,
) -> Waiter | None:
    """Lock a session: a named one at once, or the next that is free, waiting for one.

    With `sharing` non-exclusively, or by taking over another receiver's lock (B9).
    """
    entity = _receivable(broker, name, wait_ms)
    if not entity.outlet_settings().requires_session:
        raise InvalidOperation(f"{entity.name} has no sessions: use receiver")
    command = AcceptSession(entity.number, session_id, owner, sharing)

    def fetch(waiter: Waiter) -> bool:
        seats = in_turn(entity)
        if session_id is not None:
            seats = [entity.seats[partition_of(session_id, len(entity.seats))]]
            seats[0].online()
        for seat in seats:
            accepted = _try(broker, entity, seat, command)
            if accepted is not None:
                held = (entity, seat, accepted)
                if command.answered_early:
                    answer(waiter.reply, held)
                else:
                    _after_commit(broker, seat, waiter.reply, held)
                return True
        return False

    nothing = NoSession(f"no session of {entity.name} was available")
    return _try_or_wait(broker, Waiter(entity, fetch, nothing, reply, ("accept",)), wait_ms)


def receive_session(
    broker: Broker,
    entity: Entity,
    seat: Seat,
    session: HeldSession,
    limit: int,
    wait_ms: int,
    reply: Reply,
    *,
    take: bool = False,
    bytes_max: int | None = None,
) -> Waiter | None:
    """Deliver messages of a session that the caller holds."""
    _receivable(broker, entity.name, wait_ms)
    command = Receive(entity.number, limit, delete=take, session=session, bytes_max=bytes_max)

    def fetch(waiter: Waiter) -> bool:
        messages = _use(broker, entity, seat, command).messages
        if messages and take:
            _after_commit(broker, seat, waiter.reply, messages)
        elif messages:
            answer(waiter.reply, messages)
        return bool(messages)

    return _try_or_wait(broker, Waiter(entity, fetch, [], reply), wait_ms)


def _after_commit(broker: Broker, seat: Seat, reply: Reply, value: Any) -> None:
    seat.store.answer_after(reply, value)


def serve(broker: Broker, entity: Entity) -> None:
    """Try waiting receivers in order of arrival: messages may have become available.

    A thousand may wait for the same: once one of them finds nothing, the others are not tried.
    """
    waiting, entity.waiters = entity.waiters, {}
    in_vain: set[Kind | None] = set()
    tried = 0
    for waiter in waiting:
        if waiter.reply.done():
            broker.timers.cancel(("waiter", waiter))
            waiter.let_go()
        elif tried == TRIED_A_SLICE or (waiter.kind in in_vain and not _repeats(waiter)):
            entity.add_waiter(waiter)
        elif not _fetch(waiter):
            tried += 1
            entity.add_waiter(waiter)
            if waiter.kind is not None:
                in_vain.add(waiter.kind)
        else:
            tried += 1
            broker.timers.cancel(("waiter", waiter))
            waiter.let_go()
    if tried == TRIED_A_SLICE:
        # Others have their turn before the rest is tried.
        broker.wake(entity)


def _repeats(waiter: Waiter) -> bool:
    """Return whether a receive under the same attempt id has found messages."""
    if waiter.attempt_id is None:
        return False
    entity = waiter.entity
    partition = entity.seats[0].partition
    return partition is None or waiter.attempt_id in entity.part_of(partition).attempts


def give_up(broker: Broker, waiter: Waiter) -> None:
    """End the wait of a receiver, after one last try to get messages (P6)."""
    if waiter in waiter.entity.waiters:
        del waiter.entity.waiters[waiter]
        if waiter.reply.done() or _fetch(waiter):
            waiter.let_go()
            return
    _tell_nothing(waiter)


def stop_waiting(broker: Broker, waiter: Waiter) -> None:
    """End the wait of a receiver; if it got messages already, it keeps them."""
    if broker.timers.is_set(("waiter", waiter)):
        broker.timers.cancel(("waiter", waiter))
        _tell_nothing(waiter)


def _tell_nothing(waiter: Waiter) -> None:
    reply = waiter.reply
    waiter.let_go()
    if isinstance(waiter.nothing, BaseException):
        fail(reply, waiter.nothing)
    else:
        answer(reply, waiter.nothing)


def _try_or_wait(broker: Broker, waiter: Waiter, wait_ms: int) -> Waiter | None:
    """Try, and wait if there is nothing; return who waits, so that it may stop doing so."""
    if waiter.fetch(waiter):
        return None
    if wait_ms <= 0:
        give_up(broker, waiter)
        return None
    _forget_done(broker, waiter.entity)
    waiter.entity.add_waiter(waiter)
    broker.timers.set(("waiter", waiter), broker.clock.now() + wait_ms)
    return waiter


def _forget_done(broker: Broker, entity: Entity) -> None:
    """Drop cancelled receivers, each time the number of waiters has doubled."""
    if len(entity.waiters) < entity.waiters_swept:
        return
    for waiter in [one for one in entity.waiters if one.reply.done()]:
        del entity.waiters[waiter]
        broker.timers.cancel(("waiter", waiter))
    entity.waiters_swept = 2 * len(entity.waiters) + 16


def _fetch(waiter: Waiter) -> bool:
    """Try a waiting receiver; an error ends its wait."""
    try:
        return waiter.fetch(waiter)
    except OnibusError as error:
        fail(waiter.reply, error)
        return True


def _receivable(broker: Broker, name: str, wait_ms: int) -> Entity:
    entity = broker.find(name)
    if not entity.outlet_settings().receives:
        raise EntityDisabled(f"{entity.name} is {entity.settings.status}: it delivers no messages")
    check_whole("wait_ms", wait_ms, 0)
    return entity


def in_turn(entity: Entity) -> list[Seat]:
    """Return the partitions, another one first each time, so that none is starved."""
    entity.next_receive = (entity.next_receive + 1) % len(entity.seats)
    return entity.seats[entity.next_receive :] + entity.seats[: entity.next_receive]


def _try(broker: Broker, entity: Entity, seat: Seat, command: Command[T]) -> T | None:
    """Ask one partition; one that is offline has nothing, unless it is the only one."""
    try:
        return _use(broker, entity, seat, command)
    except PartitionOffline:
        if len(seat.entity.seats) == 1:
            raise
        return None


def _use(broker: Broker, entity: Entity, seat: Seat, command: Command[T]) -> T:
    """Deliver from a partition, unless its disk hangs: reading there would stop everything."""
    if seat.store.stalled:
        seat.store.check_healthy()
    return broker.use(entity, seat, command)
