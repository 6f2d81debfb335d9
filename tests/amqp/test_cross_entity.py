"""Transactions as clients of .NET and Java speak them: sent via an entity, and by requests."""

from __future__ import annotations

import time
from typing import Any

import pytest

from onibus import Bus, Filter, Message
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.client import TRANSFER_DESTINATION
from onibus.security.keys import AccessKey, Keyring
from onibus.security.rights import Right
from onibus.security.sas import make_token
from tests.amqp.peer import Peer, greeted
from tests.amqp.raw_client import message, transfer
from tests.bus_helpers import run

COORDINATOR = 50
FAR_MS = 1 << 45


def in_transaction(name: bytes, outcome: bytes = to.NULL) -> bytes:
    return say.performative(say.TRANSACTIONAL, [name, outcome])


def discharge(name: bytes, fail: bool = False) -> bytes:
    return say.performative(say.DISCHARGE, [name, to.boolean(fail)])


def via(destination: str) -> dict[str, Any]:
    return {"properties": {TRANSFER_DESTINATION: to.string(destination)}}


def bodies(bus: Bus, name: str) -> list[bytes]:
    return [one.body for one in bus.peek(name)]


def completed(delivery_id: int, name: bytes) -> bytes:
    """Return a disposition that completes a delivery in a transaction."""
    state = in_transaction(name, say.accepted())
    fields = [to.boolean(say.RECEIVER), to.uint(delivery_id), to.NULL, to.boolean(False), state]
    return say.performative(say.DISPOSITION, fields)


@pytest.mark.promise("B5", "P8")
@run
async def test_what_is_sent_via_an_entity_arrives_when_the_transaction_is_committed() -> None:
    """One message is taken, another sent on: both, or neither."""
    async with greeted() as (peer, bus):
        await bus.create_queue("next", enable_partitioning=True)
        await bus.send("q", Message(body=b"in"))
        peer.attach(0, say.RECEIVER, "q", rcv=1)
        peer.attach(1, say.SENDER, "q", **via("next"))
        peer.flow(0, 1)
        [given] = await peer.hear(say.TRANSFER)
        keys = {"x-opt-via-partition-key": to.string("v"), "x-opt-partition-key": to.string("p")}
        sent = sections.section(sections.ANNOTATIONS, to.fields(keys)) + message(b"out", "m")
        for fail in (True, False):
            name = await peer.declare(COORDINATOR + fail)
            peer.say(transfer(1, 7 + fail, sent, state=in_transaction(name)))
            [told] = await peer.hear(say.DISPOSITION)
            assert told.fields[4].descriptor == say.TRANSACTIONAL
            if not fail:
                peer.say(completed(given.fields[1], name))
                await peer.hear(say.DISPOSITION)
            assert (bodies(bus, "q"), bodies(bus, "next")) == ([b"in"], [])
            outcome = await peer.coordinate(COORDINATOR + fail, discharge(name, fail))
            assert outcome.descriptor == say.ACCEPTED
        assert (bodies(bus, "q"), bodies(bus, "next")) == ([], [b"out"])
        [arrived] = bus.peek("next")
        assert arrived.message.partition_key == "p"


@run
async def test_both_entities_are_asked_for_the_right_to_send() -> None:
    async with Bus.ephemeral() as bus:
        for one in ("q", "next"):
            await bus.create_queue(one)
        secret, resource = "k" * 44, "sb://localhost/q"
        rights = frozenset({Right.SEND})
        key = AccessKey(name="of-q", primary=secret, rights=rights, entity="q")
        peer = Peer(bus, Keyring([key]))
        token = make_token(resource, "of-q", secret, int(time.time()) + 600)
        peer.client.put_token(resource, token)
        peer.greet()
        peer.heard()
        peer.attach(1, say.SENDER, "q", **via("next"))
        [refused] = [one for one in peer.heard() if one.code == say.DETACH]
        assert refused.condition == "amqp:unauthorized-access"
        peer.attach(2, say.SENDER, "q", **via("q/$deadletterqueue"))
        [refused] = [one for one in peer.heard() if one.code == say.DETACH]
        assert refused.condition == "amqp:not-allowed"


