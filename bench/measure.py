"""What all measurements share: figures, their targets, and the yardstick of this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from onibus import Bus, Message

T = TypeVar("T")

#: Every message of every measurement.
BODY_BYTES = 1_024
SENDERS = 64
ROUNDS = 7


@dataclass(frozen=True)
class Figure:
    """One line of the table. `target` is what `value` must reach, or stay below if `at_most`."""

    name: str
    value: float
    target: float
    unit: str
    at_most: bool = False
    note: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target


@contextmanager
def folder() -> Iterator[Path]:
    """A directory on the disk that is measured, gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="onibus-bench-", dir=os.environ.get("BENCH_DIRECTORY")))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def append_and_sync(path: Path, count: int, group: int) -> float:
    """Append messages to a plain file and sync each group; return messages a second."""
    data = os.urandom(BODY_BYTES * group)
    with open(path / "plain", "wb", buffering=0) as file:
        start = time.perf_counter()
        for _ in range(count // group):
            file.write(data)
            os.fdatasync(file.fileno())
        return count / (time.perf_counter() - start)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Bus]:
    """Open a bus without the disk reserve, so that benches need no large disk."""
    async with Bus.open(path, reserve_bytes=0) as bus:
        yield bus


async def send_singly(
    bus: Bus, queue: str, messages: Iterator[Message], senders: int = SENDERS
) -> None:
    """Send messages one by one with `senders` senders, each waiting for its response."""

    async def sender() -> None:
        for message in messages:
            await bus.send(queue, message)

    await asyncio.gather(*[sender() for _ in range(senders)])


async def rate(count: int, work: Coroutine[Any, Any, None]) -> float:
    """Await the work and return how many a second it did."""
    start = time.perf_counter()
    await work
    return count / (time.perf_counter() - start)


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def median(values: list[float]) -> float:
    return statistics.median(values)


def interleaved(rounds: int, works: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Do all works in turn, again and again: noise hits all of them alike."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(work())
    return found
