"""SIGTERM ends a long run as its last step does: with the figures that it has by then."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class _Ended(SystemExit):
    """The signal; a loop of asyncio passes this kind of exception on."""


@contextmanager
def ended_early() -> Iterator[None]:
    """Leave the block when SIGTERM comes; processes that it started with `multiprocessing` end."""
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            os._exit(-number)
        for child in multiprocessing.active_children():
            child.kill()
        raise _Ended

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except _Ended:
        print("ended early by SIGTERM", flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)
