"""Send thousands of messages in one Arrow table: python examples/how-to/bulk.py"""

import asyncio
import tempfile

import msgspec
import pyarrow as pa

from onibus import Bus, errors

COUNT = 1_000
ORDERS = pa.table(
    {
        "message_id": [f"o-{n}" for n in range(COUNT)],
        "subject": ["fruit"] * COUNT,
        "body": [f"order {n}".encode() for n in range(COUNT)],
    }
)


async def send_a_table(bus: Bus) -> None:
    """Store all rows in one call; send ten of them again, as a retry would."""
    await bus.create_queue("orders", requires_duplicate_detection=True)
    sent = await bus.send_arrow("orders", ORDERS)
    assert (sent.accepted, sent.duplicates) == (1_000, 0)
    assert sent.sequence_number[0].as_py() == 1

    retried = await bus.send_arrow("orders", ORDERS.slice(990, 10))
    assert (retried.accepted, retried.duplicates) == (0, 10)
    assert retried.duplicate_of.to_pylist() == list(range(991, 1_001))


async def send_slices(bus: Bus) -> None:
    """Send a table of any length, at most 10,000 rows per call."""
    for batch in ORDERS.to_batches(max_chunksize=10_000):
        await bus.send_arrow("orders", batch)


async def send_properties(bus: Bus) -> None:
    """Send application properties, one MessagePack map per row."""
    properties = [msgspec.msgpack.encode({"kind": "apple", "count": n}) for n in range(3)]
    table = pa.table({"message_id": ["a", "b", "c"], "properties": properties})
    await bus.send_arrow("orders", table)
    assert bus.peek("orders", start=1_001)[-1].properties == {"kind": "apple", "count": 2}


async def find_a_bad_row(bus: Bus) -> None:
    """Send a table whose second row has an empty id: the broker stores no row."""
    table = pa.table({"body": [b"x", b"y"], "message_id": ["d", ""]})
    try:
        await bus.send_arrow("orders", table)
    except errors.InvalidArgument as error:
        print("rejected:", error)  # the message starts with "row 1:"


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await send_a_table(bus)
            await send_slices(bus)
            await send_properties(bus)
            await find_a_bad_row(bus)


if __name__ == "__main__":
    asyncio.run(main())
