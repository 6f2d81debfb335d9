"""Rules over `$management` in a transaction, as the .NET client asks for them (P11)."""

from __future__ import annotations

import pytest

from onibus import Bus
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from tests.amqp.peer import Peer
from tests.amqp.raw_client import message, transfer
from tests.bus_helpers import run

COORDINATOR = 50
SUBSCRIPTION = "t/Subscriptions/s"
ADD = {
    "rule-name": to.string("red"),
    "rule-description": to.text_map(
        {"sql-filter": to.text_map({"expression": to.string("colour = 'red'")})}
    ),
}
REMOVE = {"rule-name": to.string("$Default")}


def in_transaction(name: bytes) -> bytes:
    return say.performative(say.TRANSACTIONAL, [name])


def discharge(name: bytes, fail: bool = False) -> bytes:
    return say.performative(say.DISCHARGE, [name, to.boolean(fail)])


async def with_topic(bus: Bus, partitioned: bool = False) -> Peer:
    await bus.create_topic("t", enable_partitioning=partitioned)
    await bus.create_subscription("t", "s")
    peer = Peer(bus)
    peer.greet()
    peer.open_requests(f"{SUBSCRIPTION}/$management")
    return peer


def names(bus: Bus) -> list[str]:
    return [rule.name for rule in bus.subscription(SUBSCRIPTION.lower()).rules]


@pytest.mark.promise("P11", "B5")
@run
async def test_rules_change_when_the_transaction_is_discharged() -> None:
    async with Bus.ephemeral() as bus:
        peer = await with_topic(bus)
        peer.attach(0, say.SENDER, "t")
        peer.heard()
        for attempt, fail in enumerate((True, False)):
            name = await peer.declare(COORDINATOR + attempt)
            state = in_transaction(name)
            assert await peer.request("add-rule", ADD, state=state) == (200, None)
            assert await peer.request("remove-rule", REMOVE, state=state) == (200, None)
            peer.say(transfer(0, 10 + attempt, message(b"sent"), state=state))
            await peer.hear(say.DISPOSITION)
            assert names(bus) == ["$Default"]
            told = await peer.coordinate(COORDINATOR + attempt, discharge(name, fail))
            assert told.descriptor == say.ACCEPTED
            assert names(bus) == (["$Default"] if fail else ["red"])
        # It has no colour: the new rule does not select it.
        assert bus.peek(SUBSCRIPTION.lower()) == []
        status, told = await peer.request(
            "enumerate-rules", {"skip": to.int_(0), "top": to.int_(9)}
        )
        assert (status, len(told["rules"])) == (200, 1)


@pytest.mark.promise("P11", "B5")
@run
async def test_partitioned_topics_reject_them_and_so_does_the_discharge() -> None:
    async with Bus.ephemeral() as bus:
        peer = await with_topic(bus, partitioned=True)
        for handle, (operation, body) in enumerate((("add-rule", ADD), ("remove-rule", REMOVE))):
            name = await peer.declare(COORDINATOR + handle)
            told, _ = await peer.ask(operation, body, state=in_transaction(name))
            assert (told["statusCode"], told["errorCondition"]) == (400, "amqp:not-allowed")
            outcome = await peer.coordinate(COORDINATOR + handle, discharge(name))
            assert outcome.descriptor == say.REJECTED
            assert outcome.value[0].value[0] == "amqp:transaction:rollback"
        assert names(bus) == ["$Default"]
        # Without a transaction they are accepted.
        assert await peer.request("add-rule", ADD) == (200, None)


@pytest.mark.promise("P11", "B5")
@run
async def test_a_rule_that_is_there_rejects_its_transaction() -> None:
    async with Bus.ephemeral() as bus:
        peer = await with_topic(bus)
        name = await peer.declare(COORDINATOR)
        state = in_transaction(name)
        assert await peer.request("add-rule", ADD, state=state) == (200, None)
        told, _ = await peer.ask("add-rule", ADD, state=state)
        assert told["statusCode"] == 409
        outcome = await peer.coordinate(COORDINATOR, discharge(name))
        assert outcome.descriptor == say.REJECTED
        assert names(bus) == ["$Default"]
