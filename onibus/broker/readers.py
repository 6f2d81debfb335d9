"""Named readers: created, moved, listed and deleted (R2, R8).

The broker keeps the rows that a reader has not passed. So the reader limits the floor of every
partition from the start of its creation, before the client gets a response. A floor rises only
after the new position is durable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from onibus.api.log import LakeInfo, LogPositions, ReaderInfo, ReaderReport, StampsSetBack
from onibus.broker.entity import Entity
from onibus.broker.named_reader import MESSAGES, NamedReader, ReaderRow
from onibus.broker.reading import check_log, find_incarnation, find_reader
from onibus.broker.timekeeping import stamps_set_back
from onibus.core.checks import check_text, check_whole
from onibus.core.commands import Command, FindSince
from onibus.core.errors import (
    EntityExists,
    EntityNotFound,
    InvalidArgument,
    LogGap,
    OnibusError,
)
from onibus.core.limits import ADDRESS_LENGTH_MAX, ID_LENGTH_MAX
from onibus.core.numbering import Numbering
from onibus.core.partition import Partition
from onibus.core.path.read import first_hole, ordinal_of, reach
from onibus.core.records import READERS, WriteBatch
from onibus.shard.replies import Outcome, Reply, answer, fail
from onibus.shard.seat import Seat
from onibus.store.interface import Store

if TYPE_CHECKING:
    from onibus.broker.broker import Broker

EARLIEST = "earliest"
LATEST = "latest"


def create(
    broker: Broker,
    entity_name: str,
    name: str,
    log: str,
    start: str | Sequence[int],
    idle_ms: int | None,
    reply: Reply,
    token: str | None = None,
    address: str | None = None,
) -> None:
    """Create a reader; reply with its ReaderInfo once it is durable."""
    entity = broker.find(entity_name)
    check_text("a reader's name", name, ID_LENGTH_MAX, 1)
    check_log(entity, log)
    _check_owner(idle_ms, token, address)
    if name in entity.readers:
        raise EntityExists(f"{entity.name} already has a reader {name!r}")
    positions = _starts(entity, log, start)
    wall = broker.clock.wall()
    row = ReaderRow(
        log=log,
        positions=positions,
        created=wall,
        moved=wall,
        idle_ms=idle_ms,
        token=token,
        address=address,
    )
    reader = NamedReader(name, row, broker.clock.now(), durable=False)
    entity.readers[name] = reader
    for seat in entity.seats:
        seat.online()
    keep(broker, entity, reader)

    def given_up(error: BaseException) -> None:
        _forget(broker, entity, reader)
        fail(reply, error)

    def committed(outcome: Outcome) -> None:
        if outcome.error is not None:
            given_up(outcome.error)
        elif broker.namespace.entities.get(entity.name) is not entity:
            given_up(EntityNotFound(f"{entity.name} was deleted"))
        else:
            reader.durable = True
            watch_idle(broker, entity, reader)
            answer(reply, describe(entity, reader))

    def commit() -> None:
        _commit(broker, entity, reader, Outcome(committed))

    # Positions may be those of rows on their way to the disk: a crash must not leave them ahead.
    _when_durable(broker, entity, commit, given_up)


def _check_owner(idle_ms: int | None, token: str | None, address: str | None) -> None:
    if idle_ms is not None:
        check_whole("idle_ms", idle_ms, 1)
    if token is not None:
        check_text("a reader's token", token, ID_LENGTH_MAX, 1)
    if address is not None:
        check_text("a reader's address", address, ADDRESS_LENGTH_MAX, 1)


def _starts(entity: Entity, log: str, start: str | Sequence[int]) -> list[int]:
    """Return where a new reader begins in each partition."""
    if isinstance(start, str):
        if start not in (EARLIEST, LATEST):
            raise InvalidArgument(f"start is {start!r}: use {EARLIEST}, {LATEST} or numbers")
        ends = [_ends(entity, log, seat.online()) for seat in entity.seats]
        return [first if start == EARLIEST else following for first, following in ends]
    _check_count(entity, start)
    found = []
    for seat, number in zip(entity.seats, start, strict=True):
        position = _position(entity, log, seat, number)
        first = _ends(entity, log, seat.online())[0]
        if position < first:
            lost = (number, _numbering(entity, seat).number(first - 1))
            raise LogGap(f"partition {seat.index} has lost {lost[0]} to {lost[1]}", *lost)
        found.append(position)
    return found


def _check_count(entity: Entity, positions: object) -> None:
    if not isinstance(positions, (list, tuple)) or len(positions) != len(entity.seats):
        raise InvalidArgument(f"pass a list of {len(entity.seats)} positions, one per partition")


def _ends(entity: Entity, log: str, partition: Partition) -> tuple[int, int]:
    """Return from where on all rows are there, and where the next one will be."""
    if log == MESSAGES:
        return partition.log.complete_from, partition.log.next_ordinal
    outcomes = partition.subscriptions[entity.number].outcomes
    return outcomes.first_number, outcomes.next_number


def _position(entity: Entity, log: str, seat: Seat, number: object) -> int:
    """Return the position of a number that a client gives."""
    partition = seat.online()
    if log == MESSAGES:
        return ordinal_of(partition, number)
    following = partition.subscriptions[entity.number].outcomes.visible_below
    if type(number) is not int or not 0 < number <= following:
        raise InvalidArgument(
            f"{number!r} is not the number of an outcome: the next is {following}"
        )
    return number


def _when_durable(
    broker: Broker,
    entity: Entity,
    then: Callable[[], None],
    given_up: Callable[[BaseException], None],
) -> None:
    """Call `then` when everything that an entity's partitions wrote so far is durable."""
    stores = list(dict.fromkeys(seat.store for seat in entity.seats))
    left = len(stores)
    failed = False

    def collect(outcome: Outcome) -> None:
        nonlocal left, failed
        left -= 1
        if failed:
            return
        try:
            if outcome.error is not None:
                raise outcome.error
            if not left:
                then()
        except OnibusError as error:
            failed = True
            given_up(error)

    for store in stores:
        store.answer_after(Outcome(collect), None)


