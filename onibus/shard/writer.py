"""A store's writer thread: one commit at a time, off the thread that owns all state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Protocol

Work = Callable[[], None]
Done = Callable[[BaseException | None], None]


class Writer(Protocol):
    """Runs a commit, then says how it went, on the thread that owns the state."""

    def submit(self, work: Work, done: Done) -> None: ...

    def run_here(self, work: Work, done: Done) -> None:
        """Do the same on the thread that owns the state."""

    def stop(self) -> None: ...


class ThreadWriter:
    """A separate thread; `call` runs `done` on the owning thread."""

    def __init__(self, name: str, call: Callable[[Callable[[], None]], object]) -> None:
        self._call = call
        self._queue: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"store-{name}", daemon=True)
        self._thread.start()

    def submit(self, work: Work, done: Done) -> None:
        self._queue.put((work, done))

    def run_here(self, work: Work, done: Done) -> None:
        done(_failure(work))

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            self._call(partial(done, _failure(work)))


def _failure(work: Work) -> BaseException | None:
    """Do some work; return its error."""
    try:
        work()
    except BaseException as error:
        return error
    return None
