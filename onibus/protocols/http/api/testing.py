"""Test mode over HTTP (X10): reset, and a movable clock.

Only for a server that keeps everything in memory and was started for tests.
"""

from __future__ import annotations

from onibus.api.operation import ClockOut, MoveClock
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


async def reset(call: Call) -> None:
    """Delete every entity and its messages."""
    for name in call.bus.topics():
        await call.bus.delete_topic(name)
    for name in call.bus.queues():
        await call.bus.delete_queue(name)


async def move_clock(call: Call) -> ClockOut:
    """Advance the clock; respond once everything due is done."""
    await call.bus.advance(call.decode(MoveClock).advance_ms)
    return ClockOut(call.bus.broker.clock.wall())


ROUTES = [
    Route(
        method="POST",
        path="/v1/test/reset",
        summary="Delete every entity and its messages.",
        right=Right.MANAGE,
        handler=reset,
        test_mode=True,
        tag="test mode",
    ),
    Route(
        method="POST",
        path="/v1/test/clock",
        summary="Move the clock forward.",
        right=Right.MANAGE,
        handler=move_clock,
        takes=MoveClock,
        gives=ClockOut,
        test_mode=True,
        tag="test mode",
    ),
]
