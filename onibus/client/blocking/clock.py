"""The server's clock: show whether it is in doubt, and confirm it."""

from __future__ import annotations

from onibus.api.log import StampsSetBack
from onibus.api.operation import ClockAccepted, ClockInfo
from onibus.client.asking import get, path_of, post
from onibus.client.blocking.caller import Caller


class ClockCalls(Caller):
    """What an operator asks of a server's clock."""

    def clock(self) -> ClockInfo:
        """Return the time that the server takes for right, and whether its clock is in doubt."""
        told: ClockInfo = self.ask(get(path_of("clock")), ClockInfo)
        return told

    def accept_clock(self) -> list[StampsSetBack]:
        """Confirm the server's clock; return the partitions whose stamps were set back.

        Time that was in doubt counts from now on: messages may expire, ids may be forgotten.
        """
        told: ClockAccepted = self.ask(post(path_of("clock", "accept")), ClockAccepted)
        return told.set_back
