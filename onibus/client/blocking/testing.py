"""Calls for tests only (X10): reset, and a movable clock.

They need a server started with `--ephemeral --test-mode`, or a Bus in memory.
"""

from __future__ import annotations

from onibus.api.operation import ClockOut
from onibus.client.asking import path_of, post
from onibus.client.blocking.caller import Caller


class TestCalls(Caller):
    """Operations of a test on its server."""

    def reset(self) -> None:
        """Delete every entity and all messages."""
        self.answer(post(path_of("test", "reset")))

    def advance(self, ms: int) -> int:
        """Advance the clock; return the new time in milliseconds since 1970.

        Everything due by then is done when this returns.
        """
        # Not repeated: twice would move the clock too far.
        ask = post(path_of("test", "clock"), {"advance_ms": ms}, repeats=False)
        told: ClockOut = self.ask(ask, ClockOut)
        return told.now_ms
