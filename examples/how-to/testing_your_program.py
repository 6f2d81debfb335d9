"""Test a program that uses a bus: python examples/how-to/testing_your_program.py"""

import asyncio
import tempfile

from onibus import Bus, Message


async def ship_next_order(bus: Bus) -> str | None:
    """Stand for the program under test."""
    async with bus.receiver("orders") as receiver:
        for message in await receiver.receive():
            await receiver.complete(message)
            return f"shipped {message.body.decode()}"
    return None


async def test_in_memory() -> None:
    """Test against a bus in memory."""
    async with Bus.ephemeral() as bus:
        await bus.create_queue("orders")
        await bus.send("orders", Message(body=b"order 1"))
        assert await ship_next_order(bus) == "shipped order 1"
        assert await ship_next_order(bus) is None


class ManualClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        """Start at a fixed time."""
        self.now_ms = 1_600_000_000_000

    def wall(self) -> int:
        """Return the time of day."""
        return self.now_ms

    def monotonic(self) -> int:
        """Return a time that never decreases."""
        return self.now_ms

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms


async def test_time() -> None:
    """Let a lock and a message expire without waiting."""
    clock = ManualClock()
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("orders", lock_duration_ms=30_000, dead_letter_on_expiration=True)
        await bus.send("orders", Message(body=b"order 1", time_to_live_ms=3_600_000))
        async with bus.receiver("orders") as receiver:
            await receiver.receive()
            clock.advance(30_000)  # the lock expires
            (again,) = await receiver.receive()
            assert again.delivery_count == 1
            await receiver.abandon(again)

        clock.advance(3_600_000)  # the message expires
        assert bus.queue("orders").dead_lettered_count == 1


async def test_a_restart(directory: str) -> None:
    """Open a directory twice: messages and recorded ids survive."""
    async with Bus.open(directory) as bus:
        await bus.create_queue("orders", requires_duplicate_detection=True)
        await bus.send("orders", Message(body=b"order 1", message_id="o-1"))

    async with Bus.open(directory) as bus:
        sent = await bus.send("orders", Message(body=b"order 1", message_id="o-1"))
        assert sent.duplicate_of is not None
        assert bus.queue("orders").active_count == 1


async def test_a_lost_response() -> None:
    """Cancel a send and retry it: the queue has one message."""
    async with Bus.ephemeral() as bus:
        await bus.create_queue("orders", requires_duplicate_detection=True)
        message = Message(body=b"order 1", message_id="o-1")
        sending = asyncio.ensure_future(bus.send("orders", message))
        await asyncio.sleep(0)
        sending.cancel()
        await bus.send("orders", message)
        assert bus.queue("orders").active_count == 1


async def main() -> None:
    """Run every test."""
    await test_in_memory()
    await test_time()
    with tempfile.TemporaryDirectory() as directory:
        await test_a_restart(directory)
    await test_a_lost_response()


if __name__ == "__main__":
    asyncio.run(main())
