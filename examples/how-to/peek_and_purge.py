"""Peek at messages and purge a queue: python examples/how-to/peek_and_purge.py"""

import asyncio
import tempfile
import time
from collections.abc import Iterator

from onibus import Bus, Filter, Message, ReceivedMessage


async def count(bus: Bus) -> None:
    """Create a queue with forty messages and show its counts."""
    await bus.create_queue("orders", enable_partitioning=True)
    for number in range(40):
        await bus.send("orders", Message(body=b"order %d" % number, message_id=f"o-{number}"))

    info = bus.queue("orders")
    assert (info.active_count, info.deferred_count, info.dead_lettered_count) == (40, 0, 0)
    print(info.availability, info.held_count, info.size_bytes)


def peek_all(bus: Bus, queue: str, where: Filter | None = None) -> Iterator[ReceivedMessage]:
    """Yield every message of a queue that matches a filter."""
    start = 0
    while found := bus.peek(queue, start=start, where=where):
        yield from found
        start = found[-1].sequence_number + 1


def peek_with_filters(bus: Bus) -> None:
    """Select messages by body, id, time and SQL expression."""
    assert len(list(peek_all(bus, "orders"))) == 40

    (found,) = peek_all(bus, "orders", Filter(body_contains=b"order 17"))
    assert found.message_id == "o-17"
    (found,) = peek_all(bus, "orders", Filter(message_id="o-3"))
    assert found.body == b"order 3"

    now_ms = time.time_ns() // 1_000_000
    recent = Filter(state="active", enqueued_from_ms=now_ms - 60_000)
    assert len(list(peek_all(bus, "orders", recent))) == 40

    thirties = Filter(sql="sys.MessageId LIKE 'o-3_'")
    assert len(list(peek_all(bus, "orders", thirties))) == 10
    urgent = Filter(sql="priority > @p", sql_parameters={"p": 5})
    assert not list(peek_all(bus, "orders", urgent))


async def purge(bus: Bus) -> None:
    """Delete the messages that match a filter, then all others that are not locked."""
    assert await bus.purge("orders", Filter(body_contains=b"order 1")) == 11
    async with bus.receiver("orders") as receiver:
        (locked,) = await receiver.receive()
        assert await bus.purge("orders") == 28
        await receiver.complete(locked)


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await count(bus)
            peek_with_filters(bus)
            await purge(bus)


if __name__ == "__main__":
    asyncio.run(main())
