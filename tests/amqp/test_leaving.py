"""A client that leaves right after it has said something has said it."""

from __future__ import annotations

import asyncio

import pytest

from onibus import Message
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.frames import frame
from onibus.protocols.amqp.service_bus.session_receiver import SESSION_FILTER
from tests.amqp.peer import greeted
from tests.amqp.raw_client import attach
from tests.bus_helpers import run

_SESSION = say.performative(
    say.SOURCE,
    [to.string("q"), *[to.NULL] * 6, to.fields({SESSION_FILTER: to.string("s")})],
)

_GOODBYES = {"detach": say.detach(0, None), "end": say.end(None), "close": say.close(None)}


@pytest.mark.promise("B1", "B4")
@pytest.mark.parametrize("goodbye", ["detach", "end", "close"])
@run
async def test_what_is_completed_right_before_a_session_is_closed_is_gone(goodbye: str) -> None:
    async with greeted(requires_session=True) as (peer, bus):
        for body in (b"a", b"b", b"c"):
            await bus.send("q", Message(body=body, session_id="s"))
        peer.say(attach(0, say.RECEIVER, "q", "me", from_=_SESSION))
        await peer.hear(say.ATTACH)
        peer.flow(0, 3)
        await peer.hear(say.TRANSFER, 3)
        completed = say.disposition(say.RECEIVER, 0, 1, say.accepted())
        peer.feed(frame(0, completed) + frame(0, _GOODBYES[goodbye]))
        while peer.heard() or peer.connection.under_way:
            await asyncio.sleep(0)
        # What was not completed is given back with its session.
        assert [one.body for one in bus.peek("q")] == [b"c"]
        assert bus.queue("q").active_count == 1
