"""Whether the bus is well, for those who ask again and again.

Three questions. Alive: the process answers. Healthy: somebody can send and receive, in the words
of the Service Bus emulator, which tools wait for. Ready: nothing at all is down. No response says
more, since any client may ask. Metrics and the log name the store that is down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from onibus.bus import Bus


class Health(msgspec.Struct, frozen=True):
    """What the emulator answers."""

    status: str
    message: str


class Readiness(msgspec.Struct, frozen=True):
    """Whether everything is up."""

    ready: bool


HEALTHY = Health("healthy", "Service is healthy.")
UNHEALTHY = Health("unhealthy", "Service not available. Please try after some time.")


def health(bus: Bus) -> Health:
    """Tell whether messages can be sent and received: one store is enough."""
    broker = bus.broker
    some = any(store.healthy for store in broker.stores.values())
    return HEALTHY if some and not broker.closed else UNHEALTHY


def readiness(bus: Bus) -> Readiness:
    """Return whether all stores, and all partitions in them, are up; in as little time as ever."""
    broker = bus.broker
    stores = broker.stores.values()
    namespace = broker.namespace
    up = namespace.online and not namespace.stalled
    up = up and all(one.healthy and not one.failed for one in stores)
    return Readiness(up and not broker.closed)