def move(
    broker: Broker,
    entity_name: str,
    name: str,
    positions: Sequence[int],
    incarnation: int,
    reply: Reply,
    token: str | None = None,
) -> None:
    """Move a reader up to these numbers; reply when that is durable."""
    if type(incarnation) is not int:
        raise InvalidArgument("pass the incarnation that the positions belong to")
    entity = find_incarnation(broker, entity_name, incarnation)
    reader = find_reader(entity, name)
    reader.check_token(token)
    _check_count(entity, positions)
    asked = list(reader.asked)
    for seat, number in zip(entity.seats, positions, strict=True):
        known = asked[seat.index]
        if type(number) is int and number == _number(entity, reader, seat, known):
            continue
        asked[seat.index] = _position(entity, reader.log, seat, number)
        if asked[seat.index] < known:
            raise InvalidArgument(
                f"reader {name!r} moves forward only: it is at "
                f"{_number(entity, reader, seat, known)} in partition {seat.index}"
            )
    reader.asked = asked
    reader.moved = broker.clock.wall()
    reader.used = broker.clock.now()

    def moved(outcome: Outcome) -> None:
        if outcome.error is not None:
            fail(reply, outcome.error)
            return
        reader.positions = asked
        if entity.readers.get(name) is reader:
            keep(broker, entity, reader)
        answer(reply, None)

    _commit(broker, entity, reader, Outcome(moved))


def take(
    broker: Broker,
    entity_name: str,
    name: str,
    reply: Reply,
    *,
    held: Sequence[str] = (),
    token: str | None = None,
    address: str | None = None,
    idle_ms: int | None = None,
) -> None:
    """Take a reader over from the holder of one of the `held` tokens.

    From then on only moves with the new token count, and None leaves a value as it is. Reply with
    the ReaderInfo once this is durable.
    """
    entity = broker.find(entity_name)
    reader = find_reader(entity, name)
    _check_owner(idle_ms, token, address)
    if reader.token not in (None, token):
        reader.check_token(reader.token if reader.token in held else None)
    reader.token = reader.token if token is None else token
    reader.address = reader.address if address is None else address
    reader.idle_ms = reader.idle_ms if idle_ms is None else idle_ms
    reader.used = broker.clock.now()
    watch_idle(broker, entity, reader)

    def taken(outcome: Outcome) -> None:
        if outcome.error is not None:
            fail(reply, outcome.error)
        else:
            answer(reply, describe(entity, reader))

    _commit(broker, entity, reader, Outcome(taken))


def report(
    broker: Broker,
    entity_name: str,
    name: str,
    given: ReaderReport,
    reply: Reply,
    key: str = "",
    has_page: bool = False,
) -> None:
    """Keep what a program reports of the lake behind a reader; reply once that is durable."""
    entity = broker.find(entity_name)
    reader = find_reader(entity, name)
    wall = broker.clock.wall()
    known = reader.lake or LakeInfo()
    if given.table is not None:
        reader.check_token(given.token)
        table = msgspec.structs.asdict(given.table)
        if not table["batch_rows"]:
            table["batch_rows"] = known.batch_rows
        else:
            table["batch_ms"] = wall
        known = msgspec.structs.replace(known, **table)
    if given.audit is not None:
        audit = msgspec.structs.asdict(given.audit) | {"findings": tuple(given.audit.findings)}
        known = msgspec.structs.replace(known, **audit, verdict_ms=wall, verdict_key=key)
    if has_page:
        known = msgspec.structs.replace(known, page_ms=wall)
    reader.lake = known

    def kept(outcome: Outcome) -> None:
        if outcome.error is not None:
            fail(reply, outcome.error)
        else:
            answer(reply, None)

    _commit(broker, entity, reader, Outcome(kept))


