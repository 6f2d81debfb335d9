"""Pauses: what the largest single requests cost other clients of the same broker.

Two figures per request: the processor time of the longest slice on the event loop's thread, and the
longest wait of a second client that sends to another queue while the request runs.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import events
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bench.filling import remember, send_in_batches
from bench.measure import Figure, folder, opened
from onibus import Bus, Message
from onibus.cli.running import rest_collector
from onibus.core.errors import OnibusError
from onibus.core.inspection import Filter
from onibus.core.rules.rule import Rule, SqlFilter
from onibus.gateway.settling import peek_in_slices

#: The processor time that one slice may take.
SLICE_MS = 20


class Watch:
    """The longest slice, and the longest wait of a second client."""

    def __init__(self) -> None:
        self.slice_ms = 0.0
        self.wait_ms = 0.0
        self.total_ms = 0.0


@asynccontextmanager
async def watched(bus: Bus) -> AsyncIterator[Watch]:
    """Measure every callback of the loop, with a second client that sends all the time."""
    watch = Watch()
    run: Any = events.Handle._run

    def measured(handle: Any) -> None:
        start = time.thread_time()
        run(handle)
        watch.slice_ms = max(watch.slice_ms, (time.thread_time() - start) * 1e3)

    async def second_client() -> None:
        while True:
            # The pause between two sends counts too: a blocked loop prolongs it.
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            await bus.send("other", Message(body=b"x"))
            watch.wait_ms = max(watch.wait_ms, (time.perf_counter() - start) * 1e3)

    other = asyncio.create_task(second_client())
    await asyncio.sleep(0.05)
    events.Handle._run = measured  # type: ignore[method-assign,assignment]
    start = time.perf_counter()
    try:
        yield watch
        await asyncio.sleep(0.1)
    finally:
        watch.total_ms = (time.perf_counter() - start) * 1e3
        events.Handle._run = run  # type: ignore[method-assign]
        other.cancel()


async def _subscribe(bus: Bus, count: int) -> None:
    """Make a topic with subscriptions, half of which take each message."""
    await bus.create_topic("topic")
    for number in range(count):
        rule = Rule("r", SqlFilter(f"weight % 2 = {number % 2}"))
        await bus.create_subscription("topic", f"s{number}", rules=[rule])


async def _fan_out(bus: Bus, scale: float) -> Awaitable[Any]:
    """A batch of 10,000 to a topic with 2,000 subscriptions, half of which take each message."""
    await _subscribe(bus, int(2_000 * scale))
    messages = [Message(properties={"weight": at // 50}) for at in range(10_000)]
    return bus.send_batch("topic", messages)


async def _due_in_topic(bus: Bus, scale: float) -> Awaitable[Any]:
    """The same messages, scheduled and due at once."""
    await _subscribe(bus, int(2_000 * scale))
    due = time.time_ns() // 1_000_000 + 3_000
    messages = [
        Message(properties={"weight": at // 50}, scheduled_enqueue_time_ms=due)
        for at in range(2_000)
    ]
    await bus.send_batch("topic", messages)
    await asyncio.sleep(max(0.0, due / 1e3 - time.time() - 0.2))

    async def wait() -> None:
        while bus.topic("topic").scheduled_count:
            await asyncio.sleep(0.02)

    return wait()


async def _like(bus: Bus, scale: float) -> Awaitable[Any]:
    """Messages with 900 KB of properties, to LIKE filters."""
    await bus.create_topic("topic")
    patterns = ["%a_b%", "%" + "a_" * 200 + "%", "%" + "%a" * 200 + "b"]
    for number, pattern in enumerate(patterns):
        where = " OR ".join(f"p{at} LIKE '{pattern}'" for at in range(2))
        await bus.create_subscription("topic", f"s{number}", rules=[Rule("r", SqlFilter(where))])
    text = "a" * int(900_000 * scale)
    return bus.send_batch("topic", [Message(properties={"p0": text}) for _ in range(4)])


async def _peek_like(bus: Bus, scale: float) -> Awaitable[Any]:
    """A peek with a LIKE filter over messages with 900 KB of properties."""
    await bus.create_queue("queue")
    text = "a" * int(900_000 * scale)
    for _ in range(10):
        await bus.send("queue", Message(properties={"p0": text}))
    where = Filter(sql="p0 LIKE '%a_b%'")
    return bus.ask(lambda reply: peek_in_slices(bus.broker, "queue", 0, 100, where, False, reply))


async def _delete_ids(bus: Bus, scale: float) -> Awaitable[Any]:
    """The deletion of a queue with 400,000 recorded ids."""
    await bus.create_queue("queue", requires_duplicate_detection=True)
    remember(bus, "queue", int(400_000 * scale))
    return bus.delete_queue("queue")


async def _delete_messages(bus: Bus, scale: float) -> Awaitable[Any]:
    """The deletion of a subscription of 200,000 messages, half of them settled."""
    await bus.create_topic("topic")
    await bus.create_subscription("topic", "s1")
    await bus.create_subscription("topic", "s2", lock_duration_ms=300_000)
    count = int(200_000 * scale)
    await send_in_batches(bus, "topic", (Message(body=b"x") for _ in range(count)), 10_000)
    async with bus.receiver("topic/subscriptions/s2") as receiver:
        for _ in range(count // 10_000):
            held = await receiver.receive(10_000, wait_ms=1_000)
            for message in held[::2]:
                await receiver.complete(message)
            await receiver.dead_letter(held[1])
    return bus.delete_subscription("topic/subscriptions/s2")


async def _due(bus: Bus, scale: float) -> Awaitable[Any]:
    """200,000 messages of a queue due at once."""
    await bus.create_queue("queue")
    due = time.time_ns() // 1_000_000 + int(60_000 * scale)
    count = int(200_000 * scale)
    stream = (Message(body=b"x", scheduled_enqueue_time_ms=due) for _ in range(count))
    await send_in_batches(bus, "queue", stream, 10_000)
    await asyncio.sleep(max(0.0, due / 1e3 - time.time() - 0.2))

    async def wait() -> None:
        while bus.queue("queue").scheduled_count:
            await asyncio.sleep(0.02)

    return wait()


CASES: dict[str, Callable[[Bus, float], Awaitable[Awaitable[Any]]]] = {
    "batch of 10,000 to 2,000 subscriptions": _fan_out,
    "2,000 messages due in 2,000 subscriptions": _due_in_topic,
    "LIKE over 900 KB of properties": _like,
    "peek with LIKE over 900 KB": _peek_like,
    "deletion of 400,000 recorded ids": _delete_ids,
    "deletion of a subscription of 200,000": _delete_messages,
    "200,000 messages due at once": _due,
}


async def _run(case: Callable[[Bus, float], Awaitable[Awaitable[Any]]], scale: float) -> Watch:
    with folder() as path:
        async with opened(path) as bus:
            await bus.create_queue("other")
            request = await case(bus, scale)
            # As the server does; an unfrozen heap costs each full collection 60 ms.
            rest_collector()
            async with watched(bus) as watch:
                try:
                    await request
                except OnibusError as error:
                    print(error)
            return watch


def measure(scale: float = 1.0) -> list[Figure]:
    """Return the longest slice of each request."""
    figures = []
    for name, case in CASES.items():
        watch = asyncio.run(_run(case, scale))
        note = f"a second client waits {watch.wait_ms:,.0f} ms of {watch.total_ms:,.0f} at most"
        figures.append(Figure(name, watch.slice_ms, SLICE_MS, "ms", at_most=True, note=note))
    return figures
