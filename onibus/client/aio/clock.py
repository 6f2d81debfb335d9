"""The server's clock: show whether it is in doubt, and confirm it."""

from __future__ import annotations

from onibus.api.log import StampsSetBack
from onibus.api.operation import ClockAccepted, ClockInfo
from onibus.client.aio.caller import AsyncCaller
from onibus.client.asking import get, path_of, post


class AsyncClockCalls(AsyncCaller):
    """What an operator asks of a server's clock."""

    async def clock(self) -> ClockInfo:
        """Return the time that the server takes for right, and whether its clock is in doubt."""
        told: ClockInfo = await self.ask(get(path_of("clock")), ClockInfo)
        return told

    async def accept_clock(self) -> list[StampsSetBack]:
        """Confirm the server's clock; return the partitions whose stamps were set back.

        Time that was in doubt counts from now on: messages may expire, ids may be forgotten.
        """
        told: ClockAccepted = await self.ask(post(path_of("clock", "accept")), ClockAccepted)
        return told.set_back
