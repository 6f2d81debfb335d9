"""Settling: the changes that receivers and operators make to existing messages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

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
    are_tokens,
    check_numbers,
)
from onibus.core.errors import (
    EntityDisabled,
    InvalidArgument,
    InvalidOperation,
    PartitionOffline,
    Refused,
    Unknown,
)
from onibus.core.inspection import Filter, check_filter
from onibus.core.limits import BATCH_COUNT_MAX, NUMBERS_MAX
from onibus.core.message import ReceivedMessage
from onibus.core.numbering import partition_index
from onibus.directory.entity import Entity
from onibus.directory.routing import partition_of_number, partition_of_token
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import Reply, fail
from onibus.shard.runner import Steps, durable, run, turn_over

if TYPE_CHECKING:
    from onibus.gateway.broker import Broker

T = TypeVar("T")

#: Builds the command of one partition from the places of its tokens in the request.
BuildForSome = Callable[[list[int]], Command[list[Any]]]
#: Builds the command of one partition from its share of the tokens or numbers.
Build = Callable[[list[Any]], Command[Any]]

#: Messages that one slice of a purge looks at.
PURGE_SLICE = 1_000
#: Messages that one slice of a peek looks at.
PEEK_SLICE = 500


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
    partition = partition_of_token(entity, token)
    command = Renew(entity.number, [token], duration_ms, session, atomic=True)
    (until,) = broker.use(entity, partition, command)
    partition.store.answer_after(reply, until)


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
    """Delete messages as SQS does; the reply gets None, or the rejection, for each token.

    Deletes of one queue that arrive in one turn of the event loop are one command: the messages of
    several FIFO receivers are often neighbours in the log, and are released as one run.
    """
    entity = broker.find(name)
    if len(entity.partitions) > 1 or not are_tokens(tokens):
        on_each(
            broker,
            entity,
            tokens,
            lambda places: Delete(entity.number, _some(tokens, places)),
            reply,
        )
        return
    gathered = broker.deletes.setdefault(entity, [])
    gathered.append((tokens, reply))
    if len(gathered) == 1:
        broker.call_soon(partial(_delete_gathered, broker, entity))


def _delete_gathered(broker: Broker, entity: Entity) -> None:
    gathered, partition = broker.deletes.pop(entity), entity.partitions[0]
    tokens = [token for some, _ in gathered for token in some]
    try:
        results = broker.use(entity, partition, Delete(entity.number, tokens))
    except Exception as error:
        for _, reply in gathered:
            fail(reply, error)
        return
    start = 0
    for some, reply in gathered:
        partition.store.answer_after(reply, results[start : start + len(some)])
        start += len(some)


def on_each(
    broker: Broker, entity: Entity, tokens: Sequence[bytes], build: BuildForSome, reply: Reply
) -> None:
    """Do something to each message, by its token and independently of the others.

    The reply gets the results in the order of the tokens when all is durable.
    """
    results: list[Any] = [None] * len(tokens)
    by_partition = _by_partition(entity, tokens, results)
    stores = []
    offline: PartitionOffline | None = None
    for partition, places in by_partition.items():
        told: list[Any]
        try:
            told = broker.use(entity, partition, build(places))
            stores.append(partition.store)
        except PartitionOffline as error:
            # Messages of other partitions do not depend on this one.
            offline, told = error, [error] * len(places)
        for place, result in zip(places, told, strict=True):
            results[place] = result
    if offline is not None and not stores:
        raise offline
    durable(stores, results)(reply)


def _some(given: Sequence[T], places: list[int]) -> Sequence[T]:
    return given if len(places) == len(given) else [given[place] for place in places]


def _by_partition(
    entity: Entity, tokens: Sequence[bytes], results: list[Any]
) -> dict[ShardPartition, list[int]]:
    """Return the places of tokens by the partition that issued them; reject others there."""
    if len(entity.partitions) == 1 and are_tokens(tokens):
        return {entity.partitions[0]: list(range(len(tokens)))}
    by_partition: dict[ShardPartition, list[int]] = {}
    for place, token in enumerate(tokens):
        try:
            by_partition.setdefault(partition_of_token(entity, token), []).append(place)
        except Refused as refusal:
            results[place] = refusal
    return by_partition


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
        partition_of_token,
        lambda some: Settle(entity.number, settlement, some, session, atomic=True),
        reply,
    )


def cancel_scheduled(broker: Broker, name: str, numbers: Sequence[int], reply: Reply) -> None:
    """Cancel scheduled messages atomically."""
    entity = broker.find(name)
    on_all(
        broker,
        entity,
        numbers,
        partition_of_number,
        lambda some: Cancel(entity.number, some),
        reply,
    )


def undefer_all(broker: Broker, name: str, numbers: Sequence[int], reply: Reply) -> None:
    """Make deferred messages active again, atomically."""
    entity = broker.find(name)
    on_all(
        broker,
        entity,
        numbers,
        partition_of_number,
        lambda some: Undefer(entity.number, some),
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
        partition_of_number,
        lambda some: ReceiveDeferred(entity.number, some, dead, take, session, bytes_max),
        reply,
    )


def on_all(
    broker: Broker,
    entity: Entity,
    subjects: Sequence[Any],
    partition_of_message: Callable[[Entity, Any], ShardPartition],
    build: Build,
    reply: Reply,
) -> None:
    """Do something to messages of several partitions, unless one of them rejects it.

    The reply gets the received messages, if the command receives.
    """
    # Completing by tokens is the quickest.
    check_numbers(
        subjects, BATCH_COUNT_MAX if partition_of_message is partition_of_token else NUMBERS_MAX
    )
    by_partition: dict[ShardPartition, list[Any]] = {}
    if len(entity.partitions) == 1 and partition_of_message is partition_of_token:
        # Building the command checks the tokens.
        by_partition[entity.partitions[0]] = list(subjects)
    else:
        for subject in subjects:
            by_partition.setdefault(partition_of_message(entity, subject), []).append(subject)
    # One time for all of it: messages must not come due between the search and the change.
    now = broker.clock.now()
    for partition in by_partition:
        broker.advance(partition, now)
    commands = {partition: build(chosen) for partition, chosen in by_partition.items()}
    if len(commands) > 1:
        for partition, command in commands.items():
            broker.check(entity, partition, command)
    results = _apply_all(broker, entity, commands, now)
    received = [one for result in results for one in result or () if one]
    durable([partition.store for partition in commands], received or None)(reply)


def _apply_all(
    broker: Broker, entity: Entity, commands: dict[ShardPartition, Command[Any]], now: int
) -> list[Any]:
    """Carry out commands that were checked; return their results."""
    first, *others = dict.fromkeys(partition.store for partition in commands)
    if len(commands) > 1 and not others:
        entity.last_used = now
        return list(first.apply_together(commands, now).values())
    results: list[Any] = []
    for partition, command in commands.items():
        try:
            results.append(broker.use(entity, partition, command, now))
        except PartitionOffline as error:
            if not results:
                raise
            raise Unknown(f"some of the messages may have changed: {error}") from error
    return results


def on_session(
    broker: Broker, entity: Entity, partition: ShardPartition, command: Command[Any], reply: Reply
) -> None:
    """Change a message session that the caller holds; reply when that is durable.

    Sessions keep their states without messages, so states may take only half of the disk's reserve.
    """
    if isinstance(command, SetSessionState) and command.state:
        partition.store.check_disk(len(command.state), settling=True)
    partition.store.answer_after(reply, broker.use(entity, partition, command))


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

    def steps() -> Steps[list[ReceivedMessage]]:
        slices = _peek(broker, name, start, limit, wanted, dead)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                found: list[ReceivedMessage] = end.value
                return found
            yield turn_over(broker.call_soon)
            if reply.done():
                return []

    run(steps(), reply)


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
    if index and partition_index(start - 1, True) < index <= len(entity.partitions):
        # One above the last number of the partition before: it may have rolled over since (S8).
        index -= 1
    for partition in entity.partitions[index:]:
        if not partition.is_online and len(entity.partitions) > 1:
            continue
        number = start if partition.index == index else 0
        slices = peek_partition(broker, entity, partition, number, limit, wanted, dead)
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
    partition: ShardPartition,
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
        peeked = broker.use(entity, partition, command)
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
    entity.check_online()
    run(_purge(broker, entity, wanted, forget, reply, held, most), reply)


def _purge(
    broker: Broker,
    entity: Entity,
    wanted: Filter,
    forget: bool,
    reply: Reply,
    held: bool,
    most: int | None,
) -> Steps[int]:
    """Delete slice after slice; a slice begins when the last one is durable."""
    count = 0
    for partition in entity.partitions:
        start = 0
        # A caller that has stopped waiting gets nothing more deleted.
        while count != most and not reply.done():
            left = None if most is None else most - count
            command = Purge(entity.number, wanted, start, PURGE_SLICE, held, left)
            purged = broker.use(entity, partition, command)
            start = purged.next
            if forget and not start:
                broker.apply(partition, ForgetIds())
            count += purged.count
            yield durable([partition.store])
            if not start:
                break
    return count
