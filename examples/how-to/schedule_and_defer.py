"""Schedule and defer messages: python examples/how-to/schedule_and_defer.py"""

import asyncio
import tempfile
import time

from onibus import Bus, Filter, Message, errors


def in_ms(delay_ms: int) -> int:
    """Return a time from now, in milliseconds since 1970 in UTC."""
    return time.time_ns() // 1_000_000 + delay_ms


async def schedule_and_cancel(bus: Bus) -> None:
    """Schedule a message for tomorrow, then cancel it."""
    tomorrow = in_ms(86_400_000)
    number = await bus.schedule("reminders", Message(body=b"water the plants"), tomorrow)
    await bus.cancel_scheduled("reminders", [number])
    try:
        await bus.cancel_scheduled("reminders", [number])
    except errors.MessageNotFound as error:
        print("rejected:", error)


async def receive_scheduled(bus: Bus) -> None:
    """Schedule a message and receive it when it is due."""
    number = await bus.schedule("reminders", Message(body=b"tea is ready"), in_ms(200))
    async with bus.receiver("reminders") as receiver:
        assert await receiver.receive() == []
        (message,) = await receiver.receive(wait_ms=5_000)
        assert message.sequence_number != number
        await receiver.complete(message)


async def defer(bus: Bus) -> int:
    """Defer a message, receive it by its sequence number, and return that number."""
    await bus.send("reminders", Message(body=b"needs an address", message_id="letter"))
    async with bus.receiver("reminders") as receiver:
        (message,) = await receiver.receive()
        await receiver.defer(message)
        number = message.sequence_number

        assert await receiver.receive() == []
        (again,) = await receiver.receive_deferred([number])
        assert again.body == b"needs an address"
        await receiver.abandon(again)
    return number


async def find_deferred(bus: Bus, number: int) -> None:
    """Find a deferred message by its id."""
    (found,) = bus.peek("reminders", where=Filter(state="deferred", message_id="letter"))
    assert found.sequence_number == number


async def reactivate(bus: Bus, number: int) -> None:
    """Reactivate a deferred message, then defer it for 100 milliseconds."""
    await bus.undefer("reminders", [number])
    async with bus.receiver("reminders") as receiver:
        (message,) = await receiver.receive()
        await receiver.defer(message, delay_ms=100)
        (message,) = await receiver.receive(wait_ms=5_000)
        await receiver.complete(message)


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await bus.create_queue("reminders")
            await schedule_and_cancel(bus)
            await receive_scheduled(bus)
            number = await defer(bus)
            await find_deferred(bus, number)
            await reactivate(bus, number)


if __name__ == "__main__":
    asyncio.run(main())
