"""Batches whose messages belong to several partitions: stored whole, or not at all (P13)."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from onibus import Bus
from onibus.core.errors import InvalidOperation, PartitionOffline, QuotaExceeded
from onibus.core.numbering import partition_index
from tests.bus_helpers import (
    KEYS,
    MINUTE,
    SECOND,
    Disks,
    ManualClock,
    bodies,
    get,
    index_in,
    keys_of,
    msg,
    pass_ms,
    peek_everything,
    picture,
    pull,
    run,
)
from tests.gateway.fragile import crash_everywhere, fail_everywhere, quiet
from tests.gateway.topic_helpers import sound, there, topic_with

stores = pytest.mark.parametrize("stores", [("a",), ("a", "b")])


@pytest.mark.promise("P13", "S2", "P4")
@stores
@run
async def test_numbers_are_in_the_order_of_the_batch(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("p", enable_partitioning=True)
        batch = [msg(f"{key}/{turn}", partition_key=key) for turn in range(3) for key in KEYS]
        sent = await bus.send_batch("p", batch)
        expected = [(index << 48) + turn + 1 for turn in range(3) for index in range(16)]
        assert [one.sequence_number for one in sent] == expected
        found = {m.sequence_number: m.body for m in peek_everything(bus, "p")}
        assert found == {
            one.sequence_number: message.body for one, message in zip(sent, batch, strict=True)
        }
        assert len(await get(bus, "p")) == 48
        sound(bus)


@pytest.mark.promise("P13", "S2")
@pytest.mark.parametrize("by_rows", [False, True])
@stores
@run
async def test_a_mixed_batch_does_not_overtake_what_came_before_it(
    clock: ManualClock, stores: tuple[str, ...], by_rows: bool
) -> None:
    """What goes to one partition waits for the next commit; a mixed batch does not."""
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("p", enable_partitioning=True)
        batch = [msg(f"{key}/2", partition_key=key) for key in KEYS]
        columns = {"body": [m.body for m in batch], "partition_key": KEYS}
        await asyncio.gather(
            *(bus.send("p", msg(f"{key}/1", partition_key=key)) for key in KEYS),
            bus.send_arrow("p", pa.table(columns)) if by_rows else bus.send_batch("p", batch),
        )
        expected = [f"{key}/{turn}" for key in KEYS for turn in (1, 2)]
        assert bodies(peek_everything(bus, "p")) == expected


@pytest.mark.promise("P13", "P4")
@run
async def test_keyless_messages_of_a_mixed_batch_share_a_partition(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("p", enable_partitioning=True)
        sent = await bus.send_batch(
            "p", [msg("0"), msg("1", partition_key=KEYS[5]), msg("2"), msg("3")]
        )
        indexes = [partition_index(one.sequence_number, True) for one in sent]
        assert indexes[0] == indexes[2] == indexes[3]
        assert indexes[1] == 5
        await bus.purge("p")
        # Also where the turn of the keyless ones comes to a partition that has a keyed one.
        for turn in range(16):
            mixed = [msg(f"keyless {turn}"), msg(f"keyed {turn}", partition_key=KEYS[5])]
            await bus.send_batch("p", mixed)
            columns = {"body": [m.body for m in mixed], "partition_key": [None, KEYS[5]]}
            sent_rows = await bus.send_arrow("p", pa.table(columns))
            assert sent_rows.accepted == 2
        expected = sorted(
            2 * [f"{word} {turn}" for word in ("keyed", "keyless") for turn in range(16)]
        )
        assert sorted(bodies(peek_everything(bus, "p"))) == expected


@pytest.mark.promise("P13", "D10", "D3")
@stores
@run
async def test_duplicates_in_and_before_a_mixed_batch(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("p", enable_partitioning=True, requires_duplicate_detection=True)
        (old,) = await bus.send_batch("p", [msg("old", message_id="m", partition_key=KEYS[0])])
        sent = await bus.send_batch(
            "p",
            [
                msg("same id, other key", message_id="m", partition_key=KEYS[1]),
                msg("repeats", message_id="m", partition_key=KEYS[0]),
                msg("new", message_id="n", partition_key=KEYS[0]),
                msg("repeats in the batch", message_id="m", partition_key=KEYS[1]),
                msg("by its id", message_id="k"),
            ],
        )
        first, second = sent[0].sequence_number, old.sequence_number
        assert [one.duplicate_of for one in sent] == [None, second, None, first, None]
        assert sent[2].sequence_number == second + 1
        assert sorted(bodies(peek_everything(bus, "p"))) == [
            "by its id", "new", "old", "same id, other key"
        ]  # fmt: skip
        assert bus.queue("p").duplicates_dropped == 2


@pytest.mark.promise("P13", "P5")
@run
async def test_with_a_needed_partition_down_nothing_is_stored(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("p", enable_partitioning=True, requires_duplicate_detection=True)
        up, down = KEYS[index_in(bus, "p", "a")], KEYS[index_in(bus, "p", "b")]
        batch = [msg(key, message_id="m", partition_key=key) for key in (up, down)]
        pull(bus, "b")
        with pytest.raises(PartitionOffline):
            await bus.send_batch("p", batch)
        assert peek_everything(bus, "p") == []
        await pass_ms(bus, clock, SECOND)
        # No id was recorded, and no number was used up.
        sent = await bus.send_batch("p", batch)
        assert [one.duplicate_of for one in sent] == [None, None]
        assert [one.sequence_number & 0xFFFF for one in sent] == [1, 1]


@pytest.mark.promise("P13", "P1")
@run
async def test_with_a_needed_partition_full_nothing_is_stored(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("p", enable_partitioning=True, max_size_bytes=2_000)
        await bus.send("p", msg("x" * 1_500, partition_key=KEYS[3]))
        before = picture(bus, "p")
        with pytest.raises(QuotaExceeded):
            await bus.send_batch("p", [msg("y" * 1_000, partition_key=key) for key in KEYS])
        assert picture(bus, "p") == before


@pytest.mark.promise("P13")
@run
async def test_strict_batches_are_refused_as_in_azure(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("p", enable_partitioning=True, strict_batches=True)
        await topic_with(bus, "s", enable_partitioning=True, strict_batches=True)
        for name in ("p", "t"):
            for batch in (
                [msg(partition_key=KEYS[0]), msg(partition_key=KEYS[1])],
                [msg(partition_key=key) for key in keys_of(0)],
                *[[msg(partition_key=KEYS[0]), msg()] for _ in range(16)],
            ):
                with pytest.raises(InvalidOperation, match="strict_batches"):
                    await bus.send_batch(name, batch)
            await bus.send_batch(name, [msg(partition_key=KEYS[0]), msg(session_id=KEYS[0])])
            await bus.send_batch(name, [msg("keyless"), msg("keyless")])
        assert len(peek_everything(bus, "p")) == len(peek_everything(bus, "t/subscriptions/s")) == 4
        await bus.change_queue("p", strict_batches=False)
        await bus.send_batch("p", [msg(partition_key=key) for key in KEYS])
        assert len(peek_everything(bus, "p")) == 20


@pytest.mark.promise("P13", "B3", "D6")
@stores
@run
async def test_a_mixed_batch_to_a_topic(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        names = await topic_with(
            bus, "x", "y", enable_partitioning=True, requires_duplicate_detection=True
        )
        batch = [msg(key, partition_key=key, message_id="m") for key in KEYS]
        await bus.send_batch("t", batch)
        await bus.send_batch("t", batch)
        for name in names:
            assert there(bus, name) == KEYS
        sound(bus)


@pytest.mark.promise("P13", "S5", "B2")
@stores
@run
async def test_schedule_and_life_in_a_mixed_batch(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("p", enable_partitioning=True)
        due = clock.wall() + MINUTE
        await bus.send_batch(
            "p",
            [msg("later", partition_key=key, scheduled_enqueue_time_ms=due) for key in KEYS[:2]]
            + [msg("short", partition_key=key, time_to_live_ms=SECOND) for key in KEYS[:2]],
        )
        assert bus.queue("p").scheduled_count == 2
        await pass_ms(bus, clock, SECOND)
        assert bodies(peek_everything(bus, "p")) == ["later", "later"]
        await pass_ms(bus, clock, MINUTE)
        assert bodies(await get(bus, "p")) == ["later", "later"]


async def partitioned(bus: Bus) -> Any:
    await bus.create_queue("p", enable_partitioning=True, requires_duplicate_detection=True)
    await bus.send_batch("p", [msg("old", partition_key=KEYS[0], message_id="old")])
    return count()


def mixed_batch() -> list[Any]:
    new = [
        msg(f"{n}/{key}", partition_key=key, message_id=str(n)) for n in range(2) for key in KEYS
    ]
    return [*new, msg("again", partition_key=KEYS[0], message_id="old")]


async def send_mixed(bus: Bus, _: Any) -> None:
    await bus.send_batch("p", mixed_batch())


async def all_or_none(bus: Bus, _: Any) -> bool:
    found = peek_everything(bus, "p")
    by_partition: dict[int, list[int]] = {}
    for message in found:
        index = partition_index(message.sequence_number, True)
        by_partition.setdefault(index, []).append(message.sequence_number & 0xFFFF)
    if len(found) == 1:
        return False
    assert len(found) == 33
    assert by_partition == {0: [1, 2, 3]} | {index: [1, 2] for index in range(1, 16)}
    # Ids were recorded with the messages: sent again, all of them are duplicates.
    assert all(one.duplicate_of is not None for one in await bus.send_batch("p", mixed_batch()))
    await quiet(bus)
    return True


@pytest.mark.promise("P13", "S3", "D9")
@stores
@run
async def test_a_crash_in_a_mixed_batch(clock: ManualClock, stores: tuple[str, ...]) -> None:
    await crash_everywhere(clock, partitioned, send_mixed, all_or_none, stores)


@pytest.mark.promise("P13", "S3", "D9")
@run
async def test_a_store_fails_in_a_mixed_batch(clock: ManualClock) -> None:
    await fail_everywhere(clock, partitioned, send_mixed, all_or_none)
