"""The server's clock: whether it is in doubt, and its confirmation."""

from __future__ import annotations

from onibus.api.log import StampsSetBack
from onibus.api.operation import ClockAccepted, ClockInfo
from onibus.client.aio.caller import AsyncCaller
from onibus.client.asking import get, path_of, post


class AsyncClockCalls(AsyncCaller):
    """Operations on a server's clock."""

    async def clock(self) -> ClockInfo:
        """Return the time that the server has confirmed, and whether its clock is in doubt."""
        told: ClockInfo = await self.ask(get(path_of("clock")), ClockInfo)
        return told

    async def accept_clock(self) -> list[StampsSetBack]:
        """Confirm the server's clock; return the partitions whose enqueued times were set back.

        From now on messages expire and recorded ids are discarded by this clock.
        """
        told: ClockAccepted = await self.ask(post(path_of("clock", "accept")), ClockAccepted)
        return told.set_back
