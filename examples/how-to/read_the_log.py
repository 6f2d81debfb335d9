"""Read the log of a queue, and replay it: python examples/how-to/read_the_log.py"""

import asyncio
import tempfile

import pyarrow as pa

from onibus import Bus, Filter, Message, errors

DAY_MS = 86_400_000


async def send_and_settle(bus: Bus) -> None:
    """Send five orders; complete four of them and dead-letter one."""
    await bus.create_queue("orders", retention_ms=7 * DAY_MS)
    for n in range(5):
        await bus.send("orders", Message(body=b"an order", subject="fruit" if n < 3 else "tea"))
    async with bus.receiver("orders") as receiver:
        *good, bad = await receiver.receive(5)
        await receiver.complete(good)
        await receiver.dead_letter(bad, reason="NoCustomer")


async def read_messages(bus: Bus) -> None:
    """Read all messages of the queue, completed or not."""
    positions = bus.log_positions("orders")
    start, end = positions.earliest[0], positions.latest[0]
    assert start is not None, "the partition is offline"
    batches = [batch async for batch in bus.read_log("orders", 0, start, end)]
    frame = pa.Table.from_batches(batches).to_pandas()
    print(frame[["sequence_number", "enqueued_time_ms", "subject", "body"]])
    assert list(frame["sequence_number"]) == [1, 2, 3, 4, 5]


async def read_outcomes(bus: Bus) -> None:
    """Read how each message ended."""
    batches = [batch async for batch in bus.read_outcomes("orders", 0, 1)]
    frame = pa.Table.from_batches(batches).to_pandas()
    print(frame[["number", "sequence_number", "outcome", "reason"]])
    assert list(frame["outcome"]) == ["completed"] * 4 + ["dead-lettered"]
    assert frame["reason"].iloc[-1] == "NoCustomer"


async def read_with_a_name(bus: Bus) -> None:
    """Read with a named reader, and save its position after each batch."""
    reader = await bus.create_reader("orders", "report")
    rows = 0
    async for batch in bus.read_log("orders", 0, reader.positions[0], reader="report"):
        rows += batch.num_rows
        following = batch.column("sequence_number")[-1].as_py() + 1
        await bus.move_reader("orders", "report", [following], reader.incarnation)
    assert rows == 5

    await bus.send("orders", Message(body=b"a late order"))
    (reader,) = bus.readers("orders")
    assert reader.positions == (6,)
    assert reader.lag == (1,)
    await bus.delete_reader("orders", "report")


async def replay(bus: Bus) -> None:
    """Send the orders for tea to another queue, from the log."""
    await bus.create_queue("second-try")
    tea = Filter(sql="sys.Subject = 'tea'")
    assert await bus.replay("orders", 0, 1, where=tea, to="second-try") == 2
    assert [one.message.enqueued_sequence_number for one in bus.peek("second-try")] == [4, 5]


async def detect_a_new_queue(bus: Bus) -> None:
    """Read with the incarnation of a queue that was deleted and recreated."""
    positions = bus.log_positions("orders")
    await bus.delete_queue("orders")
    await bus.create_queue("orders", retention_ms=7 * DAY_MS)
    try:
        bus.read_log("orders", 0, 1, incarnation=positions.incarnation)
    except errors.EntityReplaced as error:
        print("rejected:", error)


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await send_and_settle(bus)
            await read_messages(bus)
            await read_outcomes(bus)
            await read_with_a_name(bus)
            await replay(bus)
            await detect_a_new_queue(bus)


if __name__ == "__main__":
    asyncio.run(main())