def delete(broker: Broker, entity_name: str, name: str, reply: Reply) -> None:
    """Delete a reader; rows kept for it alone may be deleted once that is durable."""
    entity = broker.find(entity_name)
    _delete(broker, entity, find_reader(entity, name), reply)


def _delete(broker: Broker, entity: Entity, reader: NamedReader, reply: Reply) -> None:
    batch = WriteBatch()
    batch.delete(READERS, (entity.incarnation, reader.name))

    def deleted(outcome: Outcome) -> None:
        if outcome.error is not None:
            fail(reply, outcome.error)
            return
        _forget(broker, entity, reader)
        answer(reply, None)

    broker.namespace.commit(batch, Outcome(deleted))
    reader.durable = False
    reader.leaving = True


def _commit(broker: Broker, entity: Entity, reader: NamedReader, reply: Reply) -> None:
    batch = WriteBatch()
    content = msgspec.json.encode(reader.row())
    batch.put(READERS, (entity.incarnation, reader.name, content))
    broker.namespace.commit(batch, reply)


def _forget(broker: Broker, entity: Entity, reader: NamedReader) -> None:
    """Stop keeping rows for a reader."""
    entity.readers.pop(reader.name, None)
    broker.timers.cancel(("reader", (entity.incarnation, reader.name)))
    _tell(broker, entity, lambda _: entity.keep_no_longer(reader))


def keep(broker: Broker, entity: Entity, reader: NamedReader) -> None:
    """Keep what a reader has not passed in the partitions that are up."""
    _tell(broker, entity, lambda index: entity.keep_for_reader(index, reader))


def _tell(broker: Broker, entity: Entity, command_for: Callable[[int], Command[None]]) -> None:
    """Give each partition that is up a command, and tidy it soon."""
    now = broker.clock.now()
    for seat in entity.seats:
        if seat.partition is not None and not seat.deleted:
            broker.apply(seat, command_for(seat.index), now)
            broker.tidy_soon(seat)


# Listing


def listed(broker: Broker, entity_name: str) -> list[ReaderInfo]:
    """Return all readers of an entity, by their names."""
    entity = broker.find(entity_name)
    return [
        describe(entity, reader) for _, reader in sorted(entity.readers.items()) if reader.durable
    ]


def describe(entity: Entity, reader: NamedReader) -> ReaderInfo:
    """Return what an owner sees of a reader."""
    numbers, lags, losses = [], [], []
    for seat in entity.seats:
        position = reader.positions[seat.index]
        number = partial(_number, entity, reader, seat)
        numbers.append(number(position))
        lag, lost = None, None
        if seat.partition is not None:
            lag = lag_of(entity, reader, seat.partition)
            lost = _lost(entity, reader, seat.partition, position)
        lags.append(lag)
        losses.append(None if lost is None else (number(lost[0]), number(lost[1])))
    return ReaderInfo(
        name=reader.name,
        entity=entity.name,
        incarnation=entity.incarnation,
        log=reader.log,
        positions=tuple(numbers),
        lag=tuple(lags),
        lost=tuple(losses),
        created_ms=reader.created,
        moved_ms=reader.moved,
        idle_ms=reader.idle_ms,
        address=reader.address,
        lake=reader.lake,
    )


def lag_of(entity: Entity, reader: NamedReader, partition: Partition) -> int:
    """Return how many numbers a reader is behind in a partition."""
    position = reader.positions[partition.index]
    return max(_visible(entity, reader.log, partition) - position, 0)


def _lost(
    entity: Entity, reader: NamedReader, partition: Partition, position: int
) -> tuple[int, int] | None:
    if reader.log == MESSAGES:
        return first_hole(partition.log, position, partition.log.visible_below)
    first = partition.subscriptions[entity.number].outcomes.first_number
    return (position, first - 1) if position < first else None


def _visible(entity: Entity, log: str, partition: Partition) -> int:
    """Return the ordinal, or number, below which everything is durable."""
    if log == MESSAGES:
        return partition.log.visible_below
    return partition.subscriptions[entity.number].outcomes.visible_below


def _number(entity: Entity, reader: NamedReader, seat: Seat, position: int) -> int:
    """Return a position as its reader knows it."""
    return _numbering(entity, seat).number(position) if reader.log == MESSAGES else position


