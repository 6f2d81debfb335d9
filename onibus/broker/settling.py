"""Settling: what receivers and owners do to messages that are there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onibus.broker.entity import Entity, Seat
from onibus.broker.replies import Outcome, Reply, answer, fail
from onibus.broker.slices import in_slices
from onibus.core.errors import (
    EntityDisabled,
    InvalidArgument,
    InvalidOperation,
    MessageNotFound,
    Refused,
    UnknownToken,
)
from onibus.core.holds import TOKEN
from onibus.core.inspection import Filter
from onibus.core.limits import BATCH_COUNT_MAX, NUMBERS_MAX
from onibus.core.numbering import partition_index
from onibus.core.path.complete import complete, find_held
from onibus.core.path.deliver import deliver_deferred, find_deferred
from onibus.core.path.peek import Page, states_of
from onibus.core.path.purge import find_undeferrable, forget_ids, purge, undefer
from onibus.core.path.room import Room
from onibus.core.path.schedule import cancel, find_scheduled
from onibus.core.path.session import held_session
from onibus.core.records import WriteBatch
from onibus.core.subscription import Subscription

if TYPE_CHECKING:
    from onibus.broker.broker import Broker

Find = Callable[[Subscription, list[Any]], list[int]]
Act = Callable[[Subscription, list[int], int, WriteBatch], Any]
#: A session, and the token of the receiver that holds it.
Held = tuple[str, bytes]
ActOnEach = Callable[[Subscription, list[int], int, WriteBatch], list[Any]]

#: Messages that one slice of a purge looks at.
PURGE_SLICE = 1_000
#: Messages that one slice of a peek looks at.
PEEK_SLICE = 500


def seat_of_token(entity: Entity, token: bytes) -> Seat:
    """Return the partition that gave a token out; a token of no shape of ours holds nothing."""
    if not has_shape(token):
        raise UnknownToken("not a lock token of this bus: use the token of the received message")
    if len(entity.seats) == 1:
        return entity.seats[0]
    index = partition_index(TOKEN.unpack(token)[0], entity.partitioned)
    if index >= len(entity.seats):
        raise UnknownToken("not a lock token of this entity: settle where it was received")
    return entity.seats[index]


def has_shape(token: bytes) -> bool:
    """Tell whether a token looks like one of this bus."""
    return isinstance(token, bytes) and len(token) == TOKEN.size


def seat_of_number(entity: Entity, number: int) -> Seat:
    """Return the partition of a sequence number."""
    if isinstance(number, int) and number >= 0:
        index = partition_index(number, entity.partitioned)
        if index < len(entity.seats):
            return entity.seats[index]
    raise MessageNotFound(f"no message with sequence number {number}")


def settle_one(
    broker: Broker,
    name: str,
    token: bytes,
    act: Callable[[Subscription, int, WriteBatch], Any],
    reply: Reply,
    session: Held | None = None,
) -> None:
    """Do one thing to one held message; answered when it is durable.

    With `session`, only while the caller holds that session: it may have been taken over (B9).
    """
    entity = broker.find(name)
    seat = seat_of_token(entity, token)

    def settle(subscription: Subscription, now: int, out: WriteBatch) -> Any:
        check_holder(subscription, session)
        return act(subscription, now, out)

    _after_commit(broker, seat, broker.use(entity, seat, settle), reply)


def check_holder(subscription: Subscription, session: Held | None) -> None:
    """Reject a receiver whose session is not its own any longer."""
    if session is not None:
        held_session(subscription, *session)


def complete_all(
    broker: Broker, name: str, tokens: Sequence[bytes], reply: Reply, session: Held | None = None
) -> None:
    """Complete held messages atomically: a token that does not hold rejects the call.

    For `session` see `settle_one`.
    """
    entity = broker.find(name)

    def find(subscription: Subscription, chosen: list[Any]) -> list[int]:
        check_holder(subscription, session)
        return find_held(subscription, chosen)

    on_all(
        broker,
        entity,
        tokens,
        seat_of_token,
        find,
        lambda subscription, ordinals, now, out: complete(subscription, ordinals, out),
        reply,
    )


def settle_each(
    broker: Broker, name: str, tokens: Sequence[bytes], act: ActOnEach, reply: Reply
) -> None:
    """Do something to each message by itself, by its token, whatever becomes of the others.

    `act` is given the places of one partition's tokens, and returns for each a result, or a refusal
    that has changed nothing. The answer, when all is durable, has them in the tokens' order.
    """
    entity = broker.find(name)
    results: list[Any] = [None] * len(tokens)
    by_seat = _by_seat(entity, tokens, results)
    left = len(by_seat)

    def collect(outcome: Outcome) -> None:
        nonlocal left
        left -= 1
        if outcome.error is not None:
            fail(reply, outcome.error)
        elif not left:
            answer(reply, results)

    def act_on(
        places: list[int], subscription: Subscription, now: int, out: WriteBatch
    ) -> list[Any]:
        return act(subscription, places, now, out)

    for seat, places in by_seat.items():
        told = broker.use(entity, seat, partial(act_on, places))
        for place, result in zip(places, told, strict=True):
            results[place] = result
        _after_commit(broker, seat, None, Outcome(collect))
    if not by_seat:
        answer(reply, results)


def _by_seat(entity: Entity, tokens: Sequence[bytes], results: list[Any]) -> dict[Seat, list[int]]:
    """Return the places of tokens by the partition that gave them out; refuse others there."""
    if not entity.partitioned and all(has_shape(token) for token in tokens):
        return {entity.seats[0]: list(range(len(tokens)))}
    by_seat: dict[Seat, list[int]] = {}
    for place, token in enumerate(tokens):
        try:
            by_seat.setdefault(seat_of_token(entity, token), []).append(place)
        except Refused as refusal:
            results[place] = refusal
    return by_seat


def cancel_scheduled(broker: Broker, name: str, numbers: Sequence[int], reply: Reply) -> None:
    """Cancel scheduled messages: all of them, or none."""
    on_all(
        broker,
        broker.find(name),
        numbers,
        seat_of_number,
        find_scheduled,
        lambda subscription, ordinals, now, out: cancel(subscription, ordinals, out),
        reply,
    )


def undefer_all(broker: Broker, name: str, numbers: Sequence[int], reply: Reply) -> None:
    """Give deferred messages back: all of them, or none."""
    on_all(
        broker,
        broker.find(name),
        numbers,
        seat_of_number,
        find_undeferrable,
        lambda subscription, ordinals, now, out: undefer(subscription, ordinals, out),
        reply,
    )


def receive_deferred(
    broker: Broker,
    name: str,
    numbers: Sequence[int],
    reply: Reply,
    *,
    dead: bool = False,
    take: bool = False,
    session: Held | None = None,
    bytes_max: int | None = None,
) -> None:
    """Receive deferred messages by their numbers: all of them, or none (L2)."""
    entity = broker.find(name)
    settings = entity.outlet_settings()
    if not settings.receives:
        raise EntityDisabled(f"{entity.name} is {settings.status}: it delivers no messages")
    if settings.requires_session and not (settings.fifo or dead) and session is None:
        raise InvalidOperation(f"{entity.name} requires sessions: use the session's receiver")

    def holder(subscription: Subscription) -> Any:
        return held_session(subscription, *session) if session is not None else None

    room = None if bytes_max is None else Room(bytes_max)

    def find(subscription: Subscription, chosen: list[int]) -> list[int]:
        ordinals = find_deferred(subscription, chosen, holder(subscription), dead)
        if room is not None:
            room.take_all(subscription.log, ordinals)
        return ordinals

    on_all(
        broker,
        entity,
        numbers,
        seat_of_number,
        find,
        lambda subscription, ordinals, now, out: deliver_deferred(
            subscription, ordinals, now, out, session=holder(subscription), take=take
        ),
        reply,
    )


def on_all(
    broker: Broker,
    entity: Entity,
    subjects: Sequence[Any],
    seat_of: Callable[[Entity, Any], Seat],
    find: Find,
    act: Act,
    reply: Reply,
) -> None:
    """Do something to several messages of several partitions, after finding all of them."""
    # Completing by tokens is the quickest.
    most = BATCH_COUNT_MAX if seat_of is seat_of_token else NUMBERS_MAX
    if not isinstance(subjects, Sequence) or not 0 < len(subjects) <= most:
        raise InvalidArgument(f"pass a list of 1 to {most} messages or sequence numbers")
    by_seat: dict[Seat, list[Any]] = {}
    for subject in subjects:
        by_seat.setdefault(seat_of(entity, subject), []).append(subject)
    # One moment for all of it: what was found must not come due before it is acted on.
    now = broker.clock.now()
    for seat in by_seat:
        broker.advance(seat, now)
    found = {seat: broker.look(entity, seat, find, chosen) for seat, chosen in by_seat.items()}
    left = len(found)
    results: dict[Seat, Any] = dict.fromkeys(found)

    def collect(seat: Seat, outcome: Outcome) -> None:
        nonlocal left
        if outcome.error is not None:
            fail(reply, outcome.error)
            return
        results[seat] = outcome.value
        left -= 1
        if not left:
            answer(reply, [one for several in results.values() for one in several or ()])

    def act_on(ordinals: list[int], subscription: Subscription, now: int, out: WriteBatch) -> Any:
        return act(subscription, ordinals, now, out)

    for seat, ordinals in found.items():
        result = broker.use(entity, seat, partial(act_on, ordinals), now)
        _after_commit(broker, seat, result, Outcome(partial(collect, seat)))


def _after_commit(broker: Broker, seat: Seat, value: Any, reply: Reply) -> None:
    assert seat.store.loop is not None
    seat.store.loop.answer_after(reply, value)
    broker.start(seat.store)


def on_session(
    broker: Broker,
    entity: Entity,
    seat: Seat,
    session_id: str,
    token: bytes,
    act: Callable[[Subscription, Any, int, WriteBatch], Any],
    reply: Reply,
    state: bytes | None = None,
) -> None:
    """Do something to a session that the caller holds; answered when it is durable.

    `state` is what it keeps with the session. Sessions have states without messages, so states may
    take only half of the disk's reserve.
    """
    if state:
        seat.store.check_disk(len(state), settling=True)

    def with_session(subscription: Subscription, now: int, out: WriteBatch) -> Any:
        return act(subscription, held_session(subscription, session_id, token), now, out)

    _after_commit(broker, seat, broker.use(entity, seat, with_session), reply)


def peek_all(
    broker: Broker, name: str, start: int, limit: int, wanted: Filter, dead: bool
) -> list[Any]:
    """Look at messages from a number on, at once, through as many as it takes."""
    slices = _peek(broker, name, start, limit, wanted, dead)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: list[Any] = end.value
            return found


def peek_in_slices(
    broker: Broker, name: str, start: int, limit: int, wanted: Filter, dead: bool, reply: Reply
) -> None:
    """The same with others' work in between: what a filter means may be far away, or not there."""
    slices = _peek(broker, name, start, limit, wanted, dead)

    def step() -> bool:
        if reply.done():
            return False
        try:
            next(slices)
        except StopIteration as end:
            found = end.value
        except Exception as error:
            fail(reply, error)
            return False
        else:
            return True
        answer(reply, found)
        return False

    in_slices(broker, step)


