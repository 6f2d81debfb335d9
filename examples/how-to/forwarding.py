"""Forward messages to another queue: python examples/how-to/forwarding.py"""

import asyncio
import tempfile

from onibus import Bus, Message, errors


async def forward(bus: Bus) -> None:
    """Send to a queue that forwards, and receive from its destination."""
    await bus.create_queue("orders")
    await bus.create_queue("shop-1", forward_to="orders")
    await bus.create_queue("shop-2", forward_to="orders")
    await bus.send("shop-1", Message(body=b"3 apples", message_id="o-1"))

    async with bus.receiver("orders") as receiver:
        (order,) = await receiver.receive(wait_ms=5_000)
        assert order.message_id == "o-1"
        assert order.message.hop_count == 1
        assert order.message.enqueued_sequence_number == 1
        await receiver.complete(order)


async def disable_the_destination(bus: Bus) -> None:
    """Keep messages at the source while the destination accepts no sends."""
    await bus.change_queue("orders", status="send-disabled")
    await bus.send("shop-2", Message(body=b"2 pears"))
    assert bus.queue("shop-2").active_count == 1

    await bus.change_queue("orders", status="active")
    async with bus.receiver("orders") as receiver:
        (order,) = await receiver.receive(wait_ms=5_000)
        await receiver.complete(order)


async def forward_dead_letters(bus: Bus) -> None:
    """Collect dead-lettered messages in one queue."""
    await bus.create_queue("failed")
    await bus.change_queue("orders", forward_dead_letters_to="failed")
    await bus.send("orders", Message(body=b"no customer"))
    async with bus.receiver("orders") as receiver:
        (order,) = await receiver.receive()
        await receiver.dead_letter(order, reason="NoCustomer", description="id 7 not found")

    async with bus.receiver("failed") as receiver:
        (dead,) = await receiver.receive(wait_ms=5_000)
        assert dead.properties["DeadLetterReason"] == "NoCustomer"
        assert dead.properties["DeadLetterErrorDescription"] == "id 7 not found"
        await receiver.complete(dead)


async def try_a_cycle(bus: Bus) -> None:
    """Forward in a circle: rejected."""
    try:
        await bus.change_queue("orders", forward_to="shop-1")
    except errors.InvalidOperation as error:
        print("rejected:", error)


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await forward(bus)
            await disable_the_destination(bus)
            await forward_dead_letters(bus)
            await try_a_cycle(bus)


if __name__ == "__main__":
    asyncio.run(main())
