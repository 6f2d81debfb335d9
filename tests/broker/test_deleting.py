"""Deletes that arrive together are one command, and each is told what became of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onibus import Bus
from onibus.broker import deleting
from onibus.core.commands import Delete
from onibus.core.errors import EntityNotFound, LockLost, PartitionOffline, Unknown, UnknownToken
from onibus.core.handlers import HANDLERS
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
        lambda reply: deleting.delete_each(bus.broker, "q", tokens, reply)
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


@pytest.mark.promise("F10")
@run
async def test_requests_of_one_turn_are_one_command(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await filled(bus, 9)
        commands: list[int] = []
        whole = HANDLERS[Delete]

        def counted(partition: Any, command: Delete, *given: Any) -> Any:
            commands.append(len(command.tokens))
            return whole(partition, command, *given)

        monkeypatch.setitem(HANDLERS, Delete, counted)
        receiver = bus.fifo_receiver("q")
        held = [one.token or b"" for one in await receiver.receive(6)]
        assert await together(bus, held[:1], held[1:3], held[3:]) == [
            [None],
            [None] * 2,
            [None] * 3,
        ]
        assert commands == [6]
        assert bodies(await receiver.receive(10)) == ["2", "5", "8"], "the groups go on"


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
async def test_those_who_gathered_are_told_that_it_cannot_be(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await filled(bus, 3)
        held = [one.token or b"" for one in await bus.fifo_receiver("q").receive(3)]
        asked = [asyncio.ensure_future(delete(bus, [token])) for token in held]
        await asyncio.sleep(0)
        pull(bus, "main")
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in told] == [PartitionOffline] * 3
    async with disks.bus(clock) as bus:
        held = [one.token or b"" for one in await bus.fifo_receiver("q").receive(3)]
        disks.open["main"].fail_next(kept=False)
        told = await together(bus, held[:1], held[1:])
        assert [type(error) for error in told] == [Unknown] * 2
    async with disks.bus(clock) as bus:
        assert len(bus.peek("q")) == 3
        asked = [asyncio.ensure_future(delete(bus, [b"\0" * 16]))]
        await asyncio.sleep(0)
        bus.broker.find("q").seats[0].deleted = True
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in told] == [EntityNotFound]
        bus.broker.find("q").seats[0].deleted = False


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
