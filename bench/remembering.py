"""(b) Sends with ten million remembered ids against sends with none, and what an id costs."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random

from bench.filling import remember
from bench.measure import (
    BODY_BYTES,
    ROUNDS,
    Figure,
    folder,
    median,
    opened,
    rate,
    resident_bytes,
    send_singly,
)
from onibus import Bus, Message

COUNT = 10_000
DUPLICATES = 0.10


async def _measure(ids: int, rounds: int) -> tuple[float, float, float]:
    """Return the rates with none and with many remembered ids, and the bytes an id takes."""
    with folder() as path:
        async with opened(path / "few") as few, opened(path / "many") as many:
            for bus in (few, many):
                await bus.create_queue(
                    "queue",
                    requires_duplicate_detection=True,
                    duplicate_detection_window_ms=7 * 86_400_000,
                )
            gc.collect()
            before = resident_bytes()
            await _send(many, "seed", COUNT)
            remember(many, "queue", ids)
            gc.collect()
            cost = (resident_bytes() - before) / ids
            without, with_ids = [], []
            for number in range(rounds):
                without.append(await rate(COUNT, _send(few, f"round-{number}", COUNT)))
                with_ids.append(
                    await rate(COUNT, _send(many, f"round-{number}", COUNT, DUPLICATES))
                )
            return median(without), median(with_ids), cost


async def _send(bus: Bus, prefix: str, count: int, duplicates: float = 0.0) -> None:
    """Send unique ids, a share of them replaced by ids that were sent as "seed" before."""
    dice = random.Random(prefix)
    body = os.urandom(BODY_BYTES)

    def ids() -> itertools.chain[str]:
        return itertools.chain(
            f"seed-{dice.randrange(COUNT)}" if dice.random() < duplicates else f"{prefix}-{number}"
            for number in range(count)
        )

    await send_singly(bus, "queue", (Message(body=body, message_id=one) for one in ids()))


def measure(rounds: int = ROUNDS, ids: int = 10_000_000) -> list[Figure]:
    """Return the figures of (b)."""
    without, with_ids, cost = asyncio.run(_measure(ids, rounds))
    return [
        Figure(
            f"(b) sends with {ids:,} remembered ids and 10 % duplicates, of none",
            100 * with_ids / without,
            85,
            "%",
            note=f"{with_ids:,.0f}/s against {without:,.0f}/s",
        ),
        Figure("(b) resident memory a remembered id", cost, 32, "bytes", at_most=True),
    ]
