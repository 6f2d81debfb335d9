"""Publish the results of a batch job exactly once: python examples/how-to/staged_sends.py"""

import asyncio
import tempfile
from typing import Any

from onibus import Bus, Message, errors

JOB: dict[str, Any] = {"producer": "prices", "batch": 0}
#: The attempt of each task that counts.
CHOSEN = [(0, 0), (1, 1)]


async def stage(bus: Bus) -> None:
    """Stage the results of two tasks; the second task is retried after it has staged."""
    await bus.create_queue("results")
    await bus.stage("results", [Message(body=b"apples: 2")], **JOB, task=0, attempt=0)
    await bus.stage("results", [Message(body=b"pears: ?")], **JOB, task=1, attempt=0)
    await bus.stage("results", [Message(body=b"pears: 3")], **JOB, task=1, attempt=1)

    assert bus.peek("results") == []
    assert [(one.task, one.attempt) for one in bus.staged("results")] == [(0, 0), (1, 0), (1, 1)]


async def publish(bus: Bus) -> None:
    """Publish the batch: one attempt of each task becomes visible."""
    done = await bus.publish("results", **JOB, attempts=CHOSEN)
    assert done.accepted == 2
    assert [one.body for one in bus.peek("results")] == [b"apples: 2", b"pears: 3"]
    assert bus.staged("results") == []


async def publish_again(bus: Bus) -> None:
    """Publish the same batch after a restart: nothing changes."""
    done = await bus.publish("results", **JOB, attempts=CHOSEN)
    assert done.again
    assert bus.queue("results").active_count == 2


async def recompute(bus: Bus) -> None:
    """Stage and publish the batch again: equal rows are accepted, different rows rejected."""
    again = {**JOB, "task": 0, "attempt": 2}
    await bus.stage("results", [Message(body=b"pears: 3"), Message(body=b"apples: 2")], **again)
    assert (await bus.publish("results", **JOB, attempts=[(0, 2)])).again

    await bus.stage("results", [Message(body=b"plums: 4")], **again | {"attempt": 3})
    try:
        await bus.publish("results", **JOB, attempts=[(0, 3)])
    except errors.BatchChanged as error:
        print("rejected:", error)


async def lose_the_checkpoint(bus: Bus) -> None:
    """Publish batch 1, then batch 0 as a job without its checkpoint would."""
    await bus.stage("results", [Message()], producer="prices", batch=1, task=0, attempt=0)
    await bus.publish("results", producer="prices", batch=1, attempts=[(0, 0)])
    try:
        await bus.publish("results", **JOB, attempts=CHOSEN)
    except errors.BatchTooOld as error:
        print("rejected:", error)


async def name_the_checkpoint(bus: Bus) -> None:
    """Publish under a checkpoint: another checkpoint is rejected."""
    sums: dict[str, Any] = {"producer": "sums", "batch": 0, "attempts": []}
    await bus.publish("results", **sums, checkpoint="a")
    assert (await bus.publish("results", **sums, checkpoint="a")).again
    try:
        await bus.publish("results", **sums, checkpoint="b")
    except errors.CheckpointMismatch as error:
        print("rejected:", error)


async def publish_without_staging(bus: Bus) -> None:
    """Name an attempt that staged nothing: the publish is rejected."""
    try:
        await bus.publish("results", producer="prices", batch=2, attempts=[(0, 0)])
    except errors.NotStaged as error:
        print("rejected:", error)


async def discard(bus: Bus) -> None:
    """Delete staged messages without publishing them."""
    await bus.stage("results", [Message()], producer="prices", batch=2, task=0, attempt=0)
    assert await bus.discard("results", producer="prices") == 1


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await stage(bus)
            await publish(bus)
            await publish_again(bus)
            await recompute(bus)
            await lose_the_checkpoint(bus)
            await name_the_checkpoint(bus)
            await publish_without_staging(bus)
            await discard(bus)


if __name__ == "__main__":
    asyncio.run(main())
