"""Measure: numbers of messages, sessions, groups and holds, as operators see them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from onibus.core.block import NEVER
from onibus.core.commands import (
    CountSessions,
    FindOldest,
    Group,
    Groups,
    HeldMessages,
    Holds,
    ListGroups,
    ListHolds,
    ListNoisy,
    Measure,
    Measured,
    MeasureIds,
    SessionsInUse,
)
from onibus.core.fair_queue import FairQueue
from onibus.core.numbering import ORDINALS_END
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription


def measure(
    partition: Partition, command: Measure, now: int, wall: int, out: WriteBatch
) -> Measured:
    """Count the messages of a subscription."""
    part = partition.subscriptions[command.subscription]
    log = partition.log
    if part.gone.count == log.next_ordinal - 1:
        # No message is left. An overview of 10,000 entities mostly has such ones.
        return Measured(
            size_bytes=log.live_bytes,
            recorded_ids=partition.ids.count,
            duplicates=partition.duplicates,
        )
    return Measured(
        active=part.active_count(),
        states=list(part.counts),
        held=part.held(),
        size_bytes=log.live_bytes,
        recorded_ids=partition.ids.count,
        duplicates=partition.duplicates,
    )


def measure_ids(
    partition: Partition, command: MeasureIds, now: int, wall: int, out: WriteBatch
) -> int:
    """Return about how much memory recorded ids take."""
    return partition.ids.memory_bytes()


def count_sessions(
    partition: Partition, command: CountSessions, now: int, wall: int, out: WriteBatch
) -> SessionsInUse:
    """Count a slice of the sessions in use."""
    sessions = partition.subscriptions[command.subscription].sessions
    end = command.start + command.looks
    count, looked, oldest = 0, 0, ORDINALS_END
    for session in islice(sessions.hot(), command.start, end):
        looked += 1
        count += session.in_use
        if session.ready:
            oldest = min(oldest, session.ready[0])
    following = end if end < len(sessions.hot()) else 0
    return SessionsInUse(count, None if oldest == ORDINALS_END else oldest, looked, following)


def find_oldest(
    partition: Partition, command: FindOldest, now: int, wall: int, out: WriteBatch
) -> int | None:
    """Return the ordinal of the message that waits longest."""
    part = partition.subscriptions[command.subscription]
    if part.settings.requires_session:
        of_hot = ORDINALS_END if command.of_sessions is None else command.of_sessions
        first = min(of_hot, part.sessions.first_cold())
    else:
        first = part.ready.first()
    # A receiver may have settled it since the slice that counted its session.
    return first if first < part.log.visible_below and part.is_live(first) else None


def list_groups(
    partition: Partition, command: ListGroups, now: int, wall: int, out: WriteBatch
) -> Groups:
    """Return some of the groups with messages in flight; with the first ones also noisy others."""
    part = partition.subscriptions[command.subscription]
    if not isinstance(part.ready, FairQueue):
        return Groups({}, None)
    in_flight, noisy = part.ready.noise.in_flight, _noisy(part, now)
    end = command.start + command.looks
    some = islice(in_flight.items(), command.start, end)
    found = {name: noisy.get(name) or Group(count) for name, count in some}
    if not command.start:
        found |= {name: group for name, group in noisy.items() if name not in in_flight}
    return Groups(found, end if end < len(in_flight) else None)


def list_noisy(
    partition: Partition, command: ListNoisy, now: int, wall: int, out: WriteBatch
) -> dict[str, Group]:
    """Return the noisy groups."""
    return _noisy(partition.subscriptions[command.subscription], now)


def _noisy(part: Subscription, now: int) -> dict[str, Group]:
    if not isinstance(part.ready, FairQueue):
        return {}
    noisy = part.ready.noisy(now)
    return {name: Group(in_flight, True, passed) for name, (in_flight, passed) in noisy.items()}


def list_holds(
    partition: Partition, command: ListHolds, now: int, wall: int, out: WriteBatch
) -> Holds:
    """Return some of what receivers hold."""
    shown = partition.offsets.shown
    found: list[HeldMessages] = []
    left = command.looks
    holds = partition.subscriptions[command.subscription].holds.values()
    for at, hold in enumerate(islice(holds, command.start, None), command.start):
        if left <= 0:
            return Holds(found, at)
        left -= 10 + len(hold.ordinals)
        if hold.ordinals and hold.until == NEVER:
            found.append(HeldMessages(len(hold.ordinals), hold.session, hold.owner))
        elif hold.ordinals:
            received, until = shown(hold.received), shown(max(hold.ordinals.values()))
            found.append(
                HeldMessages(len(hold.ordinals), hold.session, hold.owner, received, until)
            )
    return Holds(found, None)
