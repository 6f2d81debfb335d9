"""Looking at an entity: its settings, and counts added up over its partitions (P10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onibus.api.entities import EntityInfo, NoisyGroup
from onibus.core.commands import ListNoisy, Measure
from onibus.core.inspection import STATES

if TYPE_CHECKING:
    from onibus.gateway.broker import Broker


def info(broker: Broker, name: str) -> EntityInfo[Any]:
    """Return an entity's settings and counts."""
    entity = broker.find(name)
    active = deferred = scheduled = dead_lettered = held = size = duplicates = recorded = 0
    offline = []
    noisy: dict[str, tuple[int, int]] = {}
    for partition in entity.partitions:
        if not partition.is_online:
            offline.append(partition.index)
            continue
        if partition.store.stalled:
            offline.append(partition.index)
        broker.advance(partition, broker.clock.now())
        measured = partition.store.look(partition, Measure(entity.number))
        active += measured.active
        deferred += measured.count(STATES["deferred"])
        scheduled += measured.count(STATES["scheduled"])
        dead_lettered += measured.count(STATES["dead-lettered"])
        held += measured.held
        size += measured.size_bytes
        duplicates += measured.duplicates
        recorded += measured.recorded_ids
        for name, group in partition.store.look(partition, ListNoisy(entity.number)).items():
            in_flight, passed = noisy.get(name, (0, 0))
            noisy[name] = (in_flight + group.in_flight, passed + group.passed)
    return EntityInfo(
        name=entity.name,
        kind=entity.kind,
        settings=entity.settings,
        created_ms=entity.created,
        availability="limited" if offline else "available",
        active_count=active,
        deferred_count=deferred,
        scheduled_count=scheduled,
        dead_lettered_count=dead_lettered,
        held_count=held,
        gone_count=entity.tally.gone,
        size_bytes=size,
        duplicates_dropped=duplicates,
        remembered_ids=recorded,
        offline_partitions=tuple(offline),
        subscriptions=tuple(sorted(one.name for one in entity.subscriptions.values())),
        rules=tuple(entity.rules),
        noisy_groups=tuple(
            NoisyGroup(group, *counts)
            for group, counts in sorted(noisy.items(), key=lambda one: (-one[1][0], one[0]))
        ),
    )
