"""What only tests ask for (X10): everything gone at a call, and a clock that can be moved.

Only of a server that was started with `--ephemeral --test-mode`, or of a Bus in memory.
"""

from __future__ import annotations

from onibus.api.operation import ClockOut
from onibus.client.asking import path_of, post
from onibus.client.blocking.caller import Caller


class TestCalls(Caller):
    """What a test does with its server."""

    def reset(self) -> None:
        """Delete every entity with everything in it."""
        self.answer(post(path_of("test", "reset")))

    def advance(self, ms: int) -> int:
        """Let time pass at once; return what time it is then, in milliseconds since 1970.

        What came due is done when this returns.
        """
        # Not repeated by itself: twice would be too far.
        ask = post(path_of("test", "clock"), {"advance_ms": ms}, repeats=False)
        told: ClockOut = self.ask(ask, ClockOut)
        return told.now_ms
