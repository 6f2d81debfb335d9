"""Settling: the changes that receivers and operators make to existing messages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from onibus.broker.entity import Entity
from onibus.core.commands import (
    Cancel,
    ChangeVisibility,
    Command,
    Delete,
    ForgetIds,
    HeldSession,
    Peek,
    Peeked,
    Purge,
    ReceiveDeferred,
    Renew,
    SetSessionState,
    Settle,
    Settlement,
    Undefer,
    check_numbers,
    check_token,
)
from onibus.core.errors import (
    EntityDisabled,
    InvalidArgument,
    InvalidOperation,
    MessageNotFound,
    Refused,
    UnknownToken,
)
from onibus.core.holds import TOKEN
from onibus.core.inspection import Filter, check_filter
from onibus.core.limits import BATCH_COUNT_MAX, NUMBERS_MAX
from onibus.core.message import ReceivedMessage
from onibus.core.numbering import partition_index
from onibus.shard.replies import Outcome, Reply, answer, fail
from onibus.shard.seat import Seat
from onibus.shard.slices import in_slices

if TYPE_CHECKING:
    from onibus.broker.broker import Broker

T = TypeVar("T")

#: Builds the command of one partition from the places of its tokens in the request.
BuildForSome = Callable[[list[int]], Command[list[Any]]]
#: Builds the command of one partition from its share of the tokens or numbers.
Build = Callable[[list[Any]], Command[Any]]

#: Messages that one slice of a purge looks at.
PURGE_SLICE = 1_000
#: Messages that one slice of a peek looks at.
PEEK_SLICE = 500


def seat_of_token(entity: Entity, token: bytes) -> Seat:
    """Return the partition that issued a token; reject bytes that are not a token."""
    check_token(token)
    if len(entity.seats) == 1:
        return entity.seats[0]
    index = partition_index(TOKEN.unpack(token)[0], entity.partitioned)
    if index >= len(entity.seats):
        raise UnknownToken("not a lock token of this entity: settle where it was received")
    return entity.seats[index]


def seat_of_number(entity: Entity, number: int) -> Seat:
    """Return the partition of a sequence number."""
    if isinstance(number, int) and number >= 0:
        index = partition_index(number, entity.partitioned)
        if index < len(entity.seats):
            return entity.seats[index]
    raise MessageNotFound(f"no message with sequence number {number}")


# One result per token


def settle_each(
    broker: Broker,
    name: str,
    tokens: Sequence[bytes],
    settlement: Settlement,
    reply: Reply,
    session: HeldSession | None = None,
) -> None:
    """Settle each message independently; the reply gets None, or the rejection, for each token.

    With `session`, only while the caller holds that session: it may have been taken over (B9).
    """
    entity = broker.find(name)
    on_each(
        broker,
        entity,
        tokens,
        lambda places: Settle(entity.number, settlement, _some(tokens, places), session),
        reply,
    )


def renew_each(
    broker: Broker,
    name: str,
    tokens: Sequence[bytes],
    reply: Reply,
    duration_ms: int | None = None,
    session: HeldSession | None = None,
) -> None:
    """Renew each lock independently; the reply gets the new end or rejection of each token."""
    entity = broker.find(name)
    on_each(
        broker,
        entity,
        tokens,
        lambda places: Renew(entity.number, _some(tokens, places), duration_ms, session),
        reply,
    )


def renew_one(
    broker: Broker,
    name: str,
    token: bytes,
    reply: Reply,
    duration_ms: int | None = None,
    session: HeldSession | None = None,
) -> None:
    """Renew a lock; the reply gets its new end by the wall clock."""
    entity = broker.find(name)
    seat = seat_of_token(entity, token)
    command = Renew(entity.number, [token], duration_ms, session, atomic=True)
    (until,) = broker.use(entity, seat, command)
    _after_commit(broker, seat, until, reply)


def change_visibility(
    broker: Broker,
    name: str,
    tokens: Sequence[bytes],
    durations_ms: Sequence[int],
    reply: Reply,
    *,
    accepts_earlier: bool,
) -> None:
    """Change visibility timeouts as SQS does; the reply gets None, or the rejection, for each."""
    entity = broker.find(name)

    def build(places: list[int]) -> ChangeVisibility:
        durations = _some(durations_ms, places)
        return ChangeVisibility(entity.number, _some(tokens, places), durations, accepts_earlier)

    on_each(broker, entity, tokens, build, reply)


def delete_each(broker: Broker, name: str, tokens: Sequence[bytes], reply: Reply) -> None:
    """Delete messages as SQS does; the reply gets None, or the rejection, for each token."""
    entity = broker.find(name)
    on_each(
        broker,
        entity,
        tokens,
        lambda places: Delete(entity.number, _some(tokens, places)),
        reply,
    )


def on_each(
    broker: Broker, entity: Entity, tokens: Sequence[bytes], build: BuildForSome, reply: Reply
) -> None:
    """Do something to each message, by its token and independently of the others.

    The reply gets the results in the order of the tokens when all is durable.
    """
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

    for seat, places in by_seat.items():
        told = broker.use(entity, seat, build(places))
        for place, result in zip(places, told, strict=True):
            results[place] = result
        _after_commit(broker, seat, None, Outcome(collect))
    if not by_seat:
        answer(reply, results)


def _some(given: Sequence[T], places: list[int]) -> Sequence[T]:
    return given if len(places) == len(given) else [given[place] for place in places]


def _by_seat(entity: Entity, tokens: Sequence[bytes], results: list[Any]) -> dict[Seat, list[int]]:
    """Return the places of tokens by the partition that issued them; reject others there."""
    by_seat: dict[Seat, list[int]] = {}
    for place, token in enumerate(tokens):
        try:
            by_seat.setdefault(seat_of_token(entity, token), []).append(place)
        except Refused as refusal:
            results[place] = refusal
    return by_seat


# Atomically


def settle_all(
    broker: Broker,
    name: str,
    tokens: Sequence[bytes],
    settlement: Settlement,
    reply: Reply,
    session: HeldSession | None = None,
) -> None:
    """Settle messages atomically: a token that does not hold rejects the call.

    For `session` see `settle_each`.
    """
    entity = broker.find(name)
    on_all(
        broker,
        entity,
        tokens,
        seat_of_token,
        lambda some: Settle(entity.number, settlement, some, session, atomic=True),
        reply,
    )


def cancel_scheduled(broker: Broker, name: str, numbers: Sequence[int], reply: Reply) -> None:
    """Cancel scheduled messages atomically."""
    entity = broker.find(name)
    on_all(broker, entity, numbers, seat_of_number, lambda some: Cancel(entity.number, some), reply)


def undefer_all(broker: Broker, name: str, numbers: Sequence[int], reply: Reply) -> None:
    """Make deferred messages active again, atomically."""
    entity = broker.find(name)
    on_all(
        broker, entity, numbers, seat_of_number, lambda some: Undefer(entity.number, some), reply
    )


def receive_deferred(
    broker: Broker,
    name: str,
    numbers: Sequence[int],
    reply: Reply,
    *,
    dead: bool = False,
    take: bool = False,
    session: HeldSession | None = None,
    bytes_max: int | None = None,
) -> None:
    """Receive deferred messages by sequence number, atomically (L2)."""
    entity = broker.find(name)
    settings = entity.outlet_settings()
    if not settings.receives:
        raise EntityDisabled(f"{entity.name} is {settings.status}: it delivers no messages")
    if settings.requires_session and not (settings.fifo or dead) and session is None:
        raise InvalidOperation(f"{entity.name} requires sessions: use the session's receiver")
    on_all(
        broker,
        entity,
        numbers,
        seat_of_number,
        lambda some: ReceiveDeferred(entity.number, some, dead, take, session, bytes_max),
        reply,
    )


def on_all(
    broker: Broker,
    entity: Entity,
    subjects: Sequence[Any],
    seat_of: Callable[[Entity, Any], Seat],
    build: Build,
    reply: Reply,
) -> None:
    """Do something to messages of several partitions, unless one of them rejects it.

    The reply gets the received messages, if the command receives.
    """
    # Completing by tokens is the quickest.
    check_numbers(subjects, BATCH_COUNT_MAX if seat_of is seat_of_token else NUMBERS_MAX)
    by_seat: dict[Seat, list[Any]] = {}
    for subject in subjects:
        by_seat.setdefault(seat_of(entity, subject), []).append(subject)
    # One time for all of it: messages must not come due between the search and the change.
    now = broker.clock.now()
    for seat in by_seat:
        broker.advance(seat, now)
    commands = {seat: build(chosen) for seat, chosen in by_seat.items()}
    if len(commands) > 1:
        for seat, command in commands.items():
            broker.check(entity, seat, command)
    left = len(commands)
    results: dict[Seat, Any] = dict.fromkeys(commands)

    def collect(seat: Seat, outcome: Outcome) -> None:
        nonlocal left
        if outcome.error is not None:
            fail(reply, outcome.error)
            return
        results[seat] = outcome.value
        left -= 1
        if not left:
            received = [one for several in results.values() for one in several or () if one]
            answer(reply, received or None)

    for seat, command in commands.items():
        result = broker.use(entity, seat, command, now)
        _after_commit(broker, seat, result, Outcome(partial(collect, seat)))


def _after_commit(broker: Broker, seat: Seat, value: Any, reply: Reply) -> None:
    seat.store.answer_after(reply, value)


def on_session(
    broker: Broker, entity: Entity, seat: Seat, command: Command[Any], reply: Reply
) -> None:
    """Change a message session that the caller holds; reply when that is durable.

    Sessions keep their states without messages, so states may take only half of the disk's reserve.
    """
    if isinstance(command, SetSessionState) and command.state:
        seat.store.check_disk(len(command.state), settling=True)
    _after_commit(broker, seat, broker.use(entity, seat, command), reply)


# Looking at, or deleting, many


def peek_all(
    broker: Broker, name: str, start: int, limit: int, wanted: Filter, dead: bool
) -> list[Any]:
    """Look at messages from a number on, at once."""
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
    """Look at messages from a number on, with other requests between the slices."""
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

    in_slices(broker.call_soon, step)


def _peek(
    broker: Broker, name: str, start: int, limit: int, wanted: Filter, dead: bool
) -> Generator[None, None, list[ReceivedMessage]]:
    """Look through partitions in their order, up to one in which something is found (P7).

    Yields after each slice.
    """
    entity = broker.find(name)
    if not isinstance(limit, int) or not 0 < limit <= BATCH_COUNT_MAX:
        raise InvalidArgument(f"limit is out of range: peek 1 to {BATCH_COUNT_MAX} messages")
    if not isinstance(start, int) or start < 0:
        raise InvalidArgument("start must be a sequence number")
    check_filter(wanted, dead)
    index = partition_index(start, entity.partitioned)
    if index and partition_index(start - 1, True) < index <= len(entity.seats):
        # One above the last number of the partition before: it may have rolled over since (S8).
        index -= 1
    for seat in entity.seats[index:]:
        if seat.partition is None and len(entity.seats) > 1:
            continue
        number = start if seat.index == index else 0
        slices = peek_partition(broker, entity, seat, number, limit, wanted, dead)
        found: list[ReceivedMessage] = []
        for peeked in slices:
            found += peeked.messages
            if peeked.next:
                yield
        if found:
            return found
    return []


def peek_partition(
    broker: Broker,
    entity: Entity,
    seat: Seat,
    number: int,
    limit: int,
    wanted: Filter,
    dead: bool,
    looks: Callable[[int], int] = lambda looked: PEEK_SLICE,
) -> Generator[Peeked, None, None]:
    """Yield what each slice of a peek finds in a partition, from a sequence number on.

    `looks` returns how many messages the next slice looks at; 0 ends the peek.
    """
    ordinal: int | None = None
    found = size = looked = 0
    while a_slice := looks(looked):
        command = Peek(
            entity.number,
            wanted,
            limit - found,
            a_slice,
            ordinal,
            number,
            dead,
            size,
            at_least_one=not found,
        )
        peeked = broker.use(entity, seat, command)
        found += len(peeked.messages)
        looked += peeked.looked
        size, ordinal = peeked.size, peeked.next
        yield peeked
        if not ordinal:
            return


def purge_all(
    broker: Broker,
    name: str,
    wanted: Filter,
    forget: bool,
    reply: Reply,
    held: bool = False,
    most: int | None = None,
) -> None:
    """Delete messages that match, in slices; reply with their number when all is durable (X2).

    With `held` also locked messages. At most `most`: the oldest of each partition first.
    """
    entity = broker.find(name)
    check_filter(wanted, dead=False)
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
            number = self._entity.number
            command = Purge(number, self._wanted, self._start, PURGE_SLICE, self._held, left)
            purged = self._broker.use(self._entity, seat, command)
            self._start = purged.next
            if not self._start:
                self._seats.pop(0)
                if self._forget:
                    self._broker.apply(seat, ForgetIds())
        except Exception as error:
            fail(self._reply, error)
            return
        self._count += purged.count
        _after_commit(self._broker, seat, None, Outcome(self.next_slice))
