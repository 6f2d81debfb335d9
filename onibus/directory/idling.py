"""Idling: entities with an auto-delete setting are deleted when no client uses them (B7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.errors import Failed, Refused, Unknown
from onibus.core.limits import MINUTE_MS
from onibus.shard.replies import KeptReply

if TYPE_CHECKING:
    from onibus.directory.entity import Entity
    from onibus.directory.host import Host


def watch_idle(broker: Host, entity: Entity) -> None:
    """Set the timer for when the entity may have been idle for as long as its owner allows."""
    idle_ms = entity.settings.auto_delete_on_idle_ms
    key = ("idle", entity.incarnation)
    if idle_ms is None:
        broker.timers.cancel(key)
    else:
        # Being down is not being idle.
        entity.last_used = entity.last_used or broker.clock.now()
        broker.timers.set(key, entity.last_used + idle_ms)


def delete_if_idle(broker: Host, incarnation: int) -> None:
    """Delete an entity that no client has used; otherwise check again later."""
    for entity in broker.namespace.entities.values():
        if entity.incarnation == incarnation:
            break
    else:
        return
    idle_ms = entity.settings.auto_delete_on_idle_ms
    now = broker.clock.now()
    if idle_ms is None:
        return
    users = (entity, *entity.subscriptions.values())
    if any(not waiter.reply.done() for one in users for waiter in one.waiters):
        entity.last_used = now
    if entity.last_used + idle_ms > now:
        watch_idle(broker, entity)
        return
    try:
        broker.namespace.delete(entity.name, KeptReply())
    except (Refused, Failed, Unknown):
        broker.timers.set(("idle", incarnation), now + MINUTE_MS)
