"""The official client over a link that answers late, fails and breaks: it repeats what failed.

A send that is repeated after a lost response is a duplicate, so a queue with duplicate detection
stores it once. A message whose settlement was lost may be delivered again, and no message is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from onibus import Bus
from onibus.gateway.broker import Broker
from onibus.security.keys import Keyring
from onibus.server.server import Server
from tests.amqp.sdk.world import WAIT_S
from tests.bus_helpers import run
from tests.client.server_helpers import development_string
from tests.unsure_link import LateShard, UnsureShard

#: Messages that the test sends.
COUNT = 40


@pytest.fixture(autouse=True)
def _unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "shard_type", UnsureShard)
    for kind, name in ((LateShard, "given"), (UnsureShard, "commands")):
        monkeypatch.setattr(kind, name, 0)
    for name in ("failures", "breaks"):
        monkeypatch.setattr(UnsureShard, name, 0)


async def until_done(step: Callable[[], Awaitable[object]]) -> None:
    """Repeat a request until the client reports success, or that it had succeeded before."""
    while True:
        try:
            await step()
        except MessageLockLostError:
            return
        except ServiceBusError:
            continue
        return


@pytest.mark.promise("D1")
@run
async def test_no_message_is_lost_or_stored_twice(tmp_path: Path) -> None:
    keys, seen = Keyring(development=True), Counter[str]()
    async with (
        Bus.open(tmp_path) as bus,
        Server(bus, keys, http_port=0, amqp_port=0) as server,
    ):
        await bus.create_queue("q", requires_duplicate_detection=True)
        assert server.amqp_port is not None
        text = development_string(server.amqp_port)
        async with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
            async with client.get_queue_sender("q") as sender:
                for n in range(COUNT):
                    sent = ServiceBusMessage(f"{n}", message_id=f"{n}")
                    await until_done(partial(sender.send_messages, sent))
            assert bus.queue("q").active_count == COUNT
            async with client.get_queue_receiver("q") as receiver:
                batch: list[ServiceBusReceivedMessage] = []

                async def receive() -> None:
                    batch[:] = await receiver.receive_messages(5, max_wait_time=WAIT_S)

                while sum(seen.values()) < COUNT:
                    await until_done(receive)
                    for one in batch:
                        seen[str(one)] += 1
                        await until_done(partial(receiver.complete_message, one))
        info = bus.queue("q")
        assert (info.active_count, info.held_count) == (0, 0)
    assert seen == {f"{n}": 1 for n in range(COUNT)}
    assert UnsureShard.failures > 5
    assert UnsureShard.breaks > 5
