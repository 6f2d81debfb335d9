"""(a) Durable sends against a plain file, and (e) receiving with completing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

from bench.measure import (
    BODY_BYTES,
    ROUNDS,
    SENDERS,
    Figure,
    append_and_sync,
    folder,
    median,
    opened,
    rate,
    send_singly,
)
from onibus import Bus, Message

COUNT = 20_000


def messages(prefix: str, count: int) -> Iterator[Message]:
    """Return messages of 1 KB, each with a different id."""
    body = os.urandom(BODY_BYTES)
    return (Message(body=body, message_id=f"{prefix}-{number}") for number in range(count))


async def _drain(bus: Bus, queue: str, count: int) -> None:
    async with bus.receiver(queue) as receiver:
        while count:
            received = await receiver.receive(100)
            await receiver.complete(*received)
            count -= len(received)


async def _round(bus: Bus, number: int) -> tuple[float, float]:
    """Return the rates of sending a round's messages, and of receiving and completing them."""
    sent = await rate(COUNT, send_singly(bus, "queue", messages(f"round-{number}", COUNT)))
    return sent, await rate(COUNT, _drain(bus, "queue", COUNT))


async def _rounds(rounds: int) -> dict[str, list[float]]:
    """Measure file, plain and partitioned queue in turn, on buses that stay open as in service."""
    found: dict[str, list[float]] = {
        name: [] for name in ("file", "plain", "plain out", "spread", "spread out")
    }
    with folder() as path:
        async with opened(path / "plain-queue") as plain, opened(path / "partitioned") as spread:
            await plain.create_queue("queue", requires_duplicate_detection=True)
            await spread.create_queue(
                "queue", requires_duplicate_detection=True, enable_partitioning=True
            )
            for number in range(rounds):
                found["file"].append(append_and_sync(path, COUNT, SENDERS))
                for name, bus in (("plain", plain), ("spread", spread)):
                    sent, received = await _round(bus, number)
                    found[name].append(sent)
                    found[f"{name} out"].append(received)
    return found


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Return the figures of (a) and (e)."""
    found = asyncio.run(_rounds(rounds))
    yardstick = median(found["file"])
    figures = []
    for name in ("plain", "spread"):
        label = "over 16 partitions" if name == "spread" else "not partitioned"
        sent, received = median(found[name]), median(found[f"{name} out"])
        figures.append(
            Figure(
                f"(a) sends, {label}, of append and sync",
                100 * sent / yardstick,
                15,
                "%",
                note=f"{sent:,.0f}/s against {yardstick:,.0f}/s",
            )
        )
        figures.append(
            Figure(
                f"(e) receive and complete, {label}, of (a)",
                100 * received / sent,
                100,
                "%",
                note=f"{received:,.0f}/s",
            )
        )
    # Each round measures both in turn: the ratio of a round has the same noise above and below.
    shares = [over / one for over, one in zip(found["spread"], found["plain"], strict=True)]
    figures.append(
        Figure(
            "(a) sends over 16 partitions, of those to one",
            100 * median(shares),
            85,
            "%",
        )
    )
    return figures
