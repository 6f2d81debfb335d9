"""Deletes of received messages: each request gets the results of its own tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onibus import Bus
from onibus.core.errors import LockLost, PartitionOffline, Unknown, UnknownToken
from onibus.gateway import settling
from tests.bus_helpers import (
    SECOND,
    Disks,
    ManualClock,
    bodies,
    keys_of,
    msg,
    pass_ms,
    pull,
    run,
)


async def delete(bus: Bus, tokens: Sequence[bytes]) -> list[Any]:
    found: list[Any] = await bus.ask(
        lambda reply: settling.delete_each(bus.broker, "q", tokens, reply)
    )
    return found


async def together(bus: Bus, *requests: Sequence[bytes]) -> list[Any]:
    """Delete by several requests of one turn; return what each is told, or its error."""
    asked = [delete(bus, tokens) for tokens in requests]
    return await asyncio.gather(*asked, return_exceptions=True)


async def filled(bus: Bus, count: int, groups: int = 3, **settings: Any) -> None:
    await bus.create_queue("q", fifo=True, **settings)
    await bus.send_batch(
        "q", [msg(f"{n}", message_id=f"{n}", session_id=f"g{n % groups}") for n in range(count)]
    )


@pytest.mark.promise("B8", "F10")
@run
async def test_what_was_told_is_gone_after_a_crash(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await filled(bus, 8, groups=4)
        held = await bus.fifo_receiver("q").receive(6)
        tokens = [one.token or b"" for one in held]
        await together(bus, tokens[:2], tokens[2:5])
        bus.broker.close()
    async with Bus.open(tmp_path, clock=clock) as bus:
        left = {one.body.decode() for one in bus.peek("q")}
        assert left == {f"{n}" for n in range(8)} - {one.body.decode() for one in held[:5]}


@run
async def test_each_is_told_what_became_of_its_own(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await filled(bus, 4, groups=4)
        receiver = bus.fifo_receiver("q")
        (late,) = await receiver.receive(1, visibility_ms=SECOND)
        await pass_ms(bus, clock, 2 * SECOND)
        # Its group queues up behind the others (F10).
        two, *_, one = await receiver.receive(4, visibility_ms=60 * SECOND)
        assert one.body == late.body
        first, second, third, fourth = await together(
            bus,
            [one.token or b"", late.token or b""],
            [b"\0" * 16, two.token or b""],
            [one.token or b""],
            [b"no token", two.token or b""],
        )
        assert first[0] is None
        assert type(first[1]) is LockLost
        assert type(second[0]) is UnknownToken
        assert second[1] is None
        assert third == [None], "deleted once, and told twice"
        assert type(fourth[0]) is UnknownToken
        assert fourth[1] is None
        assert len(bus.peek("q")) == 2


@run
async def test_deletes_that_cannot_be_stored_are_not_acknowledged(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await filled(bus, 3)
        held = [one.token or b"" for one in await bus.fifo_receiver("q").receive(3)]
        pull(bus, "main")
        told = await together(bus, *[[token] for token in held])
        assert [type(error) for error in told] == [PartitionOffline] * 3
    async with disks.bus(clock) as bus:
        held = [one.token or b"" for one in await bus.fifo_receiver("q").receive(3)]
        disks.open["main"].fail_next(kept=False)
        told = await together(bus, held[:1], held[1:])
        assert [type(error) for error in told] == [Unknown] * 2
    async with disks.bus(clock) as bus:
        assert len(bus.peek("q")) == 3


@run
async def test_a_partitioned_queue_is_asked_at_each_partition(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        for key in (*keys_of(1), *keys_of(5)):
            await bus.send("q", msg(key, partition_key=key))
        held = [one.token or b"" for one in await bus.receiver("q").receive(10)]
        assert len(held) == 4
        assert await together(bus, held[:3], held[3:]) == [[None] * 3, [None]]
        assert not bus.peek("q")


@pytest.mark.parametrize("seed", range(6))
def test_in_any_turns_it_comes_to_the_same(seed: int) -> None:
    """Whoever deletes, alone or with others, is told the same, and the same is left."""
    random = Random(seed)
    plan = [[random.randrange(14) for _ in range(random.randint(1, 4))] for _ in range(12)]

    async def outcome(at_once: int) -> tuple[list[Any], list[str], list[str]]:
        async with Bus.ephemeral(clock=ManualClock()) as bus:
            await filled(bus, 18, groups=5)
            receiver = bus.fifo_receiver("q")
            tokens = [b"\1" * 16] * 2
            for visibility_ms in (SECOND, 60 * SECOND):
                received = await receiver.receive(6, visibility_ms=visibility_ms)
                tokens += [one.token or b"" for one in received]
            await pass_ms(bus, bus.broker.clock.machine, 2 * SECOND)  # type: ignore[arg-type]
            told: list[Any] = []
            for start in range(0, len(plan), at_once):
                requests = [[tokens[at] for at in some] for some in plan[start : start + at_once]]
                told += await together(bus, *requests)
            types = [[type(one) for one in results] for results in told]
            left = [one.body.decode() for one in bus.peek("q")]
            return types, left, bodies(await receiver.receive(10))

    alone = asyncio.run(outcome(1))
    for at_once in (2, 3, len(plan)):
        assert asyncio.run(outcome(at_once)) == alone
