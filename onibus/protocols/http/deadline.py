"""A deadline that often moves and rarely expires: moving it later costs no timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_NEVER = float("inf")


class Deadline:
    """A callback at a deadline, unless it moves."""

    __slots__ = ("_at", "_late", "_loop", "_timer", "_timer_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, late: Callable[[], None]) -> None:
        self._loop = loop
        self._late = late
        self._at = _NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER

    def set(self, seconds: float) -> None:
        """Call back after this time, whatever was set before."""
        self._at = self._loop.time() + seconds
        if self._timer is None or self._at < self._timer_at:
            self._start(self._at)

    def clear(self) -> None:
        """Cancel the callback."""
        self._at = _NEVER

    def end(self) -> None:
        """Cancel permanently, and drop the callback."""
        self.clear()
        self._late = _nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        """Compare a timer that fires with the current deadline."""
        self._timer = None
        if self._at == _NEVER:
            return
        if self._at > self._loop.time():
            self._start(self._at)
        else:
            self._at = _NEVER
            self._late()


def _nothing() -> None:
    """Do nothing: the deadline has ended."""
