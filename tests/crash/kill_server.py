"""`kill -9` of a server under the load of its clients, again and again.

    python -m tests.crash.kill_server --kills 500 --seed 7

It is started again on the same directory and port each time; its clients go on, by their own
retries. In the end everything is drained, and the history that the clients wrote is checked:
nothing acknowledged is lost, nothing stored twice, no number missing or given twice, order kept in
sessions. The seed decides what clients do and when the server dies; not how far it has come then.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random

from onibus.client import Retry
from onibus.testing.history import OK, Anomaly, Checker
from tests.crash.busy_clients import COMMON, QUEUE, SESSIONS, SETTINGS, WINDOW_MS, Clients, History
from tests.over_http.on_disk import Place, kill
from tests.server.processes import Served

#: Outlives any restart.
PATIENT = Retry(attempts=10_000, first_ms=50, longest_ms=500)


@asynccontextmanager
async def _serving(place: Place) -> AsyncIterator[Served]:
    """Run a server; clients go on while it starts."""
    with ExitStack() as stack:
        yield await asyncio.to_thread(stack.enter_context, place.serve())


async def _kill_and_start(place: Place, history: History, random: Random, kills: int) -> None:
    """Let the server die so often."""
    for number in range(kills):
        async with _serving(place) as server:
            # Answers of the one before may still have been on their way when it was killed.
            history.fault()
            await asyncio.sleep(0.2 + random.random())
            if number % 10 == 0:
                # A second server must not get in, and must leave the files as they are.
                assert "is locked" in await asyncio.to_thread(place.refuse_second)
            kill(server)
            history.fault()


async def killed(root: Path, seed: int, kills: int) -> History:
    """Kill a busy server so often; return what its clients wrote, up to the last message."""
    place, history, random, stop = Place(root), History(), Random(seed), asyncio.Event()
    with place.serve() as server:
        async with place.client() as client:
            for name, settings in SETTINGS.items():
                await client.create_queue(name, **COMMON, **settings)
        kill(server)
    async with place.client(PATIENT) as client:
        clients = Clients(client, history, seed)
        busy = asyncio.ensure_future(clients.run(stop))
        await _kill_and_start(place, history, random, kills)
        async with _serving(place):
            history.fault()
            stop.set()
            await busy
            await clients.drain()
    return history


def check(history: History) -> list[Anomaly]:
    """Return what is wrong with a history."""
    both = frozenset({QUEUE, SESSIONS})
    checker = Checker(WINDOW_MS, partitioned=frozenset({QUEUE}), drained=both, slack_ms=20)
    return checker.check(history.events)


def figures(history: History) -> dict[str, int]:
    """Return how many operations went well, by their kinds."""
    counts: dict[str, int] = {}
    for event in history.events:
        if event.phase == "complete" and event.outcome == OK:
            counts[event.kind] = counts.get(event.kind, 0) + 1
    counts["unknown"] = sum(
        event.phase == "complete" and event.outcome == "unknown" for event in history.events
    )
    counts["dropped"] = sum(event.duplicate_of is not None for event in history.events)
    return counts


def main() -> int:
    """Kill a server as often as the command line says, and tell what came of it."""
    parser = argparse.ArgumentParser(description="Kill a busy server again and again.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        history = asyncio.run(killed(Path(root), given.seed, given.kills))
    anomalies = check(history)
    for anomaly in anomalies[:20]:
        print(f"{anomaly.rule}: {anomaly.words}", file=sys.stderr)
    told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(figures(history).items()))
    seconds = time.monotonic() - begun
    print(f"{given.kills} kills in {seconds:,.0f} s, {len(anomalies)} anomalies: {told}")
    return 1 if anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
