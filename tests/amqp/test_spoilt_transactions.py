"""A transaction of which something was not taken is not done without it (B5)."""

from __future__ import annotations

import pytest

from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.errors import MESSAGE_SIZE_EXCEEDED, UNAUTHORIZED
from onibus.protocols.amqp.frames import frame
from onibus.protocols.amqp.service_bus.transactions import ROLLBACK
from tests.amqp.peer import greeted
from tests.amqp.raw_client import attach, message, transfer
from tests.amqp.test_bursts import bodies
from tests.bus_helpers import run

_COORDINATOR = 5


def _state(name: bytes) -> bytes:
    return say.performative(say.TRANSACTIONAL, [name, to.NULL])


def _discharge(name: bytes) -> bytes:
    return say.performative(say.DISCHARGE, [name, to.boolean(False)])


@pytest.mark.promise("B5")
@pytest.mark.parametrize("settled", [False, True])
@run
async def test_one_that_is_too_large_spoils_its_transaction(settled: bool) -> None:
    async with greeted(max_message_bytes=2_000) as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        name = await peer.declare(_COORDINATOR)
        for number, size in enumerate((10, 3_000), 10):
            sent = transfer(0, number, message(b"x" * size), state=_state(name), settled=settled)
            peer.feed(frame(0, sent))
        if not settled:
            told = (await peer.hear(say.DISPOSITION, 2))[1].fields[4]
            assert told.value[0].value[0] == MESSAGE_SIZE_EXCEEDED
        told = await peer.coordinate(_COORDINATOR, _discharge(name))
        assert told.descriptor == say.REJECTED
        assert bodies(bus) == []


@pytest.mark.promise("B5")
@run
async def test_one_of_which_the_rest_does_not_come_spoils_its_transaction() -> None:
    async with greeted() as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        name = await peer.declare(_COORDINATOR)
        peer.say(transfer(0, 10, message(b"a"), state=_state(name), settled=True))
        peer.say(transfer(0, 11, b"half a ", state=_state(name), settled=True, more=True))
        peer.connection.sessions[0].links[0].detach(UNAUTHORIZED, "no more")
        peer.say(transfer(0, 11, b"message"))
        told = await peer.coordinate(_COORDINATOR, _discharge(name))
        assert told.descriptor == say.REJECTED
        assert bodies(bus) == []


@pytest.mark.promise("B5")
@pytest.mark.parametrize("ended", ["link", "session"])
@run
async def test_what_comes_when_its_link_was_ended_spoils_its_transaction(ended: str) -> None:
    async with greeted() as (peer, bus):
        peer.begin(1)
        peer.say(attach(0, say.SENDER, "me", "q"), channel=1)
        peer.heard()
        name = await peer.declare(_COORDINATOR)
        peer.say(transfer(0, 10, message(b"a"), state=_state(name), settled=True), channel=1)
        session = peer.connection.sessions[1]
        (session.links[0].detach if ended == "link" else session.end)(UNAUTHORIZED, "no more")
        # The client does not know yet, and sends on.
        peer.say(transfer(0, 11, message(b"b"), state=_state(name), settled=True), channel=1)
        told = await peer.coordinate(_COORDINATOR, _discharge(name))
        assert told.descriptor == say.REJECTED
        assert told.value[0].value[0] == ROLLBACK
        assert bodies(bus) == []
