"""A costly filter of a peek, search, purge or resubmission: few messages in one slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onibus import Bus, Filter, Message
from onibus.core import commands
from onibus.core.lifecycle import State
from onibus.core.path.peek import SLICE_BYTES
from onibus.gateway import searching
from tests.bus_helpers import run

COUNT = 12
#: A LIKE with _ takes a step per character of the property: six of these take a slice.
COSTLY = Filter(sql="p LIKE '%a_b%'")
#: The properties alone, of any filter: four messages take a slice.
LARGE = Filter(session_id="other")
#: A slice may look at more messages than there are.
LOOKS = 1_000

#: Each looks at messages of a subscription from an ordinal on.
Look = Callable[[int, Filter, int], commands.Command[Any]]
LOOK_AT: dict[str, Look] = {
    "peek": lambda number, wanted, start: commands.Peek(number, wanted, 1, LOOKS, start or None),
    "purge": lambda number, wanted, start: commands.Purge(number, wanted, start, LOOKS),
    "count": lambda number, wanted, start: commands.CountPurgeable(number, wanted, start, LOOKS),
    "choose": lambda number, wanted, start: commands.ChooseMovable(
        number, wanted, State.ACTIVE, start, 1 << 60, LOOKS, LOOKS
    ),
}


@pytest.mark.parametrize(
    ("wanted", "size"), [(COSTLY, SLICE_BYTES // 60), (LARGE, SLICE_BYTES // 4)], ids=["sql", "any"]
)
@pytest.mark.parametrize("look", LOOK_AT.values(), ids=list(LOOK_AT))
@run
async def test_a_slice_counts_properties_and_steps_of_a_filter(
    look: Look, wanted: Filter, size: int
) -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        await bus.send_batch("q", [Message(properties={"p": "a" * size}) for _ in range(COUNT)])
        entity = bus.broker.find("q")
        slices, start = 0, 1
        while start:
            command = look(entity.number, wanted, start)
            start = bus.broker.use(entity, entity.partitions[0], command).next
            slices += 1
        assert COUNT // 6 <= slices <= COUNT // 2


@run
async def test_a_look_at_the_tail_ends_when_its_filter_took_a_slice() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        looked = 0

        class Counting(Filter, frozen=True):
            def look(self, message: Any) -> tuple[bool, int]:
                nonlocal looked
                looked += 1
                return super().look(message)

        tail = searching.Tailing(bus.broker, "q", Counting(sql="p LIKE '%a_b%'"))
        await bus.send_batch("q", [Message(properties={"p": "a" * 30_000}) for _ in range(COUNT)])
        assert tail.look() == []
        assert looked == 1
        # Messages that it had no time for are skipped, like those beyond its bytes.
        assert tail.look() == []
        assert looked == 1


@run
async def test_a_plain_filter_takes_no_more_slices_than_before() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        await bus.send_batch("q", [Message(properties={"n": at}) for at in range(1_000)])
        entity = bus.broker.find("q")
        command = commands.CountPurgeable(entity.number, Filter(sql="n % 2 = 0"), 1, LOOKS)
        counted = bus.broker.use(entity, entity.partitions[0], command)
        assert (counted.count, counted.next) == (500, 0)
