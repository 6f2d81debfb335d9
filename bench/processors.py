"""Processor time of Spark and of the server: what a busy machine distorts least."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Spent:
    """Processor seconds of each part."""

    java: float
    workers: float
    server: float

    @property
    def total(self) -> float:
        return self.java + self.workers + self.server

    def __sub__(self, before: Spent) -> Spent:
        return Spent(
            self.java - before.java, self.workers - before.workers, self.server - before.server
        )


def spent(server: int | None = None) -> Spent:
    """Return the processor seconds so far of the Java below this process and of its workers."""
    java = workers = 0.0
    for process in psutil.Process().children(recursive=True):
        if process.pid == server:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            used = _seconds(process)
            if process.name() == "java":
                java += used
            else:
                workers += used
    with contextlib.suppress(psutil.NoSuchProcess):
        return Spent(java, workers, 0.0 if server is None else _seconds(psutil.Process(server)))
    return Spent(java, workers, 0.0)


def spent_by(work: Callable[[], object], server: int | None = None) -> Spent:
    """Do the work, and return what it took."""
    before = spent(server)
    work()
    return spent(server) - before


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    # Workers that ended are children that their daemon has waited for.
    ended = times.children_user + times.children_system if process.name() != "java" else 0.0
    return float(times.user + times.system + ended)
