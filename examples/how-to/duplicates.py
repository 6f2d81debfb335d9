"""Drop duplicate messages: python examples/how-to/duplicates.py"""

import asyncio
import tempfile

from onibus import Bus, Message, errors

DAY_MS = 24 * 60 * 60 * 1000


async def send_twice(bus: Bus) -> None:
    """Send a message, and retry the send with the same id."""
    await bus.create_queue("orders", requires_duplicate_detection=True)

    order = Message(body=b"3 apples", message_id="order-12345/payment")
    first = await bus.send("orders", order)
    retry = await bus.send("orders", order)

    assert first.duplicate_of is None
    assert retry.duplicate_of == first.sequence_number
    assert bus.queue("orders").active_count == 1


async def choose_window(bus: Bus) -> None:
    """Record ids for a day; five seconds are fewer than the broker accepts."""
    await bus.change_queue("orders", duplicate_detection_window_ms=DAY_MS)
    try:
        await bus.change_queue("orders", duplicate_detection_window_ms=5_000)
    except errors.InvalidArgument as error:
        print("rejected:", error)


async def use_partitions(bus: Bus) -> None:
    """Send one id under two partition keys, then retry with one of the keys."""
    await bus.create_queue("parcels", requires_duplicate_detection=True, enable_partitioning=True)
    await bus.send("parcels", Message(message_id="7", partition_key="north"))
    await bus.send("parcels", Message(message_id="7", partition_key="south"))
    retry = await bus.send("parcels", Message(message_id="7", partition_key="north"))

    assert retry.duplicate_of is not None
    assert bus.queue("parcels").active_count == 2


async def list_duplicates(bus: Bus) -> None:
    """Print every duplicate that the broker dropped."""
    assert bus.queue("orders").duplicates_dropped == 1
    for message_id, time_ms, number in bus.duplicates("orders"):
        print(f"{message_id} at {time_ms}: duplicate of sequence number {number}")


async def send_a_batch(bus: Bus) -> None:
    """Send one id twice in a batch: the second message is the duplicate."""
    sent = await bus.send_batch("orders", [Message(message_id="a"), Message(message_id="a")])
    assert sent[1].duplicate_of == sent[0].sequence_number


async def forget_ids(bus: Bus) -> None:
    """Delete the messages and the recorded ids: the first id is accepted again."""
    await bus.purge("orders", forget_ids=True)
    sent = await bus.send("orders", Message(message_id="order-12345/payment"))
    assert sent.duplicate_of is None


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await send_twice(bus)
            await choose_window(bus)
            await use_partitions(bus)
            await list_duplicates(bus)
            await send_a_batch(bus)
            await forget_ids(bus)


if __name__ == "__main__":
    asyncio.run(main())
