"""The lives of one server: started on the same data and ports, and ended in every way.

A server is forked from a process that has imported everything. So a start takes a fraction of a
second, and a kill during a start meets recovery, not Python's imports.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import mmap
import os
import signal
import struct
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import psutil

from tests.over_http.on_disk import Place, free_port
from tests.server.processes import environment

#: How a life ends, and how often.
ENDS = {"serving": 70, "starting": 15, "stopping": 10, "stopped": 5}
#: The longest life, from when the server is ready.
LIFE_S = 0.6
PATIENCE_S = 120
_PR_SET_PDEATHSIG = 1
#: The file that shifts the servers' wall clock, and its format: milliseconds.
CLOCK = "clock-offset"
_OFFSET = struct.Struct("<q")


class DidNotStart(Exception):
    """A server that ended before it served."""


class Lives:
    """One server's data and ports, and how often it died."""

    def __init__(
        self, root: Path, random: Random, disk: Path | None = None, mutant: str = ""
    ) -> None:
        self.place = Place(root, disk)
        self.amqp_port, self.sqs_port = free_port(), free_port()
        self.ends: Counter[str] = Counter()
        #: how long starts took, in seconds
        self.starts: list[float] = []
        #: called when a server has died and when the next one serves
        self.on_fault: Callable[[], None] = lambda: None
        #: the process id of the server that runs
        self.pid = 0
        self._random = random
        self._mutant = mutant
        self._parent: Process
        self._clock = self.place.config.with_name(CLOCK)
        self._clock.write_bytes(_OFFSET.pack(0))
        self._flags = {
            "config": str(self.place.config),
            "http_port": self.place.port,
            "amqp_port": self.amqp_port,
            "sqs_port": self.sqs_port,
            "quiet": True,
        }

    async def __aenter__(self) -> Lives:
        command = [sys.executable, "-m", "tests.crash.lives", json.dumps(self._flags), self._mutant]
        self._parent = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, env=environment(), start_new_session=True
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        # With it goes the server, if one runs.
        os.killpg(self._parent.pid, signal.SIGKILL)
        await self._parent.wait()

    @property
    def kills(self) -> int:
        return self.ends.total() - self.ends["stopped"]

    async def _hear(self) -> tuple[str, int]:
        """Return the next line of the parent: what happened, and a number."""
        assert self._parent.stdout is not None
        line = await asyncio.wait_for(self._parent.stdout.readline(), PATIENCE_S)
        word, number = line.split()
        return word.decode(), int(number)

    async def start(self) -> None:
        """Start a server."""
        self._begun = time.monotonic()
        assert self._parent.stdin is not None
        self._parent.stdin.write(b"\n")
        word, self.pid = await self._hear()
        assert word == "started"

    async def ready(self) -> None:
        """Wait until the server serves."""
        word, code = await self._hear()
        if word != "ready":
            raise DidNotStart(f"a server ended with {code} while it started: see above")
        self.starts.append(time.monotonic() - self._begun)
        # Answers of the one before may still have been on their way when it was killed.
        self.on_fault()

    async def end(self, how: int = signal.SIGKILL) -> None:
        """End the server, and wait until it is gone."""
        os.kill(self.pid, how)
        while (heard := await self._hear())[0] != "ended":
            pass
        self.pid = 0
        assert how == signal.SIGKILL or heard[1] == 0, f"a clean stop ended with {heard[1]}"
        self.on_fault()

    def set_clock(self, ms: int) -> None:
        """Let the server's wall clock differ from the machine's by this much."""
        # In place: servers have the file mapped.
        with self._clock.open("r+b") as file:
            file.write(_OFFSET.pack(ms))

    def check(self) -> None:
        """Fail if the server ended although no fault ended it."""
        assert psutil.pid_exists(self.pid), "the server ended without a kill: see above"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run a server inside the block; kill it in the end."""
        await self.start()
        await self.ready()
        yield
        await self.end()

    async def live(self) -> None:
        """Start a server, let it serve for a while, and end it."""
        random = self._random
        (end,) = random.choices(list(ENDS), list(ENDS.values()))
        instant, late = random.random() * LIFE_S, random.random()
        await self.start()
        if end == "starting":
            recent = self.starts[-10:]
            await asyncio.sleep(late * sum(recent) / len(recent))
        else:
            await self.ready()
            await asyncio.sleep(instant)
        if end == "stopped":
            # A second server must not get in, and must leave the files as they are.
            assert "is locked" in await asyncio.to_thread(self.place.refuse_second)
        if end == "stopping":
            os.kill(self.pid, signal.SIGTERM)
            await asyncio.sleep(late * 0.05)
        await self.end(signal.SIGTERM if end == "stopped" else signal.SIGKILL)
        self.ends[end] += 1


def _die_with_parent() -> None:
    """Let no server outlive a run that was itself killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _follow(offset: Path) -> None:
    """Add the milliseconds in this file to the wall clock of the broker.

    Signatures keep the machine's time, as clients do.
    """
    from onibus.shard.clock import SystemClock

    with offset.open("rb") as file:
        shared = mmap.mmap(file.fileno(), _OFFSET.size, prot=mmap.PROT_READ)

    def wall(self: SystemClock) -> int:
        (extra,) = _OFFSET.unpack_from(shared)
        return time.time_ns() // 1_000_000 + int(extra)

    SystemClock.wall = wall  # type: ignore[method-assign]


def be_the_parent(given: dict[str, Any], mutant: str) -> None:
    """Fork a server for each line of the standard input; write what becomes of it."""
    import_module("onibus.cli.running")
    if mutant:
        getattr(import_module("tests.crash.mutants"), mutant)()
    from onibus.cli.serve import run, serve

    flags = {**dict.fromkeys(inspect.signature(serve).parameters), **given}
    told = os.dup(1)
    _follow(Path(given["config"]).with_name(CLOCK))
    _die_with_parent()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while sys.stdin.readline():
        pid = os.fork()
        if not pid:
            _die_with_parent()
            sys.exit(run(flags, lambda ready: (os.write(told, b"ready 0\n"), None)[1]))
        os.write(told, f"started {pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(told, f"ended {os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    be_the_parent(json.loads(sys.argv[1]), sys.argv[2])
