"""Ticking: the actions of the broker's timers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onibus.directory import readers
from onibus.directory.idling import delete_if_idle
from onibus.directory.namespace import NAME
from onibus.directory.timekeeping import keep_time
from onibus.gateway.receiving import give_up
from onibus.shard import tidying
from onibus.shard.opening import delete_orphans

if TYPE_CHECKING:
    from onibus.gateway.broker import Broker
    from onibus.shard.shard import Shard


def ring(broker: Broker, kind: str, subject: Any) -> bool:
    """Do a slice of what is due; return whether more is left."""
    if kind == "waiter":
        give_up(broker, subject)
    elif kind == "timeout":
        subject.time_out()
    elif kind == "clock":
        keep_time(broker)
    elif kind == "forward":
        broker.forwarding.retry(subject)
    elif kind == "lease":
        broker.producers.lease_over(subject)
    elif kind == "claim":
        broker.claims.lease_over(subject)
    elif kind == "reader":
        readers.remove_if_idle(broker, subject)
    elif kind == "idle":
        delete_if_idle(broker, subject)
    elif kind == "reopen" and subject == NAME:
        broker.namespace.reopen()
    elif kind == "probe":
        broker.probing.rang(subject)
    elif kind == "house":
        owner = broker.namespace if subject == NAME else broker.stores[subject]
        if owner.loop is not None:
            broker.houses[subject].rang(owner.loop)
    elif kind in ("flush", "reopen", "orphans"):
        _tick_store(broker, kind, broker.stores[subject])
    elif subject in broker.partitions:
        return tidying.ring(broker, kind, broker.partitions[subject])
    return False


def _tick_store(broker: Broker, kind: str, store: Shard) -> None:
    if kind == "reopen":
        if not store.online:
            broker.reopen(store)
    elif kind == "orphans":
        delete_orphans(store)
    else:
        store.flush()
