"""Figures of entities: their messages now, and counters since the server started.

Reading them changes nothing and reads no message, except for the age of the oldest one.
`KnownFigures` keeps those of all entities, a kilobyte each, so that a list of thousands of entities
counts only what has changed since the last look.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import msgspec

from onibus.core.commands import CountSessions, FindOldest, GetStamp, Measure, SessionsInUse
from onibus.core.errors import EntityNotFound, OnibusError
from onibus.core.inspection import STATES
from onibus.directory.entity import TOPIC, Entity
from onibus.shard.partition import ShardPartition

#: Sessions that one look counts.
SESSIONS_A_SLICE = 5_000


class Figures(msgspec.Struct, kw_only=True):
    """Counts of an entity, added up over its partitions that are online."""

    #: waiting, held or delayed
    active: int = 0
    held: int = 0
    deferred: int = 0
    scheduled: int = 0
    dead_lettered: int = 0
    size_bytes: int = 0
    #: receives that wait for a message
    receivers: int = 0
    #: since the server started: messages accepted (or, for a subscription, selected by its rules),
    #: delivered, gone, and duplicates dropped
    accepted: int = 0
    delivered: int = 0
    gone: int = 0
    duplicates: int = 0
    #: partitions that are offline, or whose disk does not respond
    offline: int = 0


def figures_of(entity: Entity) -> Figures:
    """Return the figures of an entity."""
    tally, kind = entity.tally, entity.kind
    found = Figures(
        accepted=tally.accepted + tally.selected,
        delivered=tally.delivered,
        gone=tally.gone,
        duplicates=tally.duplicates,
        receivers=len(entity.waiters),
    )
    for partition in entity.partitions:
        if not partition.is_online or partition.store.stalled:
            found.offline += 1
        if not partition.is_online:
            continue
        try:
            measured = partition.store.look(partition, Measure(entity.number))
        except EntityNotFound:
            # A subscription that joins its topic, or leaves it.
            found.offline += 1
            continue
        if entity.topic is None:
            found.size_bytes += measured.size_bytes
        if kind != TOPIC:
            found.active += measured.active
            found.held += measured.held
            found.deferred += measured.count(STATES["deferred"])
            found.dead_lettered += measured.count(STATES["dead-lettered"])
        found.scheduled += measured.count(STATES["scheduled"])
    return found


class KnownFigures:
    """The figures of all entities, counted again where a partition has changed."""

    def __init__(self) -> None:
        #: by incarnation, with what `_versions` returned
        self._figures: dict[int, tuple[list[int], Figures]] = {}
        self._oldest: dict[int, tuple[list[int], int | None]] = {}

    def of(self, entity: Entity) -> Figures:
        """Return the figures of an entity: the same object as before, if none has changed."""
        versions = _versions(entity)
        before = self._figures.get(entity.incarnation)
        if before is not None and before[0] == versions:
            return before[1]
        figures = figures_of(entity)
        if before is not None and before[1] == figures:
            figures = before[1]
        # A subscription that joins its topic changes no partition: until then it is offline there.
        self._figures[entity.incarnation] = ([] if figures.offline else versions), figures
        return figures

    def oldest_ms(self, entity: Entity) -> int | None:
        """Return when the oldest message that waits was enqueued, or None."""
        if not self.of(entity).active:
            return None
        versions = _versions(entity)
        before = self._oldest.get(entity.incarnation)
        if before is not None and before[0] == versions:
            return before[1]
        found = _oldest_ms(entity)
        self._oldest[entity.incarnation] = versions, found
        return found

    def keep_only(self, incarnations: Container[int]) -> None:
        """Forget deleted entities."""
        for known in (self._figures, self._oldest):
            for gone in [one for one in known if one not in incarnations]:
                del known[gone]


def _versions(entity: Entity) -> list[int]:
    """Return numbers that differ after each change of an entity's figures."""
    found = [-1 if one.store.stalled else one.version for one in entity.partitions]
    found.append(len(entity.waiters))
    return found


def _oldest_ms(entity: Entity) -> int | None:
    if entity.kind == TOPIC:
        return None
    stamps = [_oldest_in(entity, partition) for partition in entity.online_partitions()]
    return min((stamp for stamp in stamps if stamp is not None), default=None)


def _oldest_in(entity: Entity, partition: ShardPartition) -> int | None:
    store, number = partition.store, entity.number
    try:
        hot = [one.oldest for one in session_slices(entity, partition) if one.oldest is not None]
        oldest = store.look(partition, FindOldest(number, min(hot, default=None)))
        return None if oldest is None else store.look(partition, GetStamp(number, oldest))
    except OnibusError:
        return None


def session_slices(entity: Entity, partition: ShardPartition) -> Iterator[SessionsInUse]:
    """Yield the counts of sessions in use, slice by slice; none if messages have no sessions."""
    start = 0
    while entity.outlet_settings().requires_session:
        found = partition.store.look(
            partition, CountSessions(entity.number, start, SESSIONS_A_SLICE)
        )
        yield found
        start = found.next
        if not start:
            return
