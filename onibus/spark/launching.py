"""Ties Spark's Java process to this one: it ends with this process, even while it starts.

PySpark's Java process ends once its standard input does, but looks at that only after its start,
which takes seconds on a quiet machine and a minute on a busy one. A command that is stopped in this
time must not leave it behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: Time for Java to delete its temporary files.
_END_S = 10.0
#: The call of Linux by which a process gets a signal when its parent ends.
_SET_PARENT_DEATH_SIGNAL = 1


class _Java(subprocess.Popen[bytes]):
    """Spark's Java process."""

    def __init__(self, command: list[str], **how: Any) -> None:
        how["preexec_fn"] = _tied(how["preexec_fn"])
        super().__init__(command, **how)

    def poll(self) -> int | None:
        """Return how it ended: PySpark waits without end for one that ended with 0."""
        code = super().poll()
        return 1 if code == 0 else code


@contextmanager
def tied() -> Iterator[None]:
    """Tie the Java process that PySpark starts in this context; end it if that is interrupted."""
    from pyspark import SparkContext, java_gateway

    module: Any = java_gateway
    started: list[_Java] = []

    def start(command: list[str], **how: Any) -> _Java:
        started.append(_Java(command, **how))
        return started[-1]

    original, module.Popen = module.Popen, start
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        for java in started:
            _end(java)
            # A later start must not use it.
            SparkContext._gateway = SparkContext._jvm = None
        raise
    finally:
        module.Popen = original


def _tied(prepare: Callable[[], None]) -> Callable[[], None]:
    """Return what a child runs before it becomes another program, on Linux tied to this process."""
    # Linux means the thread that starts it: only the main one lasts as long as the process.
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return prepare
    libc = ctypes.CDLL(None)

    def tied_prepare() -> None:
        prepare()
        libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)

    return tied_prepare


def _end(java: _Java) -> None:
    """End a process and its children: while it starts, it is a shell that runs another Java."""
    family = [java.pid, *_below(java.pid)]
    for one in family:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGTERM)
    try:
        java.wait(_END_S)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


def _below(pid: int) -> list[int]:
    """Return the children of a process, and theirs."""
    try:
        command = ["ps", "-A", "-o", "pid=,ppid="]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        # Small containers have no ps: the children end soon, without their parent.
        return []
    children: dict[int, list[int]] = {}
    for line in listed.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]
