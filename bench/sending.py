"""(a) Durable sends against a plain file, and (e) receiving with completing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from bench.measure import (
    BODY_BYTES,
    ROUNDS,
    SENDERS,
    Figure,
    append_and_sync,
    folder,
    interleaved,
    median,
    opened,
    rate,
    send_singly,
)
from onibus import Bus, Message

COUNT = 20_000


def messages(prefix: str, count: int) -> Iterator[Message]:
    """Messages of 1 KB, each with an id of its own."""
    body = os.urandom(BODY_BYTES)
    return (Message(body=body, message_id=f"{prefix}-{number}") for number in range(count))


async def _drain(bus: Bus, queue: str, count: int) -> None:
    async with bus.receiver(queue) as receiver:
        while count:
            received = await receiver.receive(100)
            await receiver.complete(*received)
            count -= len(received)


class Rounds:
    """One bus for all rounds of one kind of queue."""

    def __init__(self, path: Path, partitioned: bool) -> None:
        self._path = path
        self._partitioned = partitioned
        self._round = 0
        self.received: list[float] = []

    def send(self) -> float:
        """Send a round's messages, then receive and complete them; return the rate of sending."""
        self._round += 1
        return asyncio.run(self._send())

    async def _send(self) -> float:
        async with opened(self._path) as bus:
            if "queue" not in bus.queues():
                await bus.create_queue(
                    "queue",
                    requires_duplicate_detection=True,
                    enable_partitioning=self._partitioned,
                )
            sent = await rate(
                COUNT, send_singly(bus, "queue", messages(f"round-{self._round}", COUNT))
            )
            self.received.append(await rate(COUNT, _drain(bus, "queue", COUNT)))
            return sent


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Return the figures of (a) and (e)."""
    with folder() as path:
        plain, spread = Rounds(path / "plain-queue", False), Rounds(path / "partitioned", True)
        found = interleaved(
            rounds,
            {
                "file": lambda: append_and_sync(path, COUNT, SENDERS),
                "plain": plain.send,
                "spread": spread.send,
            },
        )
    yardstick = median(found["file"])
    figures = []
    for name, kind in (("plain", plain), ("spread", spread)):
        label = "over 16 partitions" if name == "spread" else "not partitioned"
        sent, received = median(found[name]), median(kind.received)
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
    return figures
