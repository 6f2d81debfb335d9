"""Receiving: one receive over all partitions, and those who wait for what is not there yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onibus.broker.entity import Entity, Seat
from onibus.broker.replies import TOLD, Reply, answer, fail
from onibus.core.checks import check_text, check_whole
from onibus.core.errors import (
    EntityDisabled,
    InvalidOperation,
    NoSession,
    OnibusError,
    PartitionOffline,
)
from onibus.core.inspection import AcceptedSession, NonExclusive
from onibus.core.limits import BATCH_COUNT_MAX, ID_LENGTH_MAX, RECEIVED_MAX, VISIBILITY_MS_MAX
from onibus.core.message import ReceivedMessage
from onibus.core.path.deliver import deliver, deliver_groups
from onibus.core.path.room import Room
from onibus.core.path.route import partition_of
from onibus.core.path.session import accept_session, held_session

if TYPE_CHECKING:
    from onibus.broker.broker import Broker

#: Tries once to get something for a receiver; answers the reply and tells True when it did.
Fetch = Callable[["Waiter"], bool]


#: Those who wait for the same, and find nothing where one of them found nothing.
Kind = tuple[Any, ...]

#: Waiting receivers that are tried before other clients have their turn.
TRIED_A_SLICE = 200


class Waiter:
    """A receiver that waits. `nothing` is what it is told when its time is over."""

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
        #: None where nobody else waits for the same
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
    """Give out messages from any partition, under a lock or for good; wait if there are none.

    It gives out at most RECEIVED_MAX at once, whatever the limit.

    `visibility_ms`: how long they are locked, instead of what the entity says. Where receivers hold
    `held_max` messages already they get no more. `bytes_max` bounds the bytes that are given out,
    but one message is, however large it is.
    """
    entity = _receivable(broker, name, limit, wait_ms)
    limit = min(limit, RECEIVED_MAX)
    if visibility_ms is not None:
        check_whole("visibility_ms", visibility_ms, 0, VISIBILITY_MS_MAX)
    settings = entity.outlet_settings()
    if settings.forward_to is not None and not dead:
        raise InvalidOperation(f"{entity.name} forwards to {settings.forward_to}: receive there")
    if settings.requires_session and not dead:
        if settings.fifo:
            raise InvalidOperation(f"{entity.name} is a FIFO queue: use fifo_receiver")
        raise InvalidOperation(f"{entity.name} requires sessions: use accept_session")

    def fetch(waiter: Waiter) -> bool:
        if held_max is not None and held_count(entity) >= held_max:
            return False
        found: list[ReceivedMessage] = []
        room = room_of(bytes_max)
        for seat in in_turn(entity):
            wanted = limit - len(found)
            messages = _try(
                broker,
                entity,
                seat,
                lambda subscription, now, out, wanted=wanted: deliver(
                    subscription,
                    wanted,
                    now,
                    out,
                    dead=dead,
                    take=take,
                    visibility_ms=visibility_ms,
                    room=room,
                ),
            )
            if messages and take:
                # What is taken for good is told only when that is on the disk.
                assert seat.store.loop is not None
                seat.store.loop.answer_after(waiter.reply, messages)
                broker.start(seat.store)
                return True
            found += messages or []
            if len(found) == limit or (room is not None and room.left <= 0):
                break
        if found:
            answer(waiter.reply, found)
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
    """Give out messages of a FIFO queue, group by group; see `receive`."""
    entity = _receivable(broker, name, limit, wait_ms)
    limit = min(limit, RECEIVED_MAX)
    settings = entity.outlet_settings()
    if not settings.fifo:
        raise InvalidOperation(f"{entity.name} is not a FIFO queue: use receiver")
    if attempt_id is not None:
        check_text("attempt_id", attempt_id, ID_LENGTH_MAX, 1)
    visible_ms = settings.lock_duration_ms if visibility_ms is None else visibility_ms
    check_whole("visibility_ms", visible_ms, 0, VISIBILITY_MS_MAX)

    def fetch(waiter: Waiter) -> bool:
        # What is held already can be given out again all the same (F9).
        full = held_max is not None and held_count(entity) >= held_max
        wanted = 0 if full else limit
        found = _use(
            broker,
            entity,
            entity.seats[0],
            lambda subscription, now, out: deliver_groups(
                subscription, wanted, visible_ms, now, out, attempt_id, room_of(bytes_max)
            ),
        )
        if found:
            answer(waiter.reply, found)
        return bool(found)

    waiter = Waiter(entity, fetch, [], reply, ("fifo", held_max), attempt_id)
    return _try_or_wait(broker, waiter, wait_ms)


def held_count(entity: Entity) -> int:
    """Return how many messages receivers hold, where partitions are online."""
    online = [seat.partition for seat in entity.seats if seat.partition is not None]
    return sum(entity.part_of(partition).held() for partition in online)


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
    entity = _receivable(broker, name, 1, wait_ms)
    if not entity.outlet_settings().requires_session:
        raise InvalidOperation(f"{entity.name} has no sessions: use receiver")
    if session_id is not None:
        check_text("session_id", session_id, ID_LENGTH_MAX)
    check_text("owner", owner, ID_LENGTH_MAX)

    def fetch(waiter: Waiter) -> bool:
        seats = in_turn(entity)
        if session_id is not None:
            seats = [entity.seats[partition_of(session_id, len(entity.seats))]]
            seats[0].online()
        for seat in seats:
            accepted: AcceptedSession | None = _try(
                broker,
                entity,
                seat,
                lambda subscription, now, out: accept_session(
                    subscription, session_id, owner, now, out, sharing
                ),
            )
            if accepted is not None:
                held = (entity, seat, accepted)
                if sharing is not None and sharing.takeover is not None:
                    # A crash must not return the session to the receiver that lost it.
                    assert seat.store.loop is not None
                    seat.store.loop.answer_after(waiter.reply, held)
                    broker.start(seat.store)
                else:
                    answer(waiter.reply, held)
                return True
        return False

    nothing = NoSession(f"no session of {entity.name} was available")
    return _try_or_wait(broker, Waiter(entity, fetch, nothing, reply, ("accept",)), wait_ms)


def receive_session(
    broker: Broker,
    entity: Entity,
    seat: Seat,
    session_id: str,
    token: bytes,
    limit: int,
    wait_ms: int,
    reply: Reply,
    *,
    take: bool = False,
    bytes_max: int | None = None,
) -> Waiter | None:
    """Give out messages of a session that the caller holds."""
    _receivable(broker, entity.name, limit, wait_ms)
    limit = min(limit, RECEIVED_MAX)

    def fetch(waiter: Waiter) -> bool:
        def from_session(subscription: Any, now: int, out: Any) -> list[ReceivedMessage]:
            session = held_session(subscription, session_id, token)
            room = room_of(bytes_max)
            return deliver(subscription, limit, now, out, session=session, take=take, room=room)

        messages = _use(broker, entity, seat, from_session)
        if messages and take:
            assert seat.store.loop is not None
            seat.store.loop.answer_after(waiter.reply, messages)
            broker.start(seat.store)
        elif messages:
            answer(waiter.reply, messages)
        return bool(messages)

    return _try_or_wait(broker, Waiter(entity, fetch, [], reply), wait_ms)


def room_of(bytes_max: int | None) -> Room | None:
    """Return the room of one receive; None where it is not bounded."""
    return None if bytes_max is None else Room(bytes_max)


def serve(broker: Broker, entity: Entity) -> None:
    """Something may have become available: try for those who wait, in the order they came.

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
    """Tell whether a receive under the same attempt id has found something."""
    if waiter.attempt_id is None:
        return False
    entity = waiter.entity
    partition = entity.seats[0].partition
    return partition is None or waiter.attempt_id in entity.part_of(partition).attempts


