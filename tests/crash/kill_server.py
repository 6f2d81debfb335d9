"""`kill -9` of a server under the load of three protocols, again and again.

    make kill KILLS=2000 SEED=7

A server is started on the same data and ports each time, and killed while it serves, starts or
stops; a few lives end by a clean stop. HTTP, AMQP and SQS clients continue by their own retries:
sends, scheduled and deferred messages, sessions, FIFO groups, transactions over two stores,
forwarding, a topic, claims. After 100 kills everything is drained and the history that the
clients wrote is checked. Then the next seed begins with an empty directory. A seed decides what
clients ask and when the server dies, not how far it is by then. SIGTERM ends the kills early: what
the clients saw so far is checked.

    make forget KILLS=2000 SEED=7

The data is on a disk that forgets unsynced writes (forgetful_disk.py), and every end of a server is
a power cut, too. Every second one leaves a random part of the unsynced writes.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from threading import Event

from tests.crash.crowd import Crowd, Seen
from tests.crash.forgetful_disk import ForgetfulDisk
from tests.crash.lives import Lives

#: Kills on one directory: enough for a long log, and for figures every minute.
EACH = 100
_PRINT_EVERY_S = 20.0


async def killed(
    root: Path,
    seed: int,
    kills: int,
    disk: ForgetfulDisk | None = None,
    over: Event | None = None,
) -> tuple[Crowd, Lives]:
    """Kill a busy server that often, or until it is over; return its clients.

    All messages are taken out by then.
    """
    printed = time.monotonic()
    async with Lives(root, Random(seed), disk.path if disk else None) as lives:
        crowd = Crowd(lives.place, lives.amqp_port, lives.sqs_port, seed)
        lives.on_fault = crowd.history.fault
        try:
            async with lives.serving():
                await crowd.create()
            await crowd.start()
            while lives.kills < kills and not (over and over.is_set()):
                if disk:
                    disk.cut(lives.kills if lives.kills % 2 else None)
                await lives.live()
                if over and time.monotonic() - printed > _PRINT_EVERY_S:
                    printed = time.monotonic()
                    records = len(crowd.history.events) + len(crowd.works_history.events)
                    print(f"seed {seed}: {lives.kills} kills, {records:,} records", flush=True)
            if disk:
                disk.cut()
            async with lives.serving():
                await crowd.be_thorough()
                await crowd.finish()
        except BaseException:
            crowd.give_up()
            raise
    return crowd, lives


def main() -> int:
    """Kill a server as often as the command line says, and print what came of it."""
    parser = argparse.ArgumentParser(description="Kill a busy server again and again.")
    parser.add_argument("--kills", type=int, default=200, help="in all (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--forget", action="store_true", help="cut the power, too (default: no)")
    given = parser.parse_args()
    verb, forgotten = "forget" if given.forget else "kill", 0
    begun, seen, ends, seed, done = time.monotonic(), Seen(), Counter[str](), given.seed, 0
    over = Event()
    signal.signal(signal.SIGTERM, lambda number, frame: over.set())
    while done < given.kills and not over.is_set():
        with ExitStack() as stack:
            root, disk = Path(stack.enter_context(tempfile.TemporaryDirectory())), None
            if given.forget:
                disk = stack.enter_context(ForgetfulDisk(root / "disk"))
            kills = min(EACH, given.kills - done)
            crowd, lives = asyncio.run(killed(root, seed, kills, disk, over))
            forgotten += disk.forgotten if disk else 0
        found = crowd.check()
        seen.add(found)
        ends += lives.ends
        done += lives.kills
        print(
            f"seed {seed}: {done:,} of {given.kills:,} kills in {time.monotonic() - begun:,.0f} s, "
            f"{found.sends:,} acknowledged sends, {found.verdict()}",
            flush=True,
        )
        for anomaly in found.anomalies[:20]:
            print(f"{anomaly.rule}: {anomaly.words}", file=sys.stderr)
        if found.anomalies:
            print(f"again: make {verb} KILLS={kills} SEED={seed}", file=sys.stderr, flush=True)
        seed += 1
    told = ", ".join(f"{ends[end]:,} while {end}" for end in ("serving", "starting", "stopping"))
    print(
        f"{done:,} kills ({told}) and {ends['stopped']:,} clean stops "
        f"in {time.monotonic() - begun:,.0f} s, seeds {given.seed} to {seed - 1}"
    )
    if given.forget:
        print(f"every end was a power cut; unsynced changes forgotten: {forgotten:,}")
    print(seen.report(done, "kill"))
    return 1 if seen.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
