"""The cache of blocks: deleted blocks leave it."""

from __future__ import annotations

from onibus import Bus, Message
from onibus.shard.pages import StorePages
from tests.bus_helpers import ManualClock, run


def pages_of(bus: Bus) -> StorePages:
    loop = bus.broker.stores["main"].loop
    assert loop is not None
    return loop.pages


@run
async def test_deleted_blocks_leave_the_cache(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        for _ in range(20):
            await bus.send_batch("q", [Message(body=b"x" * 1_000) for _ in range(100)])
        pages = pages_of(bus)
        assert pages.size > 20 * 100 * 1_000
        async with bus.receiver("q") as receiver:
            while received := await receiver.receive(500):
                for message in received:
                    await receiver.complete(message)
        assert pages.size == 0


@run
async def test_a_block_that_is_deleted_before_it_is_durable_is_not_kept(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        for _ in range(20):
            await bus.send("q", Message(body=b"x" * 1_000))
            async with bus.receiver("q", delete=True) as receiver:
                assert await receiver.receive(1)
        assert pages_of(bus).size == 0
