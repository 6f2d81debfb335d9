"""Bounds that hold for every input of every target: processor time and memory.

Time is the processor's, which others on the machine do not change; memory is the most that the
process has had.
"""

from __future__ import annotations

import logging
import os
import time

from tests.fuzz.registry import Feed, Target

#: Of one input; and where atheris counts every line.
SECONDS_MAX, WATCHED_SECONDS_MAX = 1.0, 5.0
#: Of the process, beyond what it has when the first inputs are through.
GROWN_MB_MAX = 256
_FIRST = 500


def guarded(target: Target, feed: Feed, seconds_max: float = SECONDS_MAX) -> Feed:
    """Return what takes an input, and raises where it costs too much."""
    watch_log()
    fed = bound_kb = 0
    # It stays open: opening it for each input took a tenth of the time.
    status = os.open("/proc/self/status", os.O_RDONLY)

    def take(data: bytes) -> None:
        nonlocal fed, bound_kb
        target.prepare()
        begun = time.process_time()
        feed(data)
        used = time.process_time() - begun
        fed += 1
        # The first ones load modules and fill caches.
        assert used < seconds_max or fed < _FIRST, f"{used:.2f} s of a processor for one input"
        peak = _peak_kb(status)
        if fed <= _FIRST:
            bound_kb = peak + (GROWN_MB_MAX << 10)
        assert peak < bound_kb, f"{peak >> 10} MB were used"

    return take


def _peak_kb(status: int) -> int:
    """Return the most memory that this program has had.

    Not `ru_maxrss`: a child inherits the peak of the process that started it.
    """
    _, found, rest = os.pread(status, 1 << 14, 0).partition(b"VmHWM:")
    assert found, "this system does not say how much memory a process has had"
    return int(rest.split(None, 1)[0])


class _Faults(logging.Handler):
    """Raises for every error in the log: errors are faults of the server."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage()) from (record.exc_info or (None, None))[1]


def watch_log() -> None:
    """Let every fault that is logged be one that is raised."""
    logger = logging.getLogger("onibus")
    logger.propagate = False
    logger.handlers[:] = [_Faults(logging.ERROR)]
