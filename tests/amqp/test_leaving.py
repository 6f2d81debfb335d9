"""A client that leaves right after it has said something has said it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from onibus import Message
from onibus.directory import turns
from onibus.gateway import sending
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.frames import frame
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.incoming import BATCH_FORMAT
from onibus.protocols.amqp.service_bus.session_receiver import SESSION_FILTER
from tests.amqp.peer import greeted
from tests.amqp.raw_client import attach, message, transfer
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


@pytest.mark.promise("B3")
@pytest.mark.parametrize("settled", [False, True])
@run
async def test_a_fan_out_is_computed_no_further_once_its_client_is_lost(
    settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (turns, sending):
        monkeypatch.setattr(module, "SLICE_STEPS", 1)
    async with greeted() as (peer, bus):
        await bus.create_topic("t")
        await bus.create_subscription("t", "s")
        slices: deque[Any] = deque()
        bus.broker.turns.soon = slices.append
        peer.attach(0, say.SENDER, "t")
        peer.heard()
        batch = b"".join(sections.data_section(message(body)) for body in (b"a", b"b"))
        peer.say(transfer(0, 1, batch, settled=settled, message_format=BATCH_FORMAT))
        assert bus.broker.turns.waiting == 1
        peer.connection.lost()
        while slices:
            slices.popleft()()
        bus.broker.turns.soon = bus.broker.call_soon
        assert bus.broker.turns.waiting == 0
        await bus.send("t", Message(body=b"after"))
        # The client does not wait for the outcome of messages that it sent settled.
        there = [one.body for one in bus.peek("t/subscriptions/s")]
        assert there == ([b"a", b"b", b"after"] if settled else [b"after"])
        assert peer.connection.held_bytes == 0
