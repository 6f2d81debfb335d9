"""The calls of an embedded bus: python examples/demonstration.py [directory]

Sends messages, drops a duplicate, receives, defers, schedules, processes sessions in order,
dead-letters, filters with a topic, sends and settles in one transaction, and reads the log. Then it
reopens the bus and shows that everything is durable. The directory must be new; by default it is a
temporary one.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time

from rich.console import Console
from rich.table import Table

from onibus import Bus, Message, Rule, SqlFilter

console = Console(width=96, highlight=False)


def say(title: str, text: str) -> None:
    """Print the title and the explanation of a step."""
    console.print(f"\n[bold]{title}[/bold]\n{text}")


def show(bus: Bus, title: str) -> None:
    """Print the counts of all queues."""
    table = Table("queue", "active", "deferred", "scheduled", "dead-lettered", "duplicates dropped",
                  title=title)  # fmt: skip
    for name in bus.queues():
        info = bus.queue(name)
        counts = (info.active_count, info.deferred_count, info.scheduled_count)
        others = (info.dead_lettered_count, info.duplicates_dropped)
        table.add_row(name, *(str(count) for count in counts + others))
    console.print(table)


async def send(bus: Bus) -> None:
    """Create a partitioned queue and send to it, one message twice."""
    await bus.create_queue(
        "orders", enable_partitioning=True, requires_duplicate_detection=True, max_delivery_count=2
    )
    say(
        "Sending",
        "Five orders to a queue with 16 partitions. Each send returns once it is durable.",
    )
    table = Table("message id", "sequence number", "partition", "result")
    for message_id in ("o-1", "o-2", "o-3", "o-4", "o-5", "o-1"):
        sent = await bus.send("orders", Message(body=b"an order", message_id=message_id))
        number = sent.sequence_number
        fate = "stored" if sent.duplicate_of is None else "dropped: duplicate of that number"
        table.add_row(message_id, str(number), str(number >> 48), fate)
    console.print(table)
    for repeated, _, number in bus.duplicates("orders"):
        console.print(f"The bus lists dropped duplicates: {repeated!r} is a duplicate of {number}.")


async def receive(bus: Bus) -> int:
    """Complete one message and defer another; return the number of the deferred one."""
    async with bus.receiver("orders") as receiver:
        first, second = await receiver.receive(2)
        say("Receiving", "Two messages are locked: no other receiver gets them.")
        await receiver.complete(first)
        console.print(f"{first.message_id} is completed and deleted.")
        await receiver.defer(second)
        console.print(f"{second.message_id} is deferred: delivered by its sequence number only.")
        return second.sequence_number


async def dead_letter(bus: Bus) -> None:
    """Dead-letter two messages: one explicitly, one after too many deliveries."""
    say("Dead-lettering", "A receiver dead-letters one message. Another fails its last delivery.")
    async with bus.receiver("orders") as receiver:
        rejected, failing = await receiver.receive(2)
        await receiver.dead_letter(rejected, reason="NoSuchCustomer", description="checked twice")
        await receiver.abandon(failing)
        for message in await receiver.receive(5):
            await receiver.abandon(message)
    table = Table("message id", "deliveries", "reason", "description")
    start = 0  # a peek returns messages of one partition: continue until the result is empty
    while found := bus.peek("orders", start=start, dead_letters=True):
        for one in found:
            why = one.dead_letter_reason, one.dead_letter_description
            table.add_row(one.message_id, str(one.delivery_count), *why)
        start = found[-1].sequence_number + 1
    console.print(table)


async def schedule(bus: Bus) -> None:
    """Schedule one message for 0.3 seconds from now, one for tomorrow."""
    await bus.create_queue("reminders")
    now_ms = time.time_ns() // 1_000_000
    await bus.schedule("reminders", Message(body=b"tea is ready"), now_ms + 300)
    tomorrow = await bus.schedule("reminders", Message(body=b"water plants"), now_ms + 86_400_000)
    say(
        "Scheduling",
        f"One reminder in 0.3 s, one tomorrow. Its sequence number {tomorrow} cancels it.",
    )
    async with bus.receiver("reminders", delete=True) as receiver:
        (message,) = await receiver.receive(wait_ms=3_000)
        waited = time.time_ns() // 1_000_000 - now_ms
        console.print(f"Received after {waited} ms: {message.body.decode()!r}.")


async def sessions(bus: Bus) -> None:
    """Process two sessions in order, and save the state of each."""
    await bus.create_queue("steps", requires_session=True)
    for step in range(1, 4):
        for customer in ("anna", "ben"):
            await bus.send("steps", Message(body=b"step %d" % step, session_id=customer))
    say("Sessions", "Messages of two customers, sent alternately. Each customer's are in order.")
    for _ in range(2):
        async with await bus.accept_session("steps") as session:
            messages = await session.receive(2)
            await session.complete(*messages)
            await session.set_state(b"after " + messages[-1].body)
            done = ", ".join(message.body.decode() for message in messages)
            console.print(f"{session.session_id}: {done}; the session stores its progress.")


async def topic(bus: Bus) -> None:
    """Filter messages with a topic, and settle and send in one transaction."""
    await bus.create_topic("news", retention_ms=3_600_000)
    await bus.create_subscription("news", "all")
    large = await bus.create_subscription(
        "news", "large", rules=[Rule("large", SqlFilter("amount > 100"))]
    )
    for amount in (20, 500):
        await bus.send("news", Message(body=b"a sale", properties={"amount": amount}))
    say("Topics", "Two sales: one subscription gets both, the other only the large one.")
    (sale,) = await bus.receiver(large).receive()
    async with bus.transaction() as transaction:
        await transaction.complete(large, sale)
        await transaction.send("reminders", Message(body=b"call the customer"))
    console.print("One transaction completed the large sale and sent a reminder.")
    async for batch in bus.read_log("news", 0, 1):
        console.print(f"The log keeps completed messages: {batch.num_rows} rows, in Arrow.")


async def look_again(directory: str, deferred: int) -> None:
    """Reopen the bus and use the stored messages."""
    async with Bus.open(directory) as bus:
        show(bus, "After reopening")
        async with bus.receiver("orders") as receiver:
            (message,) = await receiver.receive_deferred([deferred])
            await receiver.complete(message)
            console.print(f"The deferred {message.message_id} was received by its sequence number.")
        sent = await bus.send("orders", Message(body=b"an order", message_id="o-1"))
        console.print(f"o-1, sent again, is a duplicate of {sent.duplicate_of}.")
        async with await bus.accept_session("steps", "ben") as session:
            (left,) = await session.receive()
            console.print(f"ben: state {await session.get_state()!r}, next message {left.body!r}.")


async def main(directory: str) -> None:
    """Run every step."""
    async with Bus.open(directory) as bus:
        await send(bus)
        deferred = await receive(bus)
        await dead_letter(bus)
        await schedule(bus)
        await sessions(bus)
        await topic(bus)
        show(bus, "Before closing")
    await look_again(directory, deferred)
    say("Done", "The bus kept every message, in order, and dropped the duplicates.")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            asyncio.run(main(temporary))
