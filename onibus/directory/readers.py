"""Named readers: created, moved, listed and deleted (R2, R8).

The broker keeps the rows that a reader has not passed. So the reader limits the floor of every
partition from the start of its creation, before the client gets a response. A floor rises only
after the new position is durable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from onibus.api.log import LakeInfo, LogPositions, ReaderInfo, ReaderReport, StampsSetBack
from onibus.core.checks import check_text, check_whole
from onibus.core.commands import (
    Command,
    FindEnds,
    FindLost,
    FindPosition,
    FindReach,
    FindSince,
    ListStamps,
    LogEnds,
)
from onibus.core.errors import (
    EntityExists,
    EntityNotFound,
    EntityReplaced,
    InvalidArgument,
    InvalidOperation,
    LogGap,
    OnibusError,
    QuotaExceeded,
)
from onibus.core.limits import ADDRESS_LENGTH_MAX, ID_LENGTH_MAX
from onibus.core.records import READERS, WriteBatch
from onibus.directory.entity import Entity
from onibus.directory.named_reader import MESSAGES, OUTCOMES, NamedReader, ReaderRow
from onibus.directory.timekeeping import stamps_set_back
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import KeptReply, Reply, answer, fail
from onibus.store.interface import Store

if TYPE_CHECKING:
    from onibus.directory.host import Host

EARLIEST = "earliest"
LATEST = "latest"


def create(
    broker: Host,
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
    most = broker.namespace.quotas.readers
    if len(entity.readers) >= most:
        raise QuotaExceeded(
            f"{entity.name} has {most} named readers: delete those that no program uses"
        )
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
    entity.check_online()
    keep(broker, entity, reader)

    def given_up(error: BaseException) -> None:
        _forget(broker, entity, reader)
        fail(reply, error)

    def committed(kept: KeptReply) -> None:
        if kept.error is not None:
            given_up(kept.error)
        elif broker.namespace.entities.get(entity.name) is not entity:
            given_up(EntityNotFound(f"{entity.name} was deleted"))
        else:
            reader.durable = True
            watch_idle(broker, entity, reader)
            answer(reply, describe(entity, reader))

    def commit() -> None:
        _commit(broker, entity, reader, KeptReply(committed))

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
        ends = [ends_of(entity, log, partition) for partition in entity.partitions]
        return [one.complete_from if start == EARLIEST else one.following for one in ends]
    check_count(entity, start)
    found = []
    for partition, number in zip(entity.partitions, start, strict=True):
        position = position_of(entity, log, partition, number)
        first = ends_of(entity, log, partition).complete_from
        if position < first:
            lost = (number, partition.numbering.number(first - 1))
            raise LogGap(f"partition {partition.index} has lost {lost[0]} to {lost[1]}", *lost)
        if log == OUTCOMES and position > 1 and not _keeps_outcomes(entity):
            raise LogGap(
                f"{entity.name} records no outcomes since their last reader was removed: those "
                f"from {number} on in partition {partition.index} may be missing",
                *(number, number),
            )
        found.append(position)
    return found


def _keeps_outcomes(entity: Entity) -> bool:
    """Return whether outcomes get numbers and rows now."""
    retained = (entity.topic or entity).log_settings.retention_ms is not None
    return retained or any(reader.log == OUTCOMES for reader in entity.readers.values())


def check_count(entity: Entity, positions: object) -> None:
    if not isinstance(positions, (list, tuple)) or len(positions) != len(entity.partitions):
        raise InvalidArgument(
            f"pass a list of {len(entity.partitions)} positions, one per partition"
        )


def ends_of(entity: Entity, log: str, partition: ShardPartition) -> LogEnds:
    """Return where the rows of a log begin and end in a partition."""
    return partition.store.look(partition, FindEnds(_outcomes_of(entity, log)))


def _outcomes_of(entity: Entity, log: str) -> int | None:
    """Return whose outcomes a log has; None if it has messages."""
    return None if log == MESSAGES else entity.number


def position_of(entity: Entity, log: str, partition: ShardPartition, number: Any) -> int:
    """Return the position of a number that a client gives."""
    return partition.store.look(partition, FindPosition(number, _outcomes_of(entity, log)))


def _when_durable(
    broker: Host,
    entity: Entity,
    then: Callable[[], None],
    given_up: Callable[[BaseException], None],
) -> None:
    """Call `then` when everything that an entity's partitions wrote so far is durable."""
    stores = list(dict.fromkeys(partition.store for partition in entity.partitions))
    left = len(stores)
    failed = False

    def collect(kept: KeptReply) -> None:
        nonlocal left, failed
        left -= 1
        if failed:
            return
        try:
            if kept.error is not None:
                raise kept.error
            if not left:
                then()
        except OnibusError as error:
            failed = True
            given_up(error)

    for store in stores:
        store.answer_after(KeptReply(collect), None)


