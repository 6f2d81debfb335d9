"""What one client can make the server hold, and what it is told when that is enough."""

from __future__ import annotations

from onibus.protocols.amqp import performatives as say
from tests.amqp.peer import greeted
from tests.amqp.raw_client import message, transfer
from tests.bus_helpers import run


@run
async def test_a_refused_send_holds_nothing() -> None:
    async with greeted(requires_session=True) as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.say(transfer(0, 1, message(b"x" * 1_000)))
        peer.say(transfer(0, 3, b"no message at all"))
        await bus.change_queue("q", status="send-disabled")
        peer.say(transfer(0, 5, message(b"x" * 1_000)))
        refused = await peer.hear(say.DISPOSITION, 3)
        assert {one.fields[4].descriptor for one in refused} == {say.REJECTED}
        assert peer.connection.held_bytes == 0
