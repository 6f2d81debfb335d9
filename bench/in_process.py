"""One round of an in-process bus, for `bench.against`: the code is that of PYTHONPATH.

python bench/in_process.py DIRECTORY COUNT

It prints the messages per second and the microseconds of processor time per message as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path

from onibus import Bus, Message

BODY_BYTES = 1_024
SENDERS = 64


def messages(count: int) -> Iterator[Message]:
    """Yield messages with different ids."""
    body = os.urandom(BODY_BYTES)
    return (Message(body=body, message_id=f"id-{number}") for number in range(count))


async def send(bus: Bus, count: int) -> None:
    """Send messages one by one from many senders."""
    left = messages(count)

    async def sender() -> None:
        for message in left:
            await bus.send("queue", message)

    await asyncio.gather(*[sender() for _ in range(SENDERS)])


async def receive(bus: Bus, count: int) -> None:
    """Receive and complete messages."""
    async with bus.receiver("queue") as receiver:
        while count:
            received = await receiver.receive(100)
            await receiver.complete(*received)
            count -= len(received)


async def timed(count: int, work: Awaitable[None]) -> tuple[float, float]:
    """Return messages per second, and microseconds of processor time per message."""
    begun, used = time.perf_counter(), time.process_time()
    await work
    seconds, used = time.perf_counter() - begun, time.process_time() - used
    return count / seconds, 1e6 * used / count


async def measure(path: Path, count: int) -> dict[str, tuple[float, float]]:
    """Return the figures of one round."""
    async with Bus.open(path, reserve_bytes=0) as bus:
        await bus.create_queue("queue", requires_duplicate_detection=True)
        return {
            "library sends": await timed(count, send(bus, count)),
            "library receives": await timed(count, receive(bus, count)),
        }


def main() -> None:
    path = Path(sys.argv[1]) / "library"
    try:
        print(json.dumps(asyncio.run(measure(path, int(sys.argv[2])))))
    finally:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
