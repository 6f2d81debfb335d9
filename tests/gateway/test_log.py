"""Reading the log: the same rows each time, in order, without a hole (R1, R3)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onibus import Bus, Filter, errors
from onibus.core.arrow_block import SCHEMA, columns_of, conform, encode_arrow
from onibus.core.block import NEVER
from onibus.core.log_batch import READ_SCHEMA
from onibus.core.partition import Partition
from onibus.core.records import BLOCKS, WriteBatch
from onibus.core.rules.rule import Rule, SqlAction
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    Disks,
    ManualClock,
    crash,
    get,
    index_in,
    keys_of,
    msg,
    partition_at,
    pull,
    reopen_store,
    run,
    send,
    settle,
)
from tests.log_helpers import consume, read, texts, tidy
from tests.running import Run


@pytest.mark.promise("R1", "R3")
@run
async def test_completed_messages_are_read_again_until_their_retention_ends(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await send(bus, "q", "a", "b", "c")
        await consume(bus, "q")
        expected = [(1, "a"), (2, "b"), (3, "c")]
        assert await texts(bus, "q") == expected
        assert await texts(bus, "q") == expected, "the same rows each time"
        assert await get(bus, "q") == [], "reading gives nothing back"
    clock.advance(59 * MINUTE)
    async with Bus.open(tmp_path, clock=clock) as bus:
        tidy(bus)
        assert await texts(bus, "q") == expected, "over a restart"
        assert await texts(bus, "q", 2, 3) == [(2, "b")]
        await send(bus, "q", "d")
        clock.advance(2 * MINUTE)
        tidy(bus)
        await settle(bus)
        assert await texts(bus, "q", 4) == [(4, "d")]
        with pytest.raises(errors.LogGap) as gap:
            await texts(bus, "q")
        assert (gap.value.first, gap.value.last) == (1, 3)
        positions = bus.log_positions("q")
        assert (positions.earliest, positions.latest) == ((4,), (5,))


@pytest.mark.promise("R3")
@run
async def test_rows_have_all_that_was_sent(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        message = msg("body", message_id="m", subject="s", properties={"p": 1})
        message.time_to_live_ms = MINUTE
        await bus.send("q", message)
        (row,) = await read(bus, "q")
        assert list(row) == READ_SCHEMA.names
        assert row["sequence_number"] == 1
        assert row["partition"] == 0
        assert row["enqueued_time_ms"] == clock.wall()
        assert row["expires_at_ms"] == bus.broker.clock.now() + MINUTE
        assert row["kind"] == "message"
        assert (row["message_id"], row["subject"], row["body"]) == ("m", "s", b"body")
        (receiver,) = await get(bus, "q", 1)
        assert receiver.properties == {"p": 1}
        (few,) = await read(bus, "q", columns=["kind", "sequence_number"])
        assert few == {"kind": "message", "sequence_number": 1}
        (few,) = await read(bus, "q", columns=["body", "expires_at_ms"])
        assert few == {"body": b"body", "expires_at_ms": row["expires_at_ms"]}


@pytest.mark.promise("R3")
@run
async def test_a_scheduled_number_is_a_marker_and_its_activation_a_row_of_its_own(
    clock: ManualClock,
) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        number = await bus.schedule("q", msg("later"), clock.wall() + MINUTE)
        (marker,) = await read(bus, "q")
        assert (marker["sequence_number"], marker["kind"]) == (number, "scheduled")
        clock.advance(MINUTE)
        await settle(bus)
        rows = await read(bus, "q")
        assert rows[0] == marker, "what was read does not change"
        assert [(row["sequence_number"], row["kind"]) for row in rows] == [
            (1, "scheduled"),
            (2, "message"),
        ]


@pytest.mark.promise("R3")
@run
async def test_a_topic_has_one_log_and_a_copy_is_a_row_of_its_own(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_topic("t", retention_ms=HOUR)
        rules = [Rule("all"), Rule("more", action=SqlAction("SET sys.Label = 'copied'"))]
        name = await bus.create_subscription("t", "s", rules=rules)
        await send(bus, "t", "a")
        rows = await read(bus, "t")
        assert [(row["sequence_number"], row["kind"]) for row in rows] == [
            (1, "message"),
            (2, "copy"),
        ]
        with pytest.raises(errors.InvalidOperation, match="read that of t"):
            bus.read_log(name, 0, 1)
        await bus.delete_subscription(name)
        await send(bus, "t", "nobody takes it")
        assert [row["body"] for row in await read(bus, "t", 3)] == [b"nobody takes it"]


@pytest.mark.promise("R3")
@run
async def test_limits_end_a_reading_and_it_goes_on_from_there(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await bus.send_batch("q", [msg(f"{n}") for n in range(10)])
        await bus.send_batch("q", [msg(f"{n}" + "x" * 3_000) for n in range(10, 20)])
        assert [number for number, _ in await texts(bus, "q", 3, limit=4)] == [3, 4, 5, 6]
        found = await texts(bus, "q", limit_bytes=100)
        assert [number for number, _ in found] == list(range(1, 11)), "a whole block, and no more"
        found = await texts(bus, "q", 5, limit_bytes=10_000)
        assert [number for number, _ in found] == list(range(5, 11))
        assert len(await texts(bus, "q", limit_bytes=1 << 20, limit=15)) == 15


@pytest.mark.promise("R3")
@run
async def test_what_is_not_durable_is_not_read(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "a")
        partition = partition_at(bus, "q")
        waiting = asyncio.ensure_future(bus.send("q", msg("b")))
        await asyncio.sleep(0)
        loop = bus.broker.stores["main"].loop
        assert loop is not None
        if partition.log.next_ordinal == 2:
            loop.start()
        assert partition.log.next_ordinal == 3, "the core runs ahead of the disk"
        assert bus.log_positions("q").latest == (2,)
        reading = bus.read_log("q", 0, 1)
        await waiting
        batches = [batch.to_pylist() async for batch in reading]
        assert [row["sequence_number"] for rows in batches for row in rows] == [1]
        assert len(await texts(bus, "q")) == 2


@pytest.mark.promise("R3")
@run
async def test_messages_that_were_compacted_away_are_a_hole_with_a_name(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await bus.send_batch("q", [msg(f"{n}" + "x" * 1_000) for n in range(1, 21)])
        receiver = bus.receiver("q")
        held = await receiver.receive(20)
        await receiver.complete(*held[4:9], *held[10:])
        tidy(bus)
        await settle(bus)
        for _ in range(2):
            assert [number for number, _ in await texts(bus, "q", 1, 5)] == [1, 2, 3, 4]
            assert [number for number, _ in await texts(bus, "q", 10, 11)] == [10]
            for start, end, lost in ((1, None, (5, 9)), (7, None, (7, 9)), (1, 7, (5, 6))):
                with pytest.raises(errors.LogGap) as gap:
                    await texts(bus, "q", start, end)
                assert (gap.value.first, gap.value.last) == lost
            with pytest.raises(errors.LogGap) as gap:
                await texts(bus, "q", 10)
            assert (gap.value.first, gap.value.last) == (11, 20)
            positions = bus.log_positions("q")
            assert (positions.earliest, positions.latest) == ((21,), (21,))
            await reopen_store(bus, "main")


@pytest.mark.promise("R3")
@run
async def test_blocks_that_are_rewritten_while_somebody_reads(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        for n in range(1_100):
            await bus.send("q", msg(f"{n}"))
        reading = bus.read_log("q", 0, 1)
        found = (await anext(reading)).to_pylist()
        assert len(found) == 1_000
        before = [place.block for place in partition_at(bus, "q").log.places]
        tidy(bus)
        await settle(bus)
        after = {place.block for place in partition_at(bus, "q").log.places}
        assert len(after.intersection(before)) < 100, "small blocks were merged"
        async for batch in reading:
            found += batch.to_pylist()
        assert [row["body"] for row in found] == [b"%d" % n for n in range(1_100)]


@pytest.mark.promise("R3")
@run
async def test_a_block_that_vanishes_between_planning_and_reading_is_looked_for_anew(
    clock: ManualClock,
) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        for n in range(60):
            await bus.send("q", msg(f"{n}"))
        store = bus.broker.stores["main"]
        read_beside = store.read_beside
        kept: list[Any] = []
        store.read_beside = lambda *work: kept.append(work)  # type: ignore[method-assign]
        reading = asyncio.ensure_future(anext(bus.read_log("q", 0, 1)))
        while not kept:
            await asyncio.sleep(0)
        store.read_beside = read_beside  # type: ignore[method-assign]
        before = len(disks.open["main"].tables[BLOCKS])
        tidy(bus)
        await settle(bus)
        assert len(disks.open["main"].tables[BLOCKS]) < before, "merged, and committed"
        read_beside(*kept[0])
        found = (await reading).to_pylist()
        assert [row["sequence_number"] for row in found] == list(range(1, len(found) + 1))
        assert len(await texts(bus, "q")) == 60


@pytest.mark.promise("R3")
@run
async def test_a_block_that_is_missing_takes_its_partition_offline(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "a")
        disks.open["main"].tables[BLOCKS].clear()
        with pytest.raises(errors.PartitionOffline, match="missing"):
            await texts(bus, "q")
        assert bus.queue("q").availability == "limited"
        assert bus.alarms


@pytest.mark.promise("R3")
@run
async def test_an_offline_partition_is_a_retryable_error(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock, stores=["one", "two"]) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        up, down = index_in(bus, "q", "one"), index_in(bus, "q", "two")
        for index in (up, down):
            await bus.send("q", msg(f"in {index}", partition_key=keys_of(index)[0]))
        starts = [(index << 48) + 1 for index in range(16)]
        assert bus.log_positions("q").earliest == tuple(starts)
        pull(bus, "two")
        with pytest.raises(errors.PartitionOffline) as offline:
            await texts(bus, "q", starts[down], partition=down)
        assert offline.value.retryable
        found = await texts(bus, "q", starts[up], partition=up)
        assert found == [(starts[up], f"in {up}")], "the others go on"
        positions = bus.log_positions("q")
        assert positions.earliest[down] is None
        assert positions.latest[up] == starts[up] + 1
        await reopen_store(bus, "two")
        assert len(await texts(bus, "q", starts[down], partition=down)) == 1


@run
async def test_a_store_that_fails_while_somebody_reads(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q")
        for n in range(1_001):
            await bus.send("q", msg(f"{n}"))
        reading = bus.read_log("q", 0, 1)
        assert (await anext(reading)).num_rows == 1_000
        pull(bus, "main")
        with pytest.raises(errors.PartitionOffline):
            await anext(reading)


@pytest.mark.promise("R8")
@run
async def test_an_entity_that_was_made_again_is_a_clear_error(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q")
        await bus.send_batch("q", [msg("a")] * 1_001)
        for _ in range(1_000):
            await bus.send("q", msg("b"))
        old = bus.log_positions("q").incarnation
        reading = bus.read_log("q", 0, 1)
        await anext(reading)
        await bus.delete_queue("q")
        await bus.create_queue("q")
        await send(bus, "q", "new")
        with pytest.raises(errors.EntityReplaced):
            await anext(reading)
        with pytest.raises(errors.EntityReplaced):
            bus.read_log("q", 0, 1, incarnation=old)
        with pytest.raises(errors.EntityReplaced):
            bus.read_outcomes("q", 0, 1, incarnation=old)
        new = bus.log_positions("q").incarnation
        assert await texts(bus, "q", incarnation=new) == [(1, "new")]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"start": 0}, "not a sequence number"),
        ({"start": -1}, "not a sequence number"),
        ({"start": 5}, "the next one is 4"),
        ({"start": "1"}, "not a sequence number"),
        ({"start": True}, "not a sequence number"),
        ({"start": 1, "end": 5}, "the next one is 4"),
        ({"start": 3, "end": 2}, "3 is after 2"),
        ({"start": 1, "partition": 1}, "partitions 0 to 0"),
        ({"start": 1, "partition": "0"}, "partitions 0 to 0"),
        ({"start": 1, "limit": 0}, "limit must be a whole number"),
        ({"start": 1, "limit_bytes": 1.5}, "limit_bytes must be a whole number"),
        ({"start": 1, "columns": "body"}, "list of names"),
        ({"start": 1, "columns": []}, "list of names"),
        ({"start": 1, "columns": ["body", "body"]}, "repeated column"),
        ({"start": 1, "columns": ["ordinal"]}, "repeated column"),
        ({"start": 1, "incarnation": "1"}, "a number, as log_positions returns it"),
    ],
)
@run
async def test_what_cannot_be_read_is_refused_with_a_reason(how: Any, words: str) -> None:
    async with Disks().bus(ManualClock()) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "a", "b", "c")
        with pytest.raises(errors.InvalidArgument, match=words):
            await read(bus, "q", **how)
        with pytest.raises(errors.EntityNotFound):
            bus.read_log("nothing", 0, 1)
        assert len(await read(bus, "q", 1, 4)) == 3
        assert await read(bus, "q", 4) == [], "nothing is there yet"


@run
async def test_the_log_of_a_queue_without_retention_has_what_is_left(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "a", "b")
        await consume(bus, "q", 1)
        with pytest.raises(errors.LogGap):
            await texts(bus, "q")
        assert await texts(bus, "q", 2) == [(2, "b")]
        await consume(bus, "q")
        positions = bus.log_positions("q")
        assert (positions.earliest, positions.latest) == ((3,), (3,))


@pytest.mark.promise("R3")
@run
async def test_arrow_blocks_and_rows_are_one_log(tmp_path: Path, clock: ManualClock) -> None:
    """A block in the Arrow encoding, as bulk sends write it, among others."""
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await send(bus, "q", "1", "2")
        messages = [msg(f"{n}", properties={"n": n}) for n in range(3, 103)]
        batch = conform(pa.RecordBatch.from_arrays(columns_of(messages), schema=SCHEMA))
        partition = bus.broker.find("q").partitions[0]

        def add(core: Partition, now: int, out: WriteBatch) -> None:
            log = core.log
            payload = encode_arrow(range(3, 103), clock.wall(), now, NEVER, 0, 0, batch)
            log.next_ordinal = 103
            log.append(payload, 3, 102, 100, NEVER, out)
            core.subscription.enqueue(3, [None] * 100)

        bus.broker.apply(partition, Run(add))
        await settle(bus)
        await send(bus, "q", "103", "104")
        found = await texts(bus, "q")
        assert found == [(n, f"{n}") for n in range(1, 105)]
        assert (await texts(bus, "q", 50, 60)) == [(n, f"{n}") for n in range(50, 60)]
        batches = [one async for one in bus.read_log("q", 0, 1)]
        assert [one.num_rows for one in batches] == [2, 100, 2], "an Arrow block is one batch"
        assert all(one.schema.equals(READ_SCHEMA) for one in batches)
        few = [one async for one in bus.read_log("q", 0, 1, columns=["sequence_number"])]
        assert [one.num_columns for one in few] == [1, 1, 1]


class Owner:
    """Uses a queue at random and keeps a plain list of what was sent, by number."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sent: list[str] = []

    async def live(self, bus: Bus, clock: ManualClock) -> None:
        act = self.chance.choice(("send", "send", "batch", "complete", "purge", "defer", "time"))
        if act == "send":
            await self._send(bus, 1)
        elif act == "batch":
            await self._send(bus, self.chance.randrange(2, 40))
        elif act == "complete":
            await consume(bus, "q", self.chance.randrange(1, 60))
        elif act == "purge" and self.chance.random() < 0.3:
            await bus.purge("q", Filter(enqueued_before_ms=clock.wall() - MINUTE))
        elif act == "defer":
            async with bus.receiver("q") as receiver:
                for message in await receiver.receive(2):
                    await receiver.defer(message)
        else:
            clock.advance(self.chance.randrange(5_000))

    async def _send(self, bus: Bus, count: int) -> None:
        bodies = [
            f"{len(self.sent) + n}" + "x" * self.chance.choice((0, 500)) for n in range(count)
        ]
        for sent, body in zip(
            await bus.send_batch("q", [msg(body) for body in bodies]), bodies, strict=True
        ):
            self.sent.append(body)
            assert sent.sequence_number == len(self.sent)

    async def compare(self, bus: Bus, floor: int) -> None:
        """What can be read is what was sent; what was to be kept can be read."""
        kept = [(n, self.sent[n - 1]) for n in range(floor, len(self.sent) + 1)]
        assert await texts(bus, "q", floor) == kept
        # While the clock stands still nothing more goes after this, whenever the bus tidies.
        for _ in range(2):
            tidy(bus)
            await settle(bus)
        positions = bus.log_positions("q")
        earliest, latest = positions.earliest[0], positions.latest[0]
        assert earliest is not None
        assert latest == len(self.sent) + 1
        assert earliest <= floor
        start = self.chance.randrange(earliest, latest + 1)
        end = self.chance.randrange(start, latest + 1)
        for first, last in ((earliest, latest), (start, end)):
            expected = [(n, self.sent[n - 1]) for n in range(first, last)]
            assert await texts(bus, "q", first, last) == expected


@pytest.mark.promise("R1", "R2", "R3")
@pytest.mark.parametrize("seed", range(6))
@run
async def test_the_log_is_the_list_of_what_was_sent(seed: int) -> None:
    clock, disks, owner = ManualClock(), Disks(), Owner(seed)
    floor = 1
    for life in range(5):
        bus = await disks.bus(clock)
        if not life:
            await bus.create_queue("q", retention_ms=None if seed % 2 else 20_000)
            await bus.create_reader("q", "r", start="latest")
        for _ in range(40):
            await owner.live(bus, clock)
            if owner.chance.random() < 0.3:
                tidy(bus)
                await settle(bus)
            if owner.chance.random() < 0.1:
                (info,) = bus.readers("q")
                floor = owner.chance.randrange(info.positions[0], len(owner.sent) + 2)
                await bus.move_reader("q", "r", [floor], info.incarnation)
            if owner.chance.random() < 0.3:
                await owner.compare(bus, floor)
        if owner.chance.random() < 0.5:
            await settle(bus)
            crash(bus)
        else:
            await bus.close()
