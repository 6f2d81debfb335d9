"""Health of the bus, for probes.

Alive: the process responds. Healthy: clients can send and receive, in the words of the Service Bus
emulator, which tools wait for. Ready: everything is up. Responses say no more than that, since any
client may ask; metrics and the log name the store that is down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from onibus.bus import Bus


class Health(msgspec.Struct, frozen=True):
    """Response of the emulator's health probe."""

    status: str
    message: str


class Readiness(msgspec.Struct, frozen=True):
    """Response of the readiness probe."""

    ready: bool


HEALTHY = Health("healthy", "Service is healthy.")
UNHEALTHY = Health("unhealthy", "Service not available. Please try after some time.")


def health(bus: Bus) -> Health:
    """Return whether messages can be sent and received: one store is enough."""
    broker = bus.broker
    some = any(store.healthy for store in broker.stores.values())
    return HEALTHY if some and not broker.closed else UNHEALTHY


def readiness(bus: Bus) -> Readiness:
    """Return whether all stores and partitions are up, in constant time."""
    broker = bus.broker
    stores = broker.stores.values()
    namespace = broker.namespace
    up = namespace.online and not namespace.stalled
    up = up and all(one.healthy and not one.failed for one in stores)
    return Readiness(up and not broker.closed)
