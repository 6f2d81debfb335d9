"""Retry messages and dead-letter them: python examples/how-to/dead_letters_and_retries.py"""

import asyncio
import tempfile

from onibus import Bus, Filter, Message


async def abandon(bus: Bus) -> None:
    """Abandon a message: it is delivered again with a higher delivery count."""
    await bus.create_queue("orders", max_delivery_count=3)
    await bus.send("orders", Message(body=b"broken", message_id="o-1"))
    async with bus.receiver("orders") as receiver:
        (message,) = await receiver.receive()
        await receiver.abandon(message)
        (again,) = await receiver.receive()
        assert again.delivery_count == 1
        await receiver.abandon(again, delay_ms=100, properties={"last error": "customer not found"})
        assert await receiver.receive() == []


async def exceed_the_limit(bus: Bus) -> None:
    """Fail the third and last delivery: the broker dead-letters the message."""
    async with bus.receiver("orders") as receiver:
        (message,) = await receiver.receive(wait_ms=5_000)
        assert message.properties == {"last error": "customer not found"}
        await receiver.abandon(message)

    (dead,) = bus.peek("orders", dead_letters=True)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.delivery_count == 3


async def back_off(bus: Bus) -> None:
    """Delay every redelivery: one second, then two, four, up to a minute."""
    await bus.change_queue("orders", retry_backoff_ms=1_000, retry_backoff_ms_max=60_000)


async def dead_letter(bus: Bus) -> None:
    """Dead-letter a message that no retry can process."""
    await bus.send("orders", Message(body=b"dated 2126", message_id="o-2"))
    async with bus.receiver("orders") as receiver:
        (message,) = await receiver.receive()
        await receiver.dead_letter(message, reason="BadDate", description="2126 is in the future")


async def receive_dead_letters(bus: Bus) -> None:
    """Receive the first dead-lettered message and complete it."""
    async with bus.receiver("orders", dead_letters=True) as receiver:
        (dead,) = await receiver.receive()
        print(dead.message_id, dead.dead_letter_reason, dead.dead_letter_description)
        await receiver.complete(dead)


async def resubmit(bus: Bus) -> None:
    """Move all dead-lettered messages back to the queue."""
    done = await bus.resubmit("orders", where=Filter())
    assert len(done.moved) == 1
    assert bus.queue("orders").dead_lettered_count == 0
    assert bus.queue("orders").active_count == 1


async def delete_dead_letters(bus: Bus) -> None:
    """Delete all dead-lettered messages."""
    await bus.purge("orders", Filter(state="dead-lettered"))


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await abandon(bus)
            await exceed_the_limit(bus)
            await back_off(bus)
            await dead_letter(bus)
            await receive_dead_letters(bus)
            await resubmit(bus)
            await delete_dead_letters(bus)


if __name__ == "__main__":
    asyncio.run(main())
