"""Looking at an entity: its settings, and counts added up over its partitions (P10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onibus.api.entities import EntityInfo, NoisyGroup
from onibus.core.fair_queue import FairQueue
from onibus.core.inspection import STATES

if TYPE_CHECKING:
    from onibus.broker.broker import Broker


def info(broker: Broker, name: str) -> EntityInfo[Any]:
    """Return an entity's settings and counts."""
    entity = broker.find(name)
    counts = dict.fromkeys(STATES, 0)
    held = size = duplicates = remembered = 0
    offline = []
    noisy: dict[str, tuple[int, int]] = {}
    for seat in entity.seats:
        if seat.partition is None:
            offline.append(seat.index)
            continue
        if seat.store.stalled:
            offline.append(seat.index)
        broker.advance(seat, broker.clock.now())
        partition = seat.online()
        subscription = partition.subscriptions[entity.number]
        for word, states in STATES.items():
            if word == "active":
                counts[word] += subscription.active_count()
            else:
                counts[word] += sum(subscription.counts[state] for state in states)
        held += subscription.held()
        size += partition.log.live_bytes
        duplicates += partition.duplicates
        remembered += partition.ids.count
        if isinstance(subscription.ready, FairQueue):
            for group, (in_flight, passed) in subscription.ready.noisy(broker.clock.now()).items():
                before = noisy.get(group, (0, 0))
                noisy[group] = (before[0] + in_flight, before[1] + passed)
    return EntityInfo(
        name=entity.name,
        kind=entity.kind,
        settings=entity.settings,
        created_ms=entity.created,
        availability="limited" if offline else "available",
        active_count=counts["active"],
        deferred_count=counts["deferred"],
        scheduled_count=counts["scheduled"],
        dead_lettered_count=counts["dead-lettered"],
        held_count=held,
        gone_count=entity.tally.gone,
        size_bytes=size,
        duplicates_dropped=duplicates,
        remembered_ids=remembered,
        offline_partitions=tuple(offline),
        subscriptions=tuple(sorted(one.name for one in entity.subscriptions.values())),
        rules=tuple(entity.rules),
        noisy_groups=tuple(
            NoisyGroup(group, *counts)
            for group, counts in sorted(noisy.items(), key=lambda one: (-one[1][0], one[0]))
        ),
    )
