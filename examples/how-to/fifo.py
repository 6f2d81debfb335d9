"""Use a queue as an SQS FIFO queue: python examples/how-to/fifo.py"""

import asyncio
import tempfile

from onibus import Bus, Message, errors


async def send(bus: Bus) -> None:
    """Send two messages for each of two groups."""
    await bus.create_queue("orders.fifo", fifo=True, lock_duration_ms=30_000)
    for number in ("1", "2"):
        for customer in ("anna", "ben"):
            message = Message(
                body=number.encode(), session_id=customer, message_id=f"{customer}-{number}"
            )
            await bus.send("orders.fifo", message)


async def receive(bus: Bus) -> None:
    """Receive both groups; complete one of them and release a message of the other."""
    receiver = bus.fifo_receiver("orders.fifo")
    anna = await receiver.receive(2)
    assert [message.session_id for message in anna] == ["anna", "anna"]

    (ben,) = await receiver.receive(1)
    assert await receiver.receive(10) == []  # both groups have messages in flight

    await receiver.complete(*anna)
    await receiver.change_visibility(ben, 0)
    (again,) = await receiver.receive(1)
    assert again.sequence_number == ben.sequence_number
    await receiver.complete(again)


async def repeat_a_receive(bus: Bus) -> None:
    """Repeat a receive whose response was lost: it returns the same messages."""
    receiver = bus.fifo_receiver("orders.fifo")
    received = await receiver.receive(1, attempt_id="attempt 1")
    repeated = await receiver.receive(1, attempt_id="attempt 1")
    assert [message.token for message in repeated] == [message.token for message in received]
    await receiver.complete(*repeated)


async def deduplicate_content(bus: Bus) -> None:
    """Send without an id: rejected, unless the queue derives the id from the body."""
    try:
        await bus.send("orders.fifo", Message(body=b"3", session_id="anna"))
    except errors.InvalidOperation as error:
        print("rejected:", error)

    await bus.create_queue("prints.fifo", fifo=True, content_based_deduplication=True)
    await bus.send("prints.fifo", Message(body=b"page 1", session_id="printer"))
    second = await bus.send("prints.fifo", Message(body=b"page 1", session_id="printer"))
    assert second.duplicate_of is not None


async def match_content_under_any_id(bus: Bus) -> None:
    """Drop equal content even if the ids differ."""
    await bus.create_queue(
        "strict.fifo", fifo=True, content_based_deduplication=True, content_matches_any_id=True
    )
    await bus.send("strict.fifo", Message(body=b"page 1", session_id="p", message_id="a"))
    second = await bus.send("strict.fifo", Message(body=b"page 1", session_id="p", message_id="b"))
    assert second.duplicate_of is not None


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await send(bus)
            await receive(bus)
            await repeat_a_receive(bus)
            await deduplicate_content(bus)
            await match_content_under_any_id(bus)


if __name__ == "__main__":
    asyncio.run(main())