def _peek(
    broker: Broker, name: str, start: int, limit: int, wanted: Filter, dead: bool
) -> Generator[None, None, list[Any]]:
    """Look through partitions in their order, up to one in which something is found (P7).

    Yields after each slice.
    """
    entity = broker.find(name)
    if not isinstance(limit, int) or not 0 < limit <= BATCH_COUNT_MAX:
        raise InvalidArgument(f"limit is out of range: peek 1 to {BATCH_COUNT_MAX} messages")
    if not isinstance(start, int) or start < 0:
        raise InvalidArgument("start must be a sequence number")
    page = Page(limit, wanted, dead)
    index = partition_index(start, entity.partitioned)
    if index and partition_index(start - 1, True) < index <= len(entity.seats):
        # One above the last number of the partition before: it may have rolled over since (S8).
        index -= 1
    for seat in entity.seats[index:]:
        if seat.partition is None and len(entity.seats) > 1:
            continue
        number = start if seat.index == index else 0
        ordinal = broker.look(entity, seat, first_ordinal, number)
        while ordinal := broker.look(entity, seat, page.fill, ordinal, PEEK_SLICE):
            yield
        if page.messages:
            break
    return page.messages


def first_ordinal(subscription: Subscription, number: int) -> int:
    """Return the ordinal from which a peek continues."""
    log, numbering = subscription.log, subscription.numbering
    first = log.places[0].first if log.places else log.next_ordinal
    return numbering.not_below(number, first, log.next_ordinal, subscription.is_live)


