"""What tests of staged sends share."""

from __future__ import annotations

from typing import Any

from onibus import Bus
from tests.bus_helpers import msg


async def stage(bus: Bus, task: int, *texts: str, queue: str = "q", **more: Any) -> None:
    """Stage messages of a task, attempt 0 of batch 0 unless told otherwise."""
    given: dict[str, Any] = {"producer": "spark", "batch": 0, "attempt": 0} | more
    messages = [msg(text, message_id=text) for text in texts]
    await bus.stage(queue, messages, task=task, **given)


async def publish(bus: Bus, *attempts: tuple[int, ...], batch: int = 0, queue: str = "q") -> Any:
    """Publish; return (accepted, duplicates, again)."""
    done = await bus.publish(queue, producer="spark", batch=batch, attempts=attempts)
    return done.accepted, done.duplicates, done.again


def listed(bus: Bus, queue: str = "q") -> list[tuple[int, int, int, int, int]]:
    return [(s.batch, s.task, s.attempt, s.piece, s.count) for s in bus.staged(queue)]
