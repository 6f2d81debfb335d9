"""The rows of a deleted entity go slice by slice, and none is left, whatever happens (P10)."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from onibus import Bus, Filter
from onibus.core.path import compact, erase
from onibus.core.records import TABLES, WriteBatch
from onibus.shard import erasing
from onibus.shard.tidying import tidy
from tests.bus_helpers import Disks, ManualClock, crash, get, msg, run, send, settle
from tests.gateway.topic_helpers import sound, there, topic_with

ROWS = 5


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "ROWS_A_SLICE", ROWS)
    monkeypatch.setattr(erase, "RELEASED_AT_ONCE", 3)
    monkeypatch.setattr(compact, "MERGE_COUNT_MIN", 3)
    monkeypatch.setattr(compact, "UNTOUCHED", 1)


def rows_of(disks: Disks) -> dict[str, int]:
    """Return how many rows each table has, of those that belong to messages."""
    tables = disks.open["main"].tables
    return {table.name: len(tables[table]) for table in TABLES if tables.get(table)}


def watch(bus: Bus) -> tuple[list[int], deque[Any]]:
    """Return how much each slice writes from now on, and the slices that wait."""
    loop = bus.broker.stores["main"].loop
    assert loop is not None
    sizes: list[int] = []
    write = loop.write

    def counted(records: WriteBatch) -> None:
        sizes.append(sum(len(rows) for rows in records.tables.values()))
        write(records)

    loop.write = counted  # type: ignore[method-assign]
    waiting: deque[Any] = deque()
    soon = bus.broker.call_soon

    def later(call: Any) -> object:
        # Only slices are held back: a commit is started as ever.
        if getattr(call, "func", None).__class__.__name__ == "function":
            waiting.append(call)
            return None
        return soon(call)

    bus.broker.call_soon = later
    return sizes, waiting


async def filled(bus: Bus) -> None:
    """Make a queue with marks, ids, outcomes and what readers of it need."""
    await bus.create_queue("q", requires_duplicate_detection=True, retention_ms=60_000)
    for at in range(30):
        await bus.send("q", msg(str(at), message_id=f"m{at}"))
    receiver = bus.receiver("q")
    held = await receiver.receive(30)
    for at, message in enumerate(held):
        if at % 3 == 0:
            await receiver.defer(message)
        elif at % 3 == 1:
            await receiver.complete(message)


@pytest.mark.promise("P10")
@run
async def test_an_entity_with_many_rows_is_deleted_in_slices(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    before = rows_of(disks)
    await filled(bus)
    sizes, waiting = watch(bus)
    await bus.delete_queue("q")
    assert waiting, "there is more than one slice"
    while waiting:
        waiting.popleft()()
    assert max(sizes) <= ROWS
    assert len(sizes) > 5
    await settle(bus)
    await bus.close()
    assert rows_of(disks) == before


@pytest.mark.promise("P10")
@run
async def test_a_crash_between_two_slices_leaves_nothing(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    before = rows_of(disks)
    await filled(bus)
    _, waiting = watch(bus)
    await bus.delete_queue("q")
    waiting.popleft()()
    assert waiting
    crash(bus)
    bus = await disks.bus(clock)
    await bus.create_queue("q")
    await send(bus, "q", "new")
    assert there(bus, "q") == ["new"]
    await bus.delete_queue("q")
    await settle(bus)
    await bus.close()
    assert rows_of(disks) == before


@pytest.mark.promise("P10", "B3")
@run
async def test_a_subscription_is_deleted_in_slices_while_its_topic_works(
    clock: ManualClock,
) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    kept, gone = await topic_with(bus, "kept", "gone")
    for at in range(30):
        await bus.send("t", msg(str(at), properties={"n": at}))
    await bus.purge(gone, Filter(sql="n % 3 = 0"))
    await bus.purge(kept, Filter(sql="n < 20"))
    sizes, waiting = watch(bus)
    await bus.delete_subscription(gone)
    assert waiting
    partition = bus.broker.find("t").partitions[0].online()
    while waiting:
        # A block that is rewritten now would count its rows without the subscription.
        while tidy(bus.broker.find("t").partitions[0]):
            pass
        assert partition.releasing == 1
        await send(bus, "t", "more")
        waiting.popleft()()
    assert partition.releasing == 0
    assert max(sizes) <= 1 + ROWS * 2 * 3, "each entry releases at most three blocks"
    sound(bus)
    assert there(bus, kept)[:10] == [str(at) for at in range(20, 30)]
    await get(bus, kept)
    await bus.close()