def purge_all(
    broker: Broker,
    name: str,
    wanted: Filter,
    forget: bool,
    reply: Reply,
    held: bool = False,
    most: int | None = None,
) -> None:
    """Delete what a filter means, slice by slice; answer how many when all is durable (X2).

    With `held` also what receivers hold. Where there is a `most`, no more than that: the oldest of
    each partition first.
    """
    entity = broker.find(name)
    states_of(wanted, dead=False)
    if forget and entity.topic is not None:
        raise InvalidOperation(f"ids are recorded at the topic: purge {entity.topic.name}")
    for seat in entity.seats:
        seat.online()
    _Purging(broker, entity, wanted, forget, reply, held, most).next_slice()


class _Purging:
    """A purge in progress."""

    def __init__(
        self,
        broker: Broker,
        entity: Entity,
        wanted: Filter,
        forget: bool,
        reply: Reply,
        held: bool,
        most: int | None,
    ) -> None:
        self._broker = broker
        self._entity = entity
        self._wanted = wanted
        self._forget = forget
        self._reply = reply
        self._held = held
        self._most = most
        self._seats = list(entity.seats)
        self._count = self._start = 0

    def next_slice(self, outcome: Outcome | None = None) -> None:
        """Delete the next slice once the last one is durable."""
        if outcome is not None and outcome.error is not None:
            fail(self._reply, outcome.error)
            return
        if self._reply.done():
            # The caller does not wait any longer: delete nothing more.
            return
        left = None if self._most is None else self._most - self._count
        if not self._seats or left == 0:
            answer(self._reply, self._count)
            return
        seat = self._seats[0]
        try:
            purged, self._start = self._broker.use(
                self._entity,
                seat,
                lambda subscription, now, out: purge(
                    subscription, self._wanted, self._start, PURGE_SLICE, out, self._held, left
                ),
            )
            if not self._start:
                self._seats.pop(0)
                if self._forget:
                    self._broker.apply(seat, lambda partition, now, out: forget_ids(partition, out))
        except Exception as error:
            fail(self._reply, error)
            return
        self._count += purged
        _after_commit(self._broker, seat, None, Outcome(self.next_slice))
