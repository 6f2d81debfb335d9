"""Send and settle messages in one transaction: python examples/how-to/transactions.py"""

import asyncio
import tempfile

from onibus import Bus, Message, errors


async def receive_and_send(bus: Bus) -> None:
    """Complete an order and send its invoice atomically."""
    await bus.create_queue("orders", requires_duplicate_detection=True)
    await bus.create_queue("invoices")
    await bus.send("orders", Message(body=b"3 apples", message_id="o-1"))

    receiver = bus.receiver("orders")
    (order,) = await receiver.receive()
    async with bus.transaction() as tx:
        await tx.send("invoices", Message(body=b"3 apples, 6 crowns"))
        await tx.complete(receiver, order)

    assert bus.queue("orders").active_count == 0
    assert bus.queue("invoices").active_count == 1


async def roll_back(bus: Bus) -> None:
    """Raise an error inside the transaction: nothing is sent, the order stays locked."""
    await bus.send("orders", Message(body=b"2 pears", message_id="o-2"))
    receiver = bus.receiver("orders")
    (order,) = await receiver.receive()
    try:
        async with bus.transaction() as tx:
            await tx.send("invoices", Message(body=b"2 pears, ? crowns"))
            await tx.complete(receiver, order)
            raise LookupError("no price for pears")
    except LookupError:
        await receiver.abandon(order)

    assert bus.queue("orders").active_count == 1
    assert bus.queue("invoices").active_count == 1


async def commit_explicitly(bus: Bus) -> None:
    """Send in a transaction without a block: the message is visible after the commit."""
    tx = bus.transaction()
    await tx.send("orders", Message(body=b"4 plums", message_id="o-3"))
    assert bus.queue("orders").active_count == 1
    (sent,) = await tx.commit()
    assert bus.queue("orders").active_count == 2
    print("sequence number of the plums:", sent.sequence_number)


async def exceed_the_quota(bus: Bus) -> None:
    """Send 101 messages in one transaction: rejected."""
    try:
        async with bus.transaction() as tx:
            await tx.send_batch("invoices", [Message()] * 101)
    except errors.QuotaExceeded as error:
        print("rejected:", error)


async def use_partitions(bus: Bus) -> None:
    """Send to one partition of a queue; a second partition is rejected."""
    await bus.create_queue("parcels", enable_partitioning=True)
    async with bus.transaction() as tx:
        await tx.send("parcels", Message(body=b"box", partition_key="customer 5"))
        await tx.send("parcels", Message(body=b"bag", partition_key="customer 5"))

    tx = bus.transaction()
    await tx.send("parcels", Message(body=b"box", partition_key="customer 5"))
    try:
        await tx.send("parcels", Message(body=b"bag", partition_key="customer 6"))
    except errors.InvalidOperation:
        await tx.rollback()
    assert bus.queue("parcels").active_count == 2


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await receive_and_send(bus)
            await roll_back(bus)
            await commit_explicitly(bus)
            await exceed_the_quota(bus)
            await use_partitions(bus)


if __name__ == "__main__":
    asyncio.run(main())