@pytest.mark.promise("B5", "L2", "S5")
@run
async def test_requests_are_part_of_a_transaction() -> None:
    async with greeted() as (peer, bus):
        await bus.send("q", Message(body=b"deferred"))
        async with bus.receiver("q") as receiver:
            [held] = await receiver.receive()
            await receiver.defer(held)
        peer.open_requests("q/$management")
        numbers = {"sequence-numbers": to.longs([held.sequence_number])}
        _, told = await peer.request(
            "receive-by-sequence-number", numbers | {"receiver-settle-mode": to.uint(1)}
        )
        token = told["messages"][0]["lock-token"]
        complete = {
            "disposition-status": to.string("completed"),
            "lock-tokens": to.array(0x98, [token.bytes]),
        }
        later = message(b"later", "l")
        due = to.map_([to.symbol("x-opt-scheduled-enqueue-time"), to.timestamp(FAR_MS)])
        content = to.binary(sections.section(sections.ANNOTATIONS, due) + later)
        schedule = {"messages": to.list_([to.text_map({"message": content})])}
        for fail, states in ((True, {"deferred"}), (False, {"scheduled"})):
            name = await peer.declare(COORDINATOR + fail)
            state = in_transaction(name)
            assert await peer.request("update-disposition", complete, state=state) == (200, None)
            assert await peer.request("schedule-message", schedule, state=state) == (
                200,
                {"sequence-numbers": [0]},
            )
            outcome = await peer.coordinate(COORDINATOR + fail, discharge(name, fail))
            assert outcome.descriptor == say.ACCEPTED
            assert {one.state.removesuffix(" locked") for one in bus.peek("q")} == states
        assert len(bus.peek("q", where=Filter(state="scheduled"))) == 1


@pytest.mark.promise("P11")
@run
async def test_other_requests_are_not() -> None:
    async with greeted() as (peer, bus):
        await bus.send("q", Message(body=b"stays"))
        peer.open_requests("q/$management")
        state = in_transaction(await peer.declare(COORDINATOR))
        delete = {"message-count": to.int_(1), "enqueued-time-utc": to.timestamp(FAR_MS)}
        status, _ = await peer.request("batch-delete-messages", delete, state=state)
        assert status == 400
        unknown = in_transaction(to.binary(b"no such"))
        status, _ = await peer.request(
            "schedule-message", {"messages": to.list_([])}, state=unknown
        )
        assert status == 400
        assert bodies(bus, "q") == [b"stays"]


@pytest.mark.promise("B5")
@pytest.mark.parametrize("what", ["send", "settlement", "request"])
@run
async def test_what_is_refused_takes_its_transaction_with_it(what: str) -> None:
    """Who has settled it already, or has asked on, is told at the discharge."""
    async with greeted() as (peer, bus):
        await bus.create_queue("sessions", requires_session=True)
        await bus.send("q", Message(body=b"stays"))
        for handle, entity in enumerate(("q", "sessions")):
            peer.attach(handle, say.SENDER, entity)
        peer.attach(2, say.RECEIVER, "q", rcv=1)
        peer.flow(2, 1)
        [given] = await peer.hear(say.TRANSFER)
        name = await peer.declare(COORDINATOR)
        state = in_transaction(name)
        peer.say(transfer(0, 1, message(b"never"), state=state))
        if what == "send":
            peer.say(transfer(1, 2, message(b"no session"), state=state, settled=True))
        elif what == "request":
            peer.open_requests("q/$management")
            assert (await peer.request("remove-rule", {}, state=state))[0] == 400
        else:
            fields = [to.boolean(say.RECEIVER), to.uint(given.fields[1]), to.NULL]
            unclear = in_transaction(name, say.performative(say.RELEASED, []))
            peer.say(say.performative(say.DISPOSITION, [*fields, to.boolean(True), unclear]))
        peer.heard()
        outcome = await peer.coordinate(COORDINATOR, discharge(name))
        assert outcome.value[0].value[0] == "amqp:transaction:rollback"
        assert bodies(bus, "q") == [b"stays"]


@pytest.mark.promise("B5")
@run
async def test_a_coordinator_that_goes_takes_its_own_transactions_with_it() -> None:
    """Nothing of them is done, and those of another coordinator go on."""
    async with greeted() as (peer, bus):
        await bus.send("q", Message(body=b"held"))
        peer.attach(0, say.SENDER, "q")
        peer.attach(1, say.RECEIVER, "q", rcv=1)
        peer.flow(1, 1)
        [given] = await peer.hear(say.TRANSFER)
        gone, kept = [await peer.declare(COORDINATOR + at) for at in range(2)]
        for number, (body, name) in enumerate(((b"never", gone), (b"sent", kept))):
            peer.say(transfer(0, number, message(body), state=in_transaction(name)))
        peer.say(completed(given.fields[1], gone))
        assert len(await peer.hear(say.DISPOSITION, 3)) == 3
        peer.say(say.detach(COORDINATOR, None))
        peer.heard()
        late = await peer.coordinate(COORDINATOR + 1, discharge(gone))
        assert late.value[0].value[0] == "amqp:transaction:unknown-id"
        outcome = await peer.coordinate(COORDINATOR + 1, discharge(kept))
        assert outcome.descriptor == say.ACCEPTED
        assert bodies(bus, "q") == [b"held", b"sent"]
