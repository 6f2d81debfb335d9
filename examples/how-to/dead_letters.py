"""Resubmit dead-lettered messages: python examples/how-to/dead_letters.py"""

import asyncio
import tempfile

from onibus import Bus, Filter, Message


async def fail_four_orders(bus: Bus) -> None:
    """Send four orders and dead-letter them all."""
    await bus.create_queue("orders", requires_duplicate_detection=True)
    for n in range(1, 5):
        await bus.send("orders", Message(body=b"an order", message_id=f"o-{n}", subject="fruit"))
    async with bus.receiver("orders") as receiver:
        for order in await receiver.receive(4):
            await receiver.dead_letter(order, reason="NoCustomer")


async def resubmit_one(bus: Bus) -> None:
    """Resubmit sequence number 1, and look at the new message."""
    done = await bus.resubmit("orders", [1])
    assert list(done.moved) == [1]
    assert bus.queue("orders").dead_lettered_count == 3

    (again,) = bus.peek("orders")
    assert again.sequence_number == done.moved[1]
    assert again.message_id == "o-1/resubmitted/1"
    assert again.message.enqueued_sequence_number == 1


async def preview(bus: Bus) -> None:
    """List the messages that a resubmission would move."""
    fruit = Filter(sql="sys.Subject = 'fruit'")
    plan = await bus.resubmit("orders", where=fruit, dry_run=True)
    assert plan.moved == {2: None, 3: None, 4: None}
    assert bus.queue("orders").dead_lettered_count == 3


async def resubmit_by_filter(bus: Bus) -> None:
    """Resubmit the messages that match a filter."""
    done = await bus.resubmit("orders", where=Filter(message_id="o-2"))
    assert list(done.moved) == [2]


async def resubmit_elsewhere(bus: Bus) -> None:
    """Move two messages to a queue that people work through."""
    await bus.create_queue("manual")
    await bus.resubmit("orders", [3, 4], to="manual")
    assert [message.message_id for message in bus.peek("manual")] == ["o-3", "o-4"]
    assert bus.queue("orders").dead_lettered_count == 0


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await fail_four_orders(bus)
            await resubmit_one(bus)
            await preview(bus)
            await resubmit_by_filter(bus)
            await resubmit_elsewhere(bus)


if __name__ == "__main__":
    asyncio.run(main())
