"""Use a server from a Python program: python examples/how-to/client.py [CONNECTION]"""

import asyncio
import sys

from onibus import Bus, Message
from onibus.client import AsyncClient, Client


def use_a_server(connection: str) -> None:
    """Send a message to a queue, then receive and complete it."""
    with Client.connect(connection) as client:
        client.send("orders", Message(body=b"3 apples"))
        with client.receiver("orders") as receiver:
            for message in receiver.receive(10, wait_ms=1_000):
                print(message.body)
                receiver.complete(message)


async def use_a_bus() -> None:
    """Run the same calls against a bus in this process."""
    async with Bus.ephemeral() as bus, AsyncClient.on(bus) as client:
        await client.create_queue("orders", requires_duplicate_detection=True)
        first = await client.send("orders", Message(body=b"apples", message_id="1"))
        retry = await client.send("orders", Message(body=b"apples", message_id="1"))
        assert retry.duplicate_of == first.sequence_number
        async with client.receiver("orders") as receiver:
            async for message in receiver:
                await receiver.complete(message)
                break


async def move_the_clock() -> None:
    """Let a message expire without waiting, then delete all entities."""
    async with Bus.ephemeral() as bus, AsyncClient.on(bus) as client:
        await client.create_queue("orders")
        await client.send("orders", Message(body=b"apples", time_to_live_ms=60_000))
        await client.advance(60_000)
        assert (await client.queue("orders")).active_count == 0
        await client.reset()
        assert await client.queues() == []


async def main() -> None:
    """Run the parts that need no server."""
    await use_a_bus()
    await move_the_clock()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        use_a_server(sys.argv[1])
    else:
        asyncio.run(main())
