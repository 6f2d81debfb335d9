"""A producer's last batch again: nothing if its rows are the same, an error if they differ (R6)."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from onibus import Bus, Message
from onibus.core.errors import BatchChanged, NotStaged
from onibus.core.records import PRODUCERS, WriteBatch
from onibus.shard.replies import KeptReply
from tests.bus_helpers import Disks, ManualClock, run
from tests.gateway.staging_helpers import listed
from tests.gateway.topic_helpers import there

WHOSE: dict[str, Any] = {"producer": "spark", "batch": 3}
ROWS = [
    Message(body=b"a", message_id="1", properties={"n": 1}, subject="s"),
    Message(body=b"b", partition_key="k", time_to_live_ms=60_000),
    Message(body=b"", scheduled_enqueue_time_ms=9_000_000_000_000),
    Message(body=b"b"),
]
#: The same rows in columns.
TABLE = pa.table(
    {
        "body": [b"a", b"b", b"", b"b"],
        "message_id": ["1", None, None, None],
        "properties": [msgspec.msgpack.encode({"n": 1}), None, None, None],
        "subject": ["s", None, None, None],
        "partition_key": [None, "k", None, None],
        "time_to_live_ms": [None, 60_000, None, None],
        "scheduled_enqueue_time_ms": [None, None, 9_000_000_000_000, None],
    }
)


async def publish(bus: Bus, *attempts: tuple[int, ...], any_content: bool = False) -> bool:
    """Publish batch 3; return whether it had been published before."""
    done = await bus.publish("q", **WHOSE, attempts=attempts, any_content=any_content)
    return done.again


async def stage(bus: Bus, rows: list[Message], task: int, attempt: int, piece: int = 0) -> None:
    await bus.stage("q", rows, **WHOSE, task=task, attempt=attempt, piece=piece)


@pytest.mark.promise("R6")
@run
async def test_the_same_rows_in_any_order_pieces_and_form_are_the_same_batch(
    clock: ManualClock,
) -> None:
    disks = Disks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q", enable_partitioning=True)
        await stage(bus, ROWS, 0, 0)
        assert not await publish(bus, (0, 0))
        before = sorted(there(bus, "q"))
    async with disks.bus(clock, "a", "b") as bus:
        # The same call: nothing was staged for it again.
        assert await publish(bus, (0, 0))
        await stage(bus, ROWS[::-1], 0, 1)
        assert await publish(bus, (0, 1))
        await stage(bus, ROWS[2:], 0, 2)
        await stage(bus, ROWS[:1], 1, 3)
        await stage(bus, ROWS[1:2], 1, 3, piece=1)
        assert await publish(bus, (1, 3, 2), (0, 2))
        await bus.stage_arrow("q", TABLE.slice(0, 3), **WHOSE, task=0, attempt=4)
        await bus.stage_arrow("q", TABLE.slice(3), **WHOSE, task=0, attempt=4, piece=1)
        assert await publish(bus, (0, 4, 2), (7, 7, 0))
        # The settings of the entity do not count: rows are compared as they were given.
        await bus.change_queue("q", default_time_to_live_ms=1_000)
        await stage(bus, ROWS, 0, 5)
        assert await publish(bus, (0, 5))
        assert sorted(there(bus, "q")) == before


@pytest.mark.promise("R6")
@run
async def test_other_rows_under_the_last_number_are_refused(clock: ManualClock) -> None:
    disks = Disks()
    others = {
        "one is missing": ROWS[:-1],
        "one is new": [*ROWS, Message(body=b"c")],
        "one is there twice": [*ROWS, ROWS[0]],
        "one in place of another": [*ROWS[:-1], ROWS[1]],
        "another body": [*ROWS[:-1], Message(body=b"B")],
        "another property": [Message(body=b"a", message_id="1", properties={"n": 2}), *ROWS[1:]],
        "fields changed places": [Message(body=b"a", message_id="s", subject="1"), *ROWS[1:]],
    }
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await stage(bus, ROWS, 0, 0)
        await publish(bus, (0, 0))
        before = there(bus, "q")
    async with disks.bus(clock, "a", "b") as bus:
        for attempt, (words, rows) in enumerate(others.items(), 1):
            await stage(bus, rows, 0, attempt)
            with pytest.raises(BatchChanged, match="failOnChange") as caught:
                await publish(bus, (0, attempt))
            assert f"with 4 rows and now sends {len(rows)} different rows" in str(caught.value), (
                words
            )
        # The attempt that was published, staged again with other rows.
        await stage(bus, ROWS[1:], 0, 0)
        with pytest.raises(BatchChanged):
            await publish(bus, (0, 0))
        with pytest.raises(BatchChanged):
            await publish(bus)
        with pytest.raises(NotStaged):
            await publish(bus, (9, 9))
        await bus.stage_arrow("q", TABLE.slice(1), **WHOSE, task=0, attempt=99)
        with pytest.raises(BatchChanged):
            await publish(bus, (0, 99))
        # On purpose: the published rows count.
        assert await publish(bus, (0, 99), any_content=True)
        assert there(bus, "q") == before
        await bus.stage("q", ROWS[:1], producer="spark", batch=4, task=0, attempt=0)
        done = await bus.publish("q", producer="spark", batch=4, attempts=[(0, 0)])
        assert (done.accepted, done.again) == (1, False)
        assert listed(bus) == []


@pytest.mark.promise("R6")
@run
async def test_a_batch_without_rows_has_a_content_too(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        assert not await publish(bus)
        assert await publish(bus)
        assert await publish(bus, (0, 0, 0))
        await stage(bus, ROWS[:1], 0, 0)
        with pytest.raises(BatchChanged, match="with 0 rows and now sends 1"):
            await publish(bus, (0, 0))
        assert there(bus, "q") == []


@pytest.mark.promise("R6")
@run
async def test_a_batch_of_an_earlier_version_has_no_content_to_compare(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock, "a") as bus:
        await bus.create_queue("q")
        await stage(bus, ROWS, 0, 0)
        await publish(bus, (0, 0))
        records = WriteBatch()
        # As version 0.1.0 wrote it.
        entity = bus.broker.find("q").incarnation
        records.put(PRODUCERS, (entity, "spark", msgspec.msgpack.encode([3, None])))
        bus.broker.namespace.commit(records, KeptReply())
    async with disks.bus(clock, "a") as bus:
        await stage(bus, ROWS[:1], 0, 1)
        assert await publish(bus, (0, 1))
        assert len(there(bus, "q")) == 4
