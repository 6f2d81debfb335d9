"""Transactions: 1,000 messages sent in one, against the same in one batch."""

from __future__ import annotations

import asyncio
import time

from bench.measure import ROUNDS, Figure, folder, median
from bench.sending import messages
from onibus import Bus, Message, Quotas

COUNT = 1_000
#: Batches, and transactions, of one round.
REPEATS = 10


async def _batch(bus: Bus, some: list[Message]) -> None:
    await bus.send_batch("queue", some)


async def _transaction(bus: Bus, some: list[Message]) -> None:
    transaction = bus.transaction()
    await transaction.send_batch("queue", some)
    await transaction.commit()


async def _rounds(rounds: int) -> dict[str, list[float]]:
    ways = {"batch": _batch, "transaction": _transaction}
    found: dict[str, list[float]] = {name: [] for name in ways}
    quotas = Quotas(transaction_messages=COUNT)
    with folder() as path:
        async with Bus.open(path, reserve_bytes=0, quotas=quotas) as bus:
            await bus.create_queue("queue", requires_duplicate_detection=True)
            for number in range(rounds + 1):
                for name, way in ways.items():
                    for repeat in range(REPEATS):
                        some = list(messages(f"{name}-{number}-{repeat}", COUNT))
                        start = time.perf_counter()
                        await way(bus, some)
                        # The first round is for warming up.
                        if number:
                            found[name].append(time.perf_counter() - start)
    return found


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Return the figure of transactions."""
    found = asyncio.run(_rounds(rounds))
    batch, transaction = median(found["batch"]), median(found["transaction"])
    return [
        Figure(
            f"a transaction of {COUNT:,} messages, in batches of as many",
            transaction / batch,
            2,
            "times",
            at_most=True,
            note=f"{1000 * transaction:,.1f} ms against {1000 * batch:,.1f} ms",
        )
    ]
