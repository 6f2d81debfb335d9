"""What a client is told only when it is on the disk: a stop of the server waits for all of it."""

from __future__ import annotations

import asyncio

from onibus import Bus, Message
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.service_bus import sections
from tests.amqp.peer import Peer, greeted
from tests.amqp.raw_client import attach, message, transfer
from tests.bus_helpers import run

_COORDINATOR = say.performative(say.COORDINATOR, [])


async def _is_told(peer: Peer, code: int) -> None:
    """Something is under way until the client is told of it."""
    assert peer.connection.under_way > 0
    await peer.hear(code)
    assert peer.connection.under_way == 0


@run
async def test_sends_are_under_way_when_they_are_whole() -> None:
    async with greeted() as (peer, _):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.say(transfer(0, 1, b"half a ", more=True))
        assert (peer.connection.under_way, peer.connection.held_bytes) == (0, 7)
        peer.attach(1, say.SENDER, "q", name="another")
        peer.say(transfer(1, 2, message(b"x")))
        await _is_told(peer, say.DISPOSITION)


@run
async def test_requests_are_under_way() -> None:
    async with greeted() as (peer, bus):
        await bus.send("q", Message(body=b"x"))
        peer.open_requests("q/$management")
        numbers = {"sequence-numbers": to.longs([1])}
        peer.say_request("cancel-scheduled-message", numbers)
        assert peer.connection.under_way == 0  # refused at once
        await peer.hear(say.TRANSFER)
        delete = {"message-count": to.int_(1), "enqueued-time-utc": to.timestamp(1 << 45)}
        peer.say_request("batch-delete-messages", delete)
        await _is_told(peer, say.TRANSFER)


@run
async def test_discharges_are_under_way() -> None:
    async with greeted() as (peer, _):
        peer.attach(0, say.SENDER, "q")
        peer.say(attach(1, say.SENDER, "me", "", terminus=_COORDINATOR))
        peer.heard()
        asked = sections.section(sections.VALUE, say.performative(say.DECLARE, [to.NULL]))
        peer.say(transfer(1, 0, asked))
        [declared] = await peer.hear(say.DISPOSITION)
        name = to.binary(declared.fields[4].value[0])
        state = say.performative(say.TRANSACTIONAL, [name, to.NULL])
        peer.say(transfer(0, 1, message(b"x"), state=state))
        await peer.hear(say.DISPOSITION)
        assert peer.connection.under_way == 0
        asked = say.performative(say.DISCHARGE, [name, to.boolean(False)])
        peer.say(transfer(1, 2, sections.section(sections.VALUE, asked)))
        await _is_told(peer, say.DISPOSITION)


@run
async def test_settlements_are_under_way() -> None:
    async with greeted() as (peer, bus):
        await _two_messages(bus)
        peer.attach(0, say.RECEIVER, "q")
        peer.flow(0, 2)
        await peer.hear(say.TRANSFER, 2)
        # Settled by the client: it is told nothing, but what it said is done.
        for number, state in enumerate((say.released(), say.accepted())):
            peer.say(say.disposition(say.RECEIVER, number, number, state))
            peer.heard()
            assert peer.connection.under_way == 1
            while peer.connection.under_way:
                await asyncio.sleep(0)
        assert bus.queue("q").active_count == 1


@run
async def test_what_is_received_for_good_is_under_way() -> None:
    async with greeted() as (peer, bus):
        await _two_messages(bus)
        peer.attach(0, say.RECEIVER, "q", snd=say.SETTLED)
        peer.attach(1, say.RECEIVER, "q", name="another")
        peer.heard()
        peer.flow(0, 1)
        peer.client.stop_receiving()
        await _is_told(peer, say.TRANSFER)
        # Nothing more is given out, and who waits is not waited for.
        peer.flow(0, 10, 1)
        peer.flow(1, 10)
        await asyncio.sleep(0.01)
        assert peer.connection.under_way == 0
        assert all(one.code != say.TRANSFER for one in peer.heard())
        assert bus.queue("q").active_count == 1


async def _two_messages(bus: Bus) -> None:
    for _ in range(2):
        await bus.send("q", Message(body=b"x"))
