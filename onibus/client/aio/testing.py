"""Calls for tests only (X10): reset, and a movable clock.

They need a server started with `--ephemeral --test-mode`, or a Bus in memory.
"""

from __future__ import annotations

from onibus.api.operation import ClockOut
from onibus.client.aio.caller import AsyncCaller
from onibus.client.asking import path_of, post


class AsyncTestCalls(AsyncCaller):
    """Operations of a test on its server."""

    async def reset(self) -> None:
        """Delete every entity and all messages."""
        await self.answer(post(path_of("test", "reset")))

    async def advance(self, ms: int) -> int:
        """Advance the clock; return the new time in milliseconds since 1970.

        Everything due by then is done when this returns.
        """
        # Not repeated: twice would move the clock too far.
        ask = post(path_of("test", "clock"), {"advance_ms": ms}, repeats=False)
        told: ClockOut = await self.ask(ask, ClockOut)
        return told.now_ms
