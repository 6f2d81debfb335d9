"""Receiving: one receive over all partitions, and receivers that wait for messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from onibus.core.checks import check_whole
from onibus.core.commands import (
    AcceptSession,
    Command,
    HasAttempt,
    HeldSession,
    Receive,
    ReceiveFifo,
)
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
from onibus.directory.entity import Entity, Kind, Waiter, Waiters
from onibus.directory.routing import in_turn
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import Reply, answer, fail

if TYPE_CHECKING:
    from onibus.gateway.broker import Broker

T = TypeVar("T")

#: Waiting receivers that are tried before other clients have their turn.
TRIED_A_SLICE = 200


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
        for partition in in_turn(entity):
            wanted = (
                command
                if not found
                else replace(command, limit=limit - len(found), bytes_max=left, at_least_one=False)
            )
            received = _try(broker, entity, partition, wanted)
            if received is None:
                continue
            over &= received.over
            if received.messages and take:
                # Deleted messages are delivered once their deletion is on the disk.
                _after_commit(broker, partition, waiter.reply, received.messages)
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
    return try_or_wait(broker, Waiter(entity, fetch, [], reply, kind), wait_ms)


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
        found = _use(broker, entity, entity.partitions[0], command)
        if found:
            answer(waiter.reply, found)
        return bool(found)

    waiter = Waiter(entity, fetch, [], reply, ("fifo", held_max), attempt_id)
    return try_or_wait(broker, waiter, wait_ms)


def _share(entity: Entity, held_max: int | None) -> int | None:
    """Return how many messages receivers may hold in one partition of an entity."""
    return None if held_max is None else -(-held_max // len(entity.partitions))


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
        partitions = in_turn(entity)
        if session_id is not None:
            partitions = [entity.partitions[partition_of(session_id, len(entity.partitions))]]
            partitions[0].check_online()
        for partition in partitions:
            accepted = _try(broker, entity, partition, command)
            if accepted is not None:
                held = (entity, partition, accepted)
                if command.answered_early:
                    answer(waiter.reply, held)
                else:
                    _after_commit(broker, partition, waiter.reply, held)
                return True
        return False

    nothing = NoSession(f"no session of {entity.name} was available")
    return try_or_wait(broker, Waiter(entity, fetch, nothing, reply, ("accept",)), wait_ms)


def receive_session(
    broker: Broker,
    entity: Entity,
    partition: ShardPartition,
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
        messages = _use(broker, entity, partition, command).messages
        if messages and take:
            _after_commit(broker, partition, waiter.reply, messages)
        elif messages:
            answer(waiter.reply, messages)
        return bool(messages)

    return try_or_wait(broker, Waiter(entity, fetch, [], reply), wait_ms)


def _after_commit(broker: Broker, partition: ShardPartition, reply: Reply, value: Any) -> None:
    partition.store.answer_after(reply, value)


def serve(broker: Broker, among: Waiters, rest: list[Waiter] | None = None) -> None:
    """Try waiting receivers in order of arrival: messages may have become available.

    A thousand may wait for the same: once one of them finds nothing, the others are not tried.
    `rest` are those that an earlier slice left over.
    """
    in_vain: set[Kind | None] = set()
    tried = 0
    waiting = list(among.waiters) if rest is None else rest
    for at, waiter in enumerate(waiting):
        if waiter not in among.waiters:
            continue
        if waiter.reply.done():
            _end_wait(broker, waiter)
        elif waiter.kind not in in_vain or _repeats(waiter):
            if tried == TRIED_A_SLICE:
                # Others have their turn before the rest is tried.
                broker.call_soon(partial(serve, broker, among, waiting[at:]))
                return
            tried += 1
            if _fetch(waiter):
                _end_wait(broker, waiter)
            elif waiter.kind is not None:
                in_vain.add(waiter.kind)


def _end_wait(broker: Broker, waiter: Waiter) -> None:
    """Drop a waiter that has its reply."""
    waiter.among.waiters.pop(waiter, None)
    broker.timers.cancel(("waiter", waiter))
    waiter.let_go()


def _repeats(waiter: Waiter) -> bool:
    """Return whether a receive under the same attempt id has found messages."""
    if waiter.attempt_id is None:
        return False
    partition = waiter.entity.partitions[0]
    query = HasAttempt(waiter.entity.number, waiter.attempt_id)
    return not partition.is_online or partition.store.look(partition, query)


def give_up(broker: Broker, waiter: Waiter) -> None:
    """End the wait of a receiver, after one last try to get messages (P6)."""
    if waiter in waiter.among.waiters:
        del waiter.among.waiters[waiter]
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


def try_or_wait(broker: Broker, waiter: Waiter, wait_ms: int) -> Waiter | None:
    """Try, and wait if there is nothing; return who waits, so that it may stop doing so."""
    if waiter.fetch(waiter):
        return None
    if wait_ms <= 0:
        give_up(broker, waiter)
        return None
    _forget_done(broker, waiter.among)
    waiter.among.waiters[waiter] = None
    waiter.entity.listen()
    broker.timers.set(("waiter", waiter), broker.clock.now() + wait_ms)
    return waiter


def _forget_done(broker: Broker, among: Waiters) -> None:
    """Drop cancelled receivers, each time the number of waiters has doubled."""
    if len(among.waiters) < among.waiters_swept:
        return
    for waiter in [one for one in among.waiters if one.reply.done()]:
        del among.waiters[waiter]
        broker.timers.cancel(("waiter", waiter))
    among.waiters_swept = 2 * len(among.waiters) + 16


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


def _try(
    broker: Broker, entity: Entity, partition: ShardPartition, command: Command[T]
) -> T | None:
    """Ask one partition; one that is offline has nothing, unless it is the only one."""
    try:
        return _use(broker, entity, partition, command)
    except PartitionOffline:
        if len(partition.entity.partitions) == 1:
            raise
        return None


def _use(broker: Broker, entity: Entity, partition: ShardPartition, command: Command[T]) -> T:
    """Deliver from a partition, unless its disk hangs: reading there would stop everything."""
    if partition.store.stalled:
        partition.store.check_healthy()
    return broker.use(entity, partition, command)
