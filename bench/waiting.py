"""(c) What a million waiting messages cost in memory."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path

from bench.filling import stream
from bench.measure import Figure, folder, opened, resident_bytes, send_singly

MESSAGES = 1_000_000
SESSIONS = 100_000


async def _grow(path: Path, count: int, sessions: int) -> int:
    """Return how much memory grows while messages are sent singly and stay."""
    async with opened(path) as bus:
        await bus.create_queue("queue", requires_session=bool(sessions), max_size_bytes=1 << 40)
        name = (lambda number: f"session-{number % sessions}") if sessions else None
        await send_singly(bus, "queue", stream(1_000, name))
        gc.collect()
        before = resident_bytes()
        await send_singly(bus, "queue", stream(count, name))
        gc.collect()
        return resident_bytes() - before


def measure(count: int = MESSAGES) -> list[Figure]:
    """Return the figures of (c), each from a separate process."""
    figures = []
    for sessions, limit in ((0, 64), (SESSIONS * count // MESSAGES, 128)):
        command = [sys.executable, "-m", "bench.waiting", str(count), str(sessions)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        where = f"in {sessions:,} sessions" if sessions else "with different times to live"
        figures.append(
            Figure(
                f"(c) {count:,} waiting messages {where}",
                int(answer) / 2**20,
                limit,
                "MB",
                at_most=True,
            )
        )
    return figures


if __name__ == "__main__":
    with folder() as place:
        print(asyncio.run(_grow(place, int(sys.argv[1]), int(sys.argv[2]))))