def move(
    broker: Host,
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
    check_count(entity, positions)
    asked = list(reader.asked)
    for partition, number in zip(entity.partitions, positions, strict=True):
        known = asked[partition.index]
        if type(number) is int and number == number_of(reader.log, partition, known):
            continue
        asked[partition.index] = position_of(entity, reader.log, partition, number)
        if asked[partition.index] < known:
            raise InvalidArgument(
                f"reader {name!r} moves forward only: it is at "
                f"{number_of(reader.log, partition, known)} in partition {partition.index}"
            )
    reader.asked = asked
    reader.moved = broker.clock.wall()
    reader.used = broker.clock.now()

    def moved(kept: KeptReply) -> None:
        if kept.error is not None:
            fail(reply, kept.error)
            return
        reader.positions = asked
        if entity.readers.get(name) is reader:
            keep(broker, entity, reader)
        answer(reply, None)

    _commit(broker, entity, reader, KeptReply(moved))


def take(
    broker: Host,
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

    def taken(kept: KeptReply) -> None:
        if kept.error is not None:
            fail(reply, kept.error)
        else:
            answer(reply, describe(entity, reader))

    _commit(broker, entity, reader, KeptReply(taken))


def report(
    broker: Host,
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

    def committed(kept: KeptReply) -> None:
        if kept.error is not None:
            fail(reply, kept.error)
        else:
            answer(reply, None)

    _commit(broker, entity, reader, KeptReply(committed))


def delete(broker: Host, entity_name: str, name: str, reply: Reply) -> None:
    """Delete a reader; rows kept for it alone may be deleted once that is durable."""
    entity = broker.find(entity_name)
    _delete(broker, entity, find_reader(entity, name), reply)


def _delete(broker: Host, entity: Entity, reader: NamedReader, reply: Reply) -> None:
    batch = WriteBatch()
    batch.delete(READERS, (entity.incarnation, reader.name))

    def deleted(kept: KeptReply) -> None:
        if kept.error is not None:
            fail(reply, kept.error)
            return
        _forget(broker, entity, reader)
        answer(reply, None)

    broker.namespace.commit(batch, KeptReply(deleted))
    reader.durable = False
    reader.leaving = True


def _commit(broker: Host, entity: Entity, reader: NamedReader, reply: Reply) -> None:
    batch = WriteBatch()
    content = msgspec.json.encode(reader.row())
    batch.put(READERS, (entity.incarnation, reader.name, content))
    broker.namespace.commit(batch, reply)


def _forget(broker: Host, entity: Entity, reader: NamedReader) -> None:
    """Stop keeping rows for a reader."""
    entity.readers.pop(reader.name, None)
    broker.timers.cancel(("reader", (entity.incarnation, reader.name)))
    _tell(broker, entity, lambda _: entity.keep_no_longer(reader))


def keep(broker: Host, entity: Entity, reader: NamedReader) -> None:
    """Keep what a reader has not passed in the partitions that are up."""
    _tell(broker, entity, lambda index: entity.keep_for_reader(index, reader))


def _tell(broker: Host, entity: Entity, command_for: Callable[[int], Command[None]]) -> None:
    """Give each partition that is up a command."""
    now = broker.clock.now()
    for partition in entity.partitions:
        if partition.is_online and not partition.deleted:
            broker.apply(partition, command_for(partition.index), now)


# Listing


def listed(broker: Host, entity_name: str) -> list[ReaderInfo]:
    """Return all readers of an entity, by their names."""
    entity = broker.find(entity_name)
    return [
        describe(entity, reader) for _, reader in sorted(entity.readers.items()) if reader.durable
    ]


def describe(entity: Entity, reader: NamedReader) -> ReaderInfo:
    """Return what an owner sees of a reader."""
    numbers, lags, losses = [], [], []
    for partition in entity.partitions:
        position = reader.positions[partition.index]
        number = partial(number_of, reader.log, partition)
        numbers.append(number(position))
        lag, lost = None, None
        if partition.is_online:
            lag = lag_of(entity, reader, partition)
            query = FindLost(position, _outcomes_of(entity, reader.log))
            lost = partition.store.look(partition, query)
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


def lag_of(entity: Entity, reader: NamedReader, partition: ShardPartition) -> int:
    """Return how many numbers a reader is behind in a partition."""
    position = reader.positions[partition.index]
    return max(ends_of(entity, reader.log, partition).visible_below - position, 0)


def number_of(log: str, partition: ShardPartition, position: int) -> int:
    """Return a position as its reader knows it."""
    return partition.numbering.number(position) if log == MESSAGES else position


def positions_of(
    broker: Host, entity_name: str, log: str, since_ms: int | None = None
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
    for partition in entity.partitions:
        if not partition.is_online:
            for column in (earliest, latest, since):
                column.append(None)
            continue
        number = partition.numbering.number if log == MESSAGES else int
        ends, store = ends_of(entity, log, partition), partition.store
        earliest.append(number(min(ends.complete_from, ends.visible_below)))
        latest.append(number(ends.visible_below))
        stamps = store.look(partition, ListStamps())
        set_back += [stamps_set_back(partition, repair) for repair in stamps.repairs]
        last_ms = max(last_ms, stamps.last_ms)
        if since_ms is not None:
            query = FindSince(since_ms, _outcomes_of(entity, log))
            since.append(number(store.look(partition, query)))
    return LogPositions(
        entity=entity.name,
        incarnation=entity.incarnation,
        log=log,
        earliest=tuple(earliest),
        latest=tuple(latest),
        since=None if since_ms is None else tuple(since),
        created_ms=entity.created,
        last_ms=last_ms,
        now_ms=broker.clock.proven(),
        set_back=tuple(set_back),
    )


def reach_of(broker: Host, entity_name: str, index: int, start: int, limit_bytes: int) -> int:
    """Return the number before which rows from start on have at most `limit_bytes` bytes."""
    entity = broker.find(entity_name)
    check_log(entity, MESSAGES)
    check_whole("partition", index, 0, len(entity.partitions) - 1)
    check_whole("limit_bytes", limit_bytes, 1)
    partition = entity.partitions[index]
    first = position_of(entity, MESSAGES, partition, start)
    reach = partition.store.look(partition, FindReach(first, limit_bytes))
    return partition.numbering.number(reach)


# Coming and going


def read_back(broker: Host, store: Store) -> None:
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


def watch_idle(broker: Host, entity: Entity, reader: NamedReader) -> None:
    """Come back when a reader may have been idle for as long as its owner allows."""
    if reader.idle_ms is not None:
        key = ("reader", (entity.incarnation, reader.name))
        broker.timers.set(key, reader.used + reader.idle_ms)


def remove_if_idle(broker: Host, subject: tuple[int, str]) -> None:
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
        _delete(broker, entity, reader, KeptReply())


def _by_incarnation(broker: Host) -> dict[int, Entity]:
    return {one.incarnation: one for one in broker.namespace.entities.values()}


def find_incarnation(broker: Host, name: str, incarnation: int | None) -> Entity:
    """Return an entity; reject another incarnation: it was deleted and recreated (R8)."""
    entity = broker.find(name)
    if incarnation is None:
        return entity
    if type(incarnation) is not int:
        raise InvalidArgument("incarnation must be a number, as log_positions returns it")
    if incarnation != entity.incarnation:
        raise EntityReplaced(
            f"{entity.name} was deleted and recreated: positions of incarnation {incarnation} "
            f"are not valid for {entity.incarnation}"
        )
    return entity


def check_log(entity: Entity, log: object) -> None:
    """Reject an unknown log, or one that this entity does not have."""
    if log not in (MESSAGES, OUTCOMES):
        raise InvalidArgument(f"log is {log!r}: use {MESSAGES} or {OUTCOMES}")
    if log == MESSAGES and entity.topic is not None:
        raise InvalidOperation(
            f"{entity.name} is a subscription and has no log of messages: read that of "
            f"{entity.topic.name}"
        )


def find_reader(entity: Entity, name: str, log: str | None = None) -> NamedReader:
    """Return a named reader; of that log, if one is given."""
    reader = entity.readers.get(name) if isinstance(name, str) else None
    if reader is None or not reader.durable:
        raise EntityNotFound(f"{entity.name} has no reader {name!r}")
    if log not in (None, reader.log):
        raise InvalidOperation(f"reader {name!r} reads {reader.log}, not {log}")
    return reader