def _numbering(entity: Entity, seat: Seat) -> Numbering:
    if seat.partition is not None:
        return seat.partition.numbering
    return Numbering(seat.index, entity.partitioned)


def positions_of(
    broker: Broker, entity_name: str, log: str, since_ms: int | None = None
) -> LogPositions:
    """Return between which numbers each partition's log can be read, and where a time begins."""
    entity = broker.find(entity_name)
    check_log(entity, log)
    if since_ms is not None:
        check_whole("since_ms", since_ms, 0)
    earliest: list[int | None] = []
    latest: list[int | None] = []
    since: list[int | None] = []
    set_back: list[StampsSetBack] = []
    last_ms = 0
    for seat in entity.seats:
        if seat.partition is None:
            for column in (earliest, latest, since):
                column.append(None)
            continue
        number = seat.partition.numbering.number if log == MESSAGES else int
        end = _visible(entity, log, seat.partition)
        earliest.append(number(min(_ends(entity, log, seat.partition)[0], end)))
        latest.append(number(end))
        set_back += stamps_set_back(seat)
        last_ms = max(last_ms, seat.partition.log.last_stamp)
        if since_ms is not None:
            outcomes_of = None if log == MESSAGES else entity.number
            found = broker.apply(seat, FindSince(since_ms, outcomes_of), broker.clock.now())
            since.append(number(found))
    return LogPositions(
        entity=entity.name,
        incarnation=entity.incarnation,
        log=log,
        earliest=tuple(earliest),
        latest=tuple(latest),
        since=None if since_ms is None else tuple(since),
        created_ms=entity.created,
        last_ms=last_ms,
        set_back=tuple(set_back),
    )


def reach_of(broker: Broker, entity_name: str, index: int, start: int, limit_bytes: int) -> int:
    """Return the number before which rows from start on have at most `limit_bytes` bytes."""
    entity = broker.find(entity_name)
    check_log(entity, MESSAGES)
    check_whole("partition", index, 0, len(entity.seats) - 1)
    check_whole("limit_bytes", limit_bytes, 1)
    seat = entity.seats[index]
    partition = seat.online()
    first, end = ordinal_of(partition, start), partition.log.visible_below
    return partition.numbering.number(reach(partition.log, first, end, limit_bytes))


# Coming and going


def read_back(broker: Broker, store: Store) -> None:
    """Take up the readers that the namespace's own store has, before any partition is opened.

    After that store has failed, the rows show the outcome of pending decisions.
    """
    entities = _by_incarnation(broker)
    left = WriteBatch()
    rows: dict[tuple[int, str], ReaderRow] = {}
    for incarnation, name, content in store.scan(READERS):
        assert isinstance(incarnation, int)
        assert isinstance(name, str)
        assert isinstance(content, bytes)
        if incarnation in entities:
            rows[incarnation, name] = msgspec.json.decode(content, type=ReaderRow)
        else:
            left.delete(READERS, (incarnation, name))
    if left:
        store.commit(left)
    for entity in entities.values():
        for reader in list(entity.readers.values()):
            there = (entity.incarnation, reader.name) in rows
            if not there and (reader.durable or reader.leaving):
                _forget(broker, entity, reader)
    for (incarnation, name), row in rows.items():
        entity = entities[incarnation]
        # Being down is not being idle.
        reader = NamedReader(name, row, broker.clock.now(), durable=True)
        entity.readers[name] = reader
        keep(broker, entity, reader)
        watch_idle(broker, entity, reader)


def watch_idle(broker: Broker, entity: Entity, reader: NamedReader) -> None:
    """Come back when a reader may have been idle for as long as its owner allows."""
    if reader.idle_ms is not None:
        key = ("reader", (entity.incarnation, reader.name))
        broker.timers.set(key, reader.used + reader.idle_ms)


def remove_if_idle(broker: Broker, subject: tuple[int, str]) -> None:
    """Delete a reader that no client has used; otherwise check again later."""
    incarnation, name = subject
    entity = _by_incarnation(broker).get(incarnation)
    reader = None if entity is None else entity.readers.get(name)
    if entity is None or reader is None or reader.idle_ms is None or not reader.durable:
        return
    if reader.used + reader.idle_ms > broker.clock.now():
        watch_idle(broker, entity, reader)
        return
    # If the namespace's own store is down, the reader is checked again when it is open.
    with contextlib.suppress(OnibusError):
        _delete(broker, entity, reader, Outcome())


def _by_incarnation(broker: Broker) -> dict[int, Entity]:
    return {one.incarnation: one for one in broker.namespace.entities.values()}
