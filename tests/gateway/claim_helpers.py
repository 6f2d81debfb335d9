"""What tests of claims share."""

from __future__ import annotations

from typing import Any

from onibus import Bus
from onibus.core.invariants import violations
from tests.bus_helpers import bodies


def sound(bus: Bus, entity: str = "q") -> None:
    """Check that nothing in the core contradicts itself."""
    for partition in bus.broker.find(entity).partitions:
        if partition.core is not None:
            assert violations(partition.core) == []


async def take(bus: Bus, limit: int = 100, reader: str = "r", **how: Any) -> int:
    """Claim messages of queue q; there must be some. Return the claim's number."""
    claim = await bus.claim("q", reader, limit, **how)
    assert claim is not None
    return claim.number


async def read(bus: Bus, number: int, reader: str = "r") -> list[str]:
    return bodies(await bus.read_claim("q", reader, number))
