"""Transactions (B5), as the official clients see them: those of Python have none of their own.

So a raw client of AMQP does what those of .NET and Java do, and both clients of Python look at what
came of it. More, by Qpid Proton: tests/amqp/test_transactions.py.
"""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessageState, ServiceBusSubQueue

from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from tests.amqp.sdk.raw_transaction import RawTransactions
from tests.amqp.sdk.stage import scenario
from tests.amqp.sdk.world import (
    MINUTE,
    World,
    bodies,
    get,
    get_one,
    msg,
    peek_all,
)

ROLLED_BACK = "amqp:transaction:rollback"
COMPLETE = say.accepted()
ABANDON = say.performative(say.MODIFIED, [to.boolean(True), to.boolean(False)])
DEFER = say.performative(say.MODIFIED, [to.boolean(True), to.boolean(True)])
DEAD_LETTER = say.rejected(say.error("com.microsoft:dead-letter", "d"))


@pytest.mark.promise("B5")
@scenario
async def test_all_verbs_together_or_not_at_all(world: World) -> None:
    queue, out = await world.queue(), await world.queue()
    sender, receiver, of_out, dead = await world.open(
        world.to(queue),
        world.of(queue),
        world.of(out),
        world.of(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER),
    )
    sent = ["done", "back", "later", "dead", "left"]
    await sender.send_messages([msg(body) for body in sent])
    verbs = (COMPLETE, ABANDON, DEFER, DEAD_LETTER)
    with RawTransactions(world.server, queue, out) as raw:
        held = raw.receive(queue, 5)
        undone = raw.declare()
        assert raw.send(out, undone, b"never")
        assert raw.settle(undone, held[4], DEAD_LETTER)
        assert raw.discharge(undone, fail=True) == ""
        work = raw.declare()
        for delivery, verb in zip(held, verbs, strict=False):
            assert raw.settle(work, delivery, verb)
        assert raw.send(out, work, b"one")
        assert raw.send(queue, work, b"two")
        assert bodies(await peek_all(receiver)) == sent, "nothing is seen before"
        assert await peek_all(of_out) == []
        assert raw.discharge(work) == ""
        assert bodies(await get(of_out, 1)) == ["one"]
        states = [(str(one), one.state) for one in await peek_all(receiver)]
        active, deferred = ServiceBusMessageState.ACTIVE, ServiceBusMessageState.DEFERRED
        assert states == [
            *(("back", active), ("later", deferred), ("left", active), ("two", active)),
        ]
        assert str(await get_one(dead)) == "dead"
        back, two = await get(receiver, 2)
        assert (str(back), back.delivery_count, str(two)) == ("back", 1, "two")


@pytest.mark.promise("B5")
@scenario
async def test_a_hundred_messages_and_two_minutes(world: World) -> None:
    queue = await world.queue()
    with RawTransactions(world.server, queue) as raw:
        large = raw.declare()
        assert all(raw.send(queue, large, b"x") for _ in range(100))
        assert raw.discharge(large) == ""
        too_large = raw.declare()
        assert all(raw.send(queue, too_large, b"x") for _ in range(100))
        assert not raw.send(queue, too_large, b"one too many")
        assert raw.discharge(too_large) == ROLLED_BACK
        late = raw.declare()
        assert raw.send(queue, late, b"x")
        await world.advance(2 * MINUTE)
        assert raw.discharge(late) == ROLLED_BACK
    receiver = await world.receiver(queue)
    assert len(await peek_all(receiver)) == 100
