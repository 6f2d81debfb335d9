"""What receives from an entity: AMQP links, waiting receives and locks."""

from __future__ import annotations

import asyncio

from azure.servicebus.aio import ServiceBusClient

from onibus import Bus, Message
from onibus.server.server import Server
from tests.bus_helpers import run
from tests.client.server_helpers import development_string
from tests.server.http_helpers import Client


@run
async def test_links_waits_and_locks_are_listed() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("orders")
    await bus.create_queue("bills", requires_session=True)
    await bus.send_batch("orders", [Message(body=b"x")] * 5)
    await bus.send("bills", Message(body=b"x", session_id="anna"))
    async with Server(bus, None, http_port=0, amqp_port=0) as server:
        client = Client(server.http_port)
        path = "/entities/orders/receivers"
        assert (await client.do("GET", path))["link_count"] == 0
        assert server.amqp_port is not None
        async with (
            ServiceBusClient.from_connection_string(development_string(server.amqp_port)) as sdk,
            sdk.get_queue_receiver("orders") as receiver,
            sdk.get_queue_receiver("bills", session_id="anna") as session,
        ):
            await receiver.receive_messages(2, max_wait_time=60)
            await session.receive_messages(1, max_wait_time=60)
            found = await client.do("GET", path)
            (link,) = found["links"]
            assert link["address"] == "127.0.0.1"
            assert link["container"]
            assert link["delivered"] == 2
            assert not link["dead_letters"]
            (lock,) = found["locks"]
            assert lock["count"] == 2
            assert lock["until_ms"] - lock["received_ms"] == 60_000
            found = await client.do("GET", "/entities/bills/receivers")
            assert found["links"][0]["session_id"] == "anna"
            assert found["locks"] == [{"count": 1, "partition": 0, "session_id": "anna"}]
            async with bus.receiver("orders") as own:
                await own.receive(3)
                waiting = asyncio.create_task(own.receive(1, wait_ms=60_000))
                while not (found := await client.do("GET", path))["waiting"]:
                    await asyncio.sleep(0)
                assert (found["lock_count"], found["locks"][0]["count"]) == (2, 3)
                waiting.cancel()
        await client.close()
