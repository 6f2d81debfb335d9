"""Words for tests that read the log and the outcomes."""

from __future__ import annotations

from typing import Any

from onibus import Bus
from onibus.shard import tidying


async def read(bus: Bus, queue: str, start: int = 1, end: int | None = None, **how: Any) -> Any:
    """Return rows of the log as dicts."""
    partition = how.pop("partition", 0)
    batches = [batch async for batch in bus.read_log(queue, partition, start, end, **how)]
    return [row for batch in batches for row in batch.to_pylist()]


async def texts(bus: Bus, queue: str, start: int = 1, end: int | None = None, **how: Any) -> Any:
    """Return rows of the log as (number, text)."""
    rows = await read(bus, queue, start, end, **how)
    return [(row["sequence_number"], row["body"].decode()) for row in rows]


async def outcomes(bus: Bus, queue: str, start: int = 1, end: int | None = None, **how: Any) -> Any:
    """Return outcomes as (number, sequence number, outcome)."""
    partition = how.pop("partition", 0)
    batches = [batch async for batch in bus.read_outcomes(queue, partition, start, end, **how)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["number"], row["sequence_number"], row["outcome"]) for row in rows]


async def consume(bus: Bus, queue: str, count: int = 1_000) -> None:
    """Receive and complete what is there."""
    async with bus.receiver(queue) as receiver:
        if held := await receiver.receive(count):
            await receiver.complete(*held)


def tidy(bus: Bus, queue: str = "q") -> None:
    """Let all partitions do all tidying there is to do."""
    for partition in bus.broker.find(queue).partitions:
        if partition.core is not None:
            while tidying.tidy(partition):
                pass
