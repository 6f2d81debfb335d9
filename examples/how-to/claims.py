"""Process messages in restartable batches: python examples/how-to/claims.py"""

import asyncio
import tempfile

import pyarrow as pa

from onibus import Bus, Message, errors


async def claim_and_commit(bus: Bus) -> None:
    """Claim every message, read the claim twice, dead-letter one message, commit."""
    await bus.create_queue("orders", enable_partitioning=True)
    await bus.send_batch("orders", [Message(body=f"order {n}".encode()) for n in range(100)])

    claim = await bus.claim("orders", "nightly", 1_000)
    assert claim is not None, "the queue is empty"
    assert (claim.number, claim.count) == (1, 100)

    messages = await bus.read_claim("orders", "nightly", claim.number)
    assert await bus.read_claim("orders", "nightly", claim.number) == messages

    bad = messages[7].sequence_number
    reason = ("NoCustomer", "customer 7 is not in the database")
    await bus.commit_claim("orders", "nightly", claim.number, dead_letters={bad: reason})
    await bus.commit_claim("orders", "nightly", claim.number)  # a repeated commit does nothing

    assert bus.queue("orders").active_count == 0
    assert bus.queue("orders").dead_lettered_count == 1


async def claim_and_crash(bus: Bus) -> None:
    """Claim ten messages and stop before the commit."""
    await bus.send_batch("orders", [Message(body=b"another order")] * 10)
    await bus.claim("orders", "nightly", 1_000)


async def resume(bus: Bus) -> None:
    """After a restart, finish the claims that the job had."""
    for claim in bus.claims("orders"):
        if claim.reader == "nightly":
            messages = await bus.read_claim("orders", "nightly", claim.number)
            print("resuming with", len(messages), "messages")
            await bus.commit_claim("orders", "nightly", claim.number)
    assert bus.claims("orders") == []


async def release(bus: Bus) -> None:
    """Return the messages of a claim to the queue."""
    await bus.send("orders", Message(body=b"one more"))
    claim = await bus.claim("orders", "nightly", 1_000)
    assert claim is not None
    await bus.release_claim("orders", "nightly", claim.number)
    assert bus.queue("orders").active_count == 1
    try:
        await bus.read_claim("orders", "nightly", claim.number)
    except errors.ClaimNotFound as error:
        print("rejected:", error)


async def read_columns(bus: Bus) -> None:
    """Read a claim as an Arrow table."""
    claim = await bus.claim("orders", "nightly", 1_000)
    assert claim is not None
    batches = await bus.read_claim_arrow("orders", "nightly", claim.number)
    table = pa.Table.from_batches(batches)
    assert table.column("body").to_pylist() == [b"one more"]
    await bus.commit_claim("orders", "nightly", claim.number)


async def main() -> None:
    """Run every part in a temporary directory, with a restart on the way."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await claim_and_commit(bus)
            await claim_and_crash(bus)
        async with Bus.open(directory) as bus:
            await resume(bus)
            await release(bus)
            await read_columns(bus)


if __name__ == "__main__":
    asyncio.run(main())
