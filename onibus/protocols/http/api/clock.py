"""The clock over HTTP: whether the system clock is in doubt, and its confirmation."""

from __future__ import annotations

from onibus.api.operation import ClockAccepted, ClockInfo
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


async def clock(call: Call) -> ClockInfo:
    return call.bus.clock()


async def accept(call: Call) -> ClockAccepted:
    return ClockAccepted(await call.bus.accept_clock())


ROUTES = [
    Route(
        method="GET",
        path="/v1/clock",
        summary="Show the server's time, and whether its clock is in doubt.",
        right=Right.MANAGE,
        handler=clock,
        gives=ClockInfo,
        tag="clock",
    ),
    Route(
        method="POST",
        path="/v1/clock/accept",
        summary="Confirm the server's clock: count the time in doubt, and set timestamps back.",
        right=Right.MANAGE,
        handler=accept,
        gives=ClockAccepted,
        tag="clock",
    ),
]
