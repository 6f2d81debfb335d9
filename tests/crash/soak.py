"""A server at 30 % load for hours, with kills, full disks and clock jumps.

    make soak MINUTES=120 SEED=7

The clients of `make kill` slow down until the server computes for 30 % of the time. Every few
seconds the server is killed, its disk is full for a second, or its wall clock goes back by an hour
and returns. Clients keep some messages longer than their locks last. The last third of the run has
no kills, so that one process meets everything else. Resident memory, open files and disk use are
measured at rest, before and after: they must be back where they were. SIGTERM ends the faults
early: everything is taken out and compared nevertheless.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import psutil

from tests.crash.busy_clients import COMMON
from tests.crash.crowd import Crowd, Seen
from tests.crash.lives import Lives

LOAD = 0.3
HOUR_MS = 3_600_000
#: The shortest window of duplicate detection: then recorded ids are discarded.
WINDOW_MS = 20_000
DISK_BYTES = 1 << 30
#: How much a server at rest may have more than before.
MORE = {"resident MB": 50, "open files": 5, "disk MB": 50}
#: How long clients are busy before the first measurement.
WARM_UP_S = 15.0
#: How long a server rests before it is measured: the window, and a slice of tidying.
REST_S = WINDOW_MS / 1000 + 5
#: How long a disk is full, and how long its stores then have to reopen.
FULL_S, REOPEN_S = 1.0, 3.0
#: How long the clock is wrong, and within what the server has looked at it again.
WRONG_S, LOOK_S = 2.0, 2.0
#: How long clients keep some messages before they settle them.
LATE_S = COMMON["lock_duration_ms"] / 1000 + 0.2
PROGRESS_S = 10.0


@contextmanager
def small_disk(root: Path) -> Iterator[bool]:
    """Mount a small disk, and give whether that was possible."""
    size = f"size={DISK_BYTES}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "onibus-soak", str(root)]
    try:
        mounted = not subprocess.run(mount, capture_output=True, check=False).returncode
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(root)], check=True)


def at_rest(pid: int, root: Path) -> dict[str, float]:
    """Return the figures of a server without clients."""
    process = psutil.Process(pid)
    used = sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.is_file())
    return {
        "resident MB": process.memory_info().rss / 1e6,
        "open files": process.num_fds(),
        "disk MB": used / 1e6,
    }


class Soak:
    """One run."""

    def __init__(self, lives: Lives, crowd: Crowd, random: Random, fillable: bool) -> None:
        self._lives, self._crowd, self._random = lives, crowd, random
        self._root = lives.place.config.parent
        self._begun = time.monotonic()
        self._doing = ""
        self.faults: Counter[str] = Counter()
        #: how long faults were caused
        self.minutes = 0.0
        self._kinds = ["kill", "clock jump", *(["full disk"] if fillable else [])]
        self.loads: list[float] = []
        self._over = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._over.set)

    # What runs next to the faults

    def _tell(self, doing: str = "") -> None:
        """Print how far the run is, and what it does from now on."""
        self._doing = doing or self._doing
        recent = self.loads[-10:]
        load = sum(recent) / max(len(recent), 1)
        print(
            f"{time.monotonic() - self._begun:7,.0f} s: {self._doing}, load {load:.0%}, "
            f"{len(self._crowd.history.events):,} records, faults: {words(self.faults)}",
            flush=True,
        )

    async def tell_progress(self) -> None:
        """Print where the run is, every 10 seconds."""
        while True:
            await asyncio.sleep(PROGRESS_S)
            self._tell()

    async def keep_load(self) -> None:
        """Slow the clients down, or hurry them, until the server has its load."""
        histories = (self._crowd.history, self._crowd.works_history)
        pid, before, at, pause = 0, 0.0, 0.0, 0.02
        while True:
            await asyncio.sleep(1)
            try:
                times = psutil.Process(self._lives.pid).cpu_times()
            except (psutil.Error, ValueError):
                continue
            computed, now = times.user + times.system, time.monotonic()
            if pid == self._lives.pid:
                load = (computed - before) / (now - at)
                self.loads.append(load)
                pause = min(1.0, max(0.001, pause * min(2.0, max(0.5, load / LOAD))))
                for history in histories:
                    history.pause_s = pause
            pid, before, at = self._lives.pid, computed, now

    # Faults

    async def fault(self, kinds: list[str]) -> None:
        """Cause a fault, and repair it."""
        self._lives.check()
        kind = self._random.choice(kinds)
        self.faults[kind] += 1
        if kind == "kill":
            await self._lives.end()
            await self._lives.start()
            await self._lives.ready()
        elif kind == "clock jump":
            self._unsure(True)
            self._lives.set_clock(-HOUR_MS)
            await asyncio.sleep(WRONG_S)
            self._lives.set_clock(0)
            await asyncio.sleep(LOOK_S)
            self._unsure(False)
        else:
            self._unsure(True)
            self._fill()
            await asyncio.sleep(FULL_S)
            self._filler.unlink()
            # A store that failed opens again, and its locks may have ended.
            await asyncio.sleep(REOPEN_S)
            self._unsure(False)

    @property
    def _filler(self) -> Path:
        return self._root / "filler"

    def _fill(self) -> None:
        taken = 0
        with self._filler.open("wb") as file:
            for _ in range(100):
                found = os.statvfs(self._root)
                if not (free := found.f_bavail * found.f_frsize):
                    break
                # The server writes at the same time: then less is free than a moment ago.
                with suppress(OSError):
                    os.posix_fallocate(file.fileno(), taken, free)
                    taken += free

    def _unsure(self, unsure: bool) -> None:
        self._crowd.history.locks_are_unsure = unsure
        self._lives.on_fault()

    async def run(self, seconds: float) -> None:
        """Cause faults for that long."""
        every_s, begun = min(10.0, seconds / 12), time.monotonic()
        while (passed := time.monotonic() - begun) < seconds and not self._over.is_set():
            await asyncio.sleep(every_s * (0.5 + self._random.random()))
            await self.fault(self._kinds if passed < seconds * 2 / 3 else self._kinds[1:])
        self._lives.check()
        self.minutes = (time.monotonic() - begun) / 60

    async def busy(self, seconds: float, faults: bool) -> Seen:
        """Be busy for that long, take everything out, and rest."""
        self._tell("busy with faults" if faults else "busy")
        self._crowd.history.late_s = LATE_S
        await self._crowd.start()
        load = asyncio.ensure_future(self.keep_load())
        try:
            await (self.run(seconds) if faults else asyncio.sleep(seconds))
        finally:
            load.cancel()
        self._tell("taking everything out")
        seen = await self._crowd.finish()
        self._tell("at rest")
        await asyncio.sleep(REST_S)
        return seen


def words(faults: Counter[str]) -> str:
    """Return how often there was which fault."""
    return ", ".join(f"{name} {count:,}" for name, count in sorted(faults.items())) or "none"


async def soaked(root: Path, seed: int, minutes: float) -> int:
    """Run, print the figures, and return the exit code."""
    with small_disk(root) as fillable:
        if not fillable:
            print("full disks: skipped, as this user may not mount a disk", flush=True)
        async with Lives(root, Random(seed)) as lives, lives.serving():
            crowd = Crowd(lives.place, lives.amqp_port, lives.sqs_port, seed, WINDOW_MS)
            lives.on_fault = crowd.history.fault
            soak = Soak(lives, crowd, Random(seed), fillable)
            progress = asyncio.ensure_future(soak.tell_progress())
            try:
                await crowd.create()
                await soak.busy(WARM_UP_S, faults=False)
                before = at_rest(lives.pid, root)
                soak.loads.clear()
                seen = await soak.busy(minutes * 60, faults=True)
                after = at_rest(lives.pid, root)
            except BaseException:
                crowd.give_up()
                raise
            finally:
                progress.cancel()
    load = sum(soak.loads) / max(len(soak.loads), 1)
    print(f"{soak.minutes:.1f} minutes at {load:.0%} load, seed {seed}: {words(soak.faults)}")
    return report(before, after, seen, soak.faults.total())


def report(before: dict[str, float], after: dict[str, float], seen: Seen, faults: int) -> int:
    """Print the figures, and return the exit code."""
    grown = [name for name in before if after[name] > before[name] + MORE[name]]
    for name in before:
        verdict = f"grown by more than {MORE[name]}" if name in grown else "back"
        print(f"{name:<12} before {before[name]:8.1f}   after {after[name]:8.1f}   {verdict}")
    for anomaly in seen.anomalies[:20]:
        print(f"{anomaly.rule}: {anomaly.words}", file=sys.stderr)
    print(seen.report(faults, "fault"))
    return 1 if grown or seen.anomalies else 0


def main() -> int:
    """Soak for as long as the command line says."""
    parser = argparse.ArgumentParser(description="Soak a busy server in faults.")
    parser.add_argument("--minutes", type=float, default=10, help="default: 10")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        return asyncio.run(soaked(Path(root), given.seed, given.minutes))


if __name__ == "__main__":
    sys.exit(main())
