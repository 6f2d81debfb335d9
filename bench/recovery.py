"""(d) From opening a directory after `kill -9` to the first received message."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.filling import remember, send_in_batches, stream, tomorrow_ms
from bench.measure import ROUNDS, Figure, folder, interleaved, median, opened
from onibus import Bus

SMALL = 10_000
LARGE = 1_000_000


async def _fill(path: Path, scale: float) -> None:
    """Fill a directory, and die without closing it."""
    async with opened(path) as bus:
        size = {"max_size_bytes": 1 << 40}
        if not scale:
            await bus.create_queue("queue", **size)
            await send_in_batches(bus, "queue", stream(SMALL))
        else:
            await bus.create_queue(
                "queue",
                requires_session=True,
                requires_duplicate_detection=True,
                duplicate_detection_window_ms=7 * 86_400_000,
                **size,
            )
            await _fill_large(bus, scale)
        os.kill(os.getpid(), signal.SIGKILL)


async def _fill_large(bus: Bus, scale: float) -> None:
    sessions = int(100_000 * scale)

    def session(number: int) -> str:
        return f"session-{number % sessions}"

    deferred = int(50_000 * scale)
    await send_in_batches(bus, "queue", stream(deferred, lambda number: "deferred"))
    async with await bus.accept_session("queue", "deferred") as receiver:
        while received := await receiver.receive(1_000):
            await asyncio.gather(*[receiver.defer(message) for message in received])
            await receiver.renew_lock()
    await send_in_batches(bus, "queue", stream(int(LARGE * scale), session))
    await send_in_batches(bus, "queue", stream(int(50_000 * scale), session, due_ms=tomorrow_ms()))
    remember(bus, "queue", int(10_000_000 * scale))


async def _first(path: Path) -> float:
    """Return the seconds from opening to the first message, then die again."""
    start = time.perf_counter()
    bus = await Bus.open(path, reserve_bytes=0)
    if bus.queue("queue").settings.requires_session:
        session = await bus.accept_session("queue")
        received = await session.receive()
    else:
        received = await bus.receiver("queue").receive()
    assert received
    return time.perf_counter() - start


def _run(*arguments: str) -> str:
    command = [sys.executable, "-m", "bench.recovery", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


def measure(rounds: int = ROUNDS, scale: float = 1.0) -> list[Figure]:
    """Return the figure of (d)."""
    with folder() as path:
        _run("fill", str(path / "small"), "0")
        _run("fill", str(path / "large"), str(scale))
        found = interleaved(
            rounds,
            {
                size: lambda size=size: float(_run("first", str(path / size)))  # type: ignore[misc]
                for size in ("small", "large")
            },
        )
    small, large = median(found["small"]), median(found["large"])
    return [
        Figure(
            "(d) first message after kill -9, of a small directory's",
            large / small,
            10,
            "times",
            at_most=True,
            note=f"{large * 1000:,.0f} ms against {small * 1000:,.0f} ms",
        )
    ]


async def _main(verb: str, path: Path, scale: float) -> None:
    if verb == "fill":
        await _fill(path, scale)
    seconds = await _first(path)
    print(seconds, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2]), float((*sys.argv, "0")[3])))