def give_up(broker: Broker, waiter: Waiter) -> None:
    """A receiver has waited long enough, unless there is something for it just now (P6)."""
    if waiter in waiter.entity.waiters:
        del waiter.entity.waiters[waiter]
        if waiter.reply.done() or _fetch(waiter):
            waiter.let_go()
            return
    _tell_nothing(waiter)


def stop_waiting(broker: Broker, waiter: Waiter) -> None:
    """A receiver waits no longer; where it was served already, that stands."""
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
    """Let go of receivers that were cancelled; looked for whenever their number has doubled."""
    if len(entity.waiters) < entity.waiters_swept:
        return
    for waiter in [one for one in entity.waiters if one.reply.done()]:
        del entity.waiters[waiter]
        broker.timers.cancel(("waiter", waiter))
    entity.waiters_swept = 2 * len(entity.waiters) + 16


def _fetch(waiter: Waiter) -> bool:
    """Try for somebody who waits; an error ends the waiting."""
    try:
        return waiter.fetch(waiter)
    except OnibusError as error:
        fail(waiter.reply, error)
        return True


def _receivable(broker: Broker, name: str, limit: int, wait_ms: int) -> Entity:
    entity = broker.find(name)
    if not entity.outlet_settings().receives:
        raise EntityDisabled(f"{entity.name} is {entity.settings.status}: it delivers no messages")
    check_whole("limit", limit, 1, BATCH_COUNT_MAX)
    check_whole("wait_ms", wait_ms, 0)
    return entity


def in_turn(entity: Entity) -> list[Seat]:
    """Return the partitions, another one first each time, so that none is starved."""
    entity.next_receive = (entity.next_receive + 1) % len(entity.seats)
    return entity.seats[entity.next_receive :] + entity.seats[: entity.next_receive]


def _try(broker: Broker, entity: Entity, seat: Seat, operation: Any) -> Any:
    """Ask one partition; one that is offline has nothing, unless it is the only one."""
    try:
        return _use(broker, entity, seat, operation)
    except PartitionOffline:
        if len(seat.entity.seats) == 1:
            raise
        return None


def _use(broker: Broker, entity: Entity, seat: Seat, operation: Any) -> Any:
    """Deliver from a partition, unless its disk hangs: reading there would stop everything."""
    if seat.store.stalled:
        seat.store.check_healthy()
    return broker.use(entity, seat, operation)
