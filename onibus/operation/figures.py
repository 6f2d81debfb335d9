"""Figures of one entity: its messages now, and counters since the server started.

Reading them changes nothing and reads no message, except for the age of the oldest one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from onibus.broker.entity import TOPIC, Entity
from onibus.core.commands import GetStamp
from onibus.core.errors import OnibusError
from onibus.core.inspection import STATES
from onibus.core.lifecycle import State
from onibus.core.numbering import ORDINALS_END
from onibus.shard.seat import Seat

if TYPE_CHECKING:
    from onibus.broker.broker import Broker
    from onibus.core.subscription import Subscription


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
    tally = entity.tally
    found = Figures(
        accepted=tally.accepted + tally.selected,
        delivered=tally.delivered,
        gone=tally.gone,
        duplicates=tally.duplicates,
        receivers=len(entity.waiters),
    )
    for seat in entity.seats:
        partition = seat.partition
        part = None if partition is None else partition.subscriptions.get(entity.number)
        if partition is None or part is None or seat.store.stalled:
            found.offline += 1
        if partition is None or part is None:
            continue
        counts = part.counts
        if entity.kind != TOPIC:
            found.active += part.active_count()
            found.held += part.held()
            found.deferred += sum(counts[state] for state in STATES["deferred"])
            found.dead_lettered += sum(counts[state] for state in STATES["dead-lettered"])
        found.scheduled += counts[State.SCHEDULED]
        if entity.topic is None:
            found.size_bytes += partition.log.live_bytes
    return found


def oldest_ms(broker: Broker, entity: Entity) -> int | None:
    """Return when the oldest message that waits was enqueued, or None."""
    if entity.kind == TOPIC:
        return None
    stamps = [_oldest_in(broker, entity, seat) for seat in entity.seats]
    return min((stamp for stamp in stamps if stamp is not None), default=None)


def _oldest_in(broker: Broker, entity: Entity, seat: Seat) -> int | None:
    partition = seat.partition
    part = None if partition is None else partition.subscriptions.get(entity.number)
    if part is None:
        return None
    first = _first_waiting(part)
    if first >= part.log.visible_below or not part.is_live(first):
        return None
    try:
        return broker.apply(seat, GetStamp(part.number, first), broker.clock.now())
    except OnibusError:
        return None


def _first_waiting(part: Subscription) -> int:
    if not part.settings.requires_session:
        return part.ready.first()
    hot = (session.ready[0] for session in part.sessions.hot() if session.ready)
    return min(min(hot, default=ORDINALS_END), part.sessions.first_cold())
