"""Whether the bus is well, for those who ask again and again.

Three questions. Alive: the process answers. Healthy: somebody can send and receive, in the words
of the Service Bus emulator, which tools wait for. Ready: nothing at all is down; else, what is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from onibus.broker.namespace import NAME

if TYPE_CHECKING:
    from onibus.bus import Bus


class Health(msgspec.Struct, frozen=True):
    """What the emulator answers."""

    status: str
    message: str


class Readiness(msgspec.Struct, frozen=True):
    """Whether everything is up, and which stores and partitions are not."""

    ready: bool
    down: list[str]


HEALTHY = Health("healthy", "Service is healthy.")
UNHEALTHY = Health("unhealthy", "Service is unhealthy.")


def health(bus: Bus) -> Health:
    """Tell whether messages can be sent and received: one store is enough."""
    broker = bus.broker
    some = any(store.online for store in broker.stores.values())
    return HEALTHY if some and not broker.closed else UNHEALTHY


def readiness(bus: Bus) -> Readiness:
    """Tell whether all stores, and all partitions in them, are up.

    Names only: what is wrong with them is in the log, for those who may read that.
    """
    broker = bus.broker
    if broker.closed:
        return Readiness(False, ["the bus is closed"])
    down = [] if broker.namespace.online else [f"store {NAME}"]
    for store in broker.stores.values():
        if not store.online:
            down.append(f"store {store.name}")
            continue
        offline = sum(seat.partition is None for seat in store.seats.values())
        if offline:
            down.append(f"{offline} partitions in store {store.name}")
    return Readiness(not down, down)
