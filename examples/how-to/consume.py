"""Receive and process messages, and stop cleanly: python examples/how-to/consume.py"""

import asyncio
import tempfile

from onibus import Bus, Message, ReceivedMessage, errors
from onibus.receiver import Receiver


async def receive_one_by_one(bus: Bus) -> None:
    """Complete five messages, one after the other."""
    async with bus.receiver("orders") as receiver:
        async for message in receiver:
            print("processing", message.body)
            await receiver.complete(message)
            if bus.queue("orders").active_count == 15:
                break


async def receive_several(bus: Bus) -> None:
    """Receive up to five messages and complete them atomically."""
    async with bus.receiver("orders") as receiver:
        messages = await receiver.receive(5, wait_ms=1_000)
        await receiver.complete(messages)
        assert len(messages) == 5


async def ship(message: ReceivedMessage) -> None:
    """Stand for your own work: order 12 fails on its first delivery."""
    if message.body == b"order 12" and message.delivery_count == 0:
        raise ValueError("no address")


async def abandon_on_error(bus: Bus) -> None:
    """Complete each message, or abandon it with the error as a property."""
    async with bus.receiver("orders") as receiver:
        for message in await receiver.receive(3):
            try:
                await ship(message)
            except ValueError as error:
                await receiver.abandon(message, properties={"last error": str(error)})
            else:
                await receiver.complete(message)
    assert bus.queue("orders").active_count == 8


async def renew_regularly(receiver: Receiver, message: ReceivedMessage) -> None:
    """Renew a message's lock every ten seconds, until this task is cancelled."""
    while True:
        await asyncio.sleep(10)
        await receiver.renew(message)


async def work_for_long(bus: Bus) -> None:
    """Renew the lock in a task while the work runs."""
    async with bus.receiver("orders") as receiver:
        (message,) = await receiver.receive(wait_ms=1_000)
        renewing = asyncio.create_task(renew_regularly(receiver, message))
        try:
            await ship(message)
        finally:
            renewing.cancel()
        await receiver.complete(message)


async def receive_and_delete(bus: Bus) -> None:
    """Receive a message without a lock."""
    async with bus.receiver("orders", delete=True) as receiver:
        (message,) = await receiver.receive(wait_ms=1_000)
        assert message.token is None
    assert bus.queue("orders").active_count == 6


async def worker(bus: Bus, name: str, stopping: asyncio.Event) -> None:
    """Process messages until the event is set; finish the message in progress."""
    async with bus.receiver("orders") as receiver:
        while not stopping.is_set():
            for message in await receiver.receive(wait_ms=200):
                try:
                    await ship(message)
                except ValueError:
                    await receiver.abandon(message, delay_ms=1_000)
                else:
                    await receiver.complete(message)
                    print(name, "shipped", message.body)


async def run_workers(bus: Bus) -> None:
    """Run three workers until the queue is empty, then stop them."""
    stopping = asyncio.Event()
    workers = [asyncio.create_task(worker(bus, f"worker {n}", stopping)) for n in range(3)]
    while bus.queue("orders").active_count:
        await asyncio.sleep(0.05)
    stopping.set()
    await asyncio.gather(*workers)


async def receive_after_close(bus: Bus) -> None:
    """Show the error of a receive on a closed bus."""
    receiver = bus.receiver("orders")
    await bus.close()
    try:
        await receiver.receive(wait_ms=1_000)
    except errors.BusClosed as error:
        print("rejected:", error)


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await bus.create_queue("orders", lock_duration_ms=30_000)
            orders = [Message(body=b"order %d" % number) for number in range(20)]
            await bus.send_batch("orders", orders)
            await receive_one_by_one(bus)
            await receive_several(bus)
            await abandon_on_error(bus)
            await work_for_long(bus)
            await receive_and_delete(bus)
            await run_workers(bus)
            await receive_after_close(bus)


if __name__ == "__main__":
    asyncio.run(main())
