"""Messages of the log are sent again (X7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onibus import Bus, Filter, errors
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    Disks,
    ManualClock,
    bodies,
    get,
    keys_of,
    msg,
    pass_ms,
    pull,
    reopen_store,
    run,
    send,
    settle,
)
from tests.log_helpers import consume, read, texts


@pytest.mark.promise("X7")
@run
async def test_completed_messages_are_sent_again(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        sent = [msg(f"{n}", message_id=f"m{n}", properties={"n": n}) for n in range(1, 6)]
        await bus.send_batch("q", sent)
        await consume(bus, "q")
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert await bus.replay("q", 0, 2, 5) == 3
        again = await get(bus, "q")
        assert bodies(again) == ["2", "3", "4"]
        assert [one.sequence_number for one in again] == [6, 7, 8]
        assert [one.message.enqueued_sequence_number for one in again] == [2, 3, 4]
        assert [one.message_id for one in again] == ["m2", "m3", "m4"], "nobody remembers ids here"
        assert again[0].properties == {"n": 2}
        assert await bus.replay("q", 0, 5, 5) == 0


@pytest.mark.promise("X7")
@run
async def test_only_what_a_filter_means_and_to_another_entity(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await bus.create_topic("t")
        name = await bus.create_subscription("t", "s")
        for n in range(6):
            await send(bus, "q", f"{n}", properties={"n": n})
        await consume(bus, "q")
        where = Filter(sql="n > 3")
        assert await bus.replay("q", 0, 1, where=where, to="t") == 2
        found = await get(bus, name)
        assert bodies(found) == ["4", "5"]
        assert [one.message.enqueued_sequence_number for one in found] == [5, 6]
        assert await get(bus, "q") == []


@pytest.mark.promise("X7")
@run
async def test_remembered_ids_are_replaced_and_others_are_kept(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR, requires_duplicate_detection=True)
        await send(bus, "q", "old", message_id="old")
        await pass_ms(bus, clock, 20 * MINUTE)
        long = "x" * 128
        await send(bus, "q", "old again", message_id="old")
        await send(bus, "q", "young", message_id="young")
        await send(bus, "q", "long", message_id=long)
        await send(bus, "q", "nameless")
        await consume(bus, "q")
        assert await bus.replay("q", 0, 1, 6) == 5
        found = {one.body.decode(): one.message_id for one in await get(bus, "q", delete=True)}
        assert found["old"] == "old/replayed/1", "its second message is remembered"
        assert found["old again"] == "old/replayed/2"
        assert found["young"] == "young/replayed/3"
        assert found["nameless"] is None
        renamed = found["long"]
        assert renamed is not None
        assert len(renamed) <= 128
        assert renamed.endswith("/replayed/4")
        assert await bus.replay("q", 0, 3, 4) == 1, "a second time is meant as well"
        assert [one.message_id for one in await get(bus, "q")] == ["young/replayed/3/2"]
        await pass_ms(bus, clock, 20 * MINUTE)
        assert await bus.replay("q", 0, 3, 4) == 1
        assert bus.queue("q").duplicates_dropped == 0


@pytest.mark.promise("X7")
@run
async def test_one_id_twice_in_what_is_replayed(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await bus.create_queue("to", requires_duplicate_detection=True)
        await send(bus, "q", "a", "b", "c", message_id="same")
        assert await bus.replay("q", 0, 1, to="to") == 3
        ids = [one.message_id for one in await get(bus, "to")]
        assert ids == ["same", "same/replayed/2", "same/replayed/3"]


@pytest.mark.promise("X7")
@run
async def test_where_equal_content_is_a_duplicate_too(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue(
            "q",
            fifo=True,
            retention_ms=HOUR,
            content_based_deduplication=True,
            content_matches_any_id=True,
        )
        await send(bus, "q", "a", session_id="g")
        await send(bus, "q", "b", session_id="g", message_id="b")
        assert await bus.replay("q", 0, 1, 3) == 2
        assert bus.queue("q").active_count == 4


@pytest.mark.promise("X7")
@run
async def test_markers_of_scheduled_messages_are_not_sent(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await bus.schedule("q", msg("later"), clock.wall() + MINUTE)
        assert await bus.replay("q", 0, 1) == 0
        await pass_ms(bus, clock, MINUTE)
        await consume(bus, "q")
        assert await bus.replay("q", 0, 1) == 1
        (again,) = await get(bus, "q")
        assert (again.sequence_number, again.message.enqueued_sequence_number) == (3, 2)


@pytest.mark.promise("X7")
@run
async def test_many_messages_over_many_slices_and_partitions(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock, stores=["one", "two"]) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await bus.create_queue("to", enable_partitioning=True, requires_duplicate_detection=True)
        await bus.send_batch("q", [msg(f"{n}", message_id=f"{n}") for n in range(2_500)])
        await bus.send("to", msg("there", message_id="7"))
        assert await bus.replay("q", 0, 1, to="to") == 2_500
        assert bus.queue("to").active_count == 2_501
        assert bus.queue("to").duplicates_dropped == 0
        ids: list[Any] = []
        for index in range(16):
            start = bus.log_positions("to").earliest[index]
            assert start is not None
            rows = await read(bus, "to", start, partition=index)
            ids += [row["message_id"] for row in rows]
        assert sorted(ids) == sorted([f"{n}" for n in range(2_500)] + ["7/replayed/8"])
        assert await bus.replay("q", 0, 1) == 2_500, "what it sends is not read again"
        assert len(await texts(bus, "q")) == 5_000


@pytest.mark.promise("X7")
@run
async def test_replays_that_cannot_be_done(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q")
        await bus.create_queue("sessions", requires_session=True)
        await bus.create_queue("closed", status="send-disabled")
        await bus.create_topic("t")
        name = await bus.create_subscription("t", "s")
        await send(bus, "q", "a", "b")
        await consume(bus, "q", 1)
        bad: list[tuple[dict[str, Any], Any, str]] = [
            ({"start": 1}, errors.LogGap, "no longer has 1 to 1"),
            ({"start": 9}, errors.InvalidArgument, "not a sequence number"),
            ({"start": 2, "where": Filter(state="active")}, errors.InvalidArgument, "states"),
            ({"start": 2, "where": "n > 1"}, errors.InvalidArgument, "pass a Filter"),
            ({"start": 2, "where": Filter(sql="(")}, errors.InvalidFilter, "expected"),
            ({"start": 2, "to": "nothing"}, errors.EntityNotFound, "nothing"),
            ({"start": 2, "to": name}, errors.InvalidOperation, "send to t"),
            ({"start": 2, "to": "closed"}, errors.EntityDisabled, "send-disabled"),
            ({"start": 2, "to": "sessions"}, errors.InvalidOperation, "session_id"),
            ({"start": 2, "incarnation": 99}, errors.EntityReplaced, "recreated"),
            ({"start": 2, "partition": 1}, errors.InvalidArgument, "partitions 0 to 0"),
        ]
        for how, kind, words in bad:
            with pytest.raises(kind, match=words):
                await bus.replay("q", **({"partition": 0} | how))
        assert bus.queue("q").active_count == 1
        assert bus.queue("sessions").active_count == 0


@run
async def test_a_replay_that_fails_half_way_says_so(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await bus.create_queue("to", max_message_bytes=1_000)
        await bus.send_batch("q", [msg("x")] * 600)
        await send(bus, "q", "y" * 2_000)
        with pytest.raises(errors.Unknown, match="at least 500 messages were replayed"):
            await bus.replay("q", 0, 1, to="to")
        assert bus.queue("to").active_count == 500


@run
async def test_a_replay_into_a_partition_that_is_down(clock: ManualClock) -> None:
    async with Disks().bus(clock, "one", "two") as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await bus.create_queue("to", enable_partitioning=True)
        source = bus.broker.find("q").stores[0]
        target = "two" if source == "one" else "one"
        key = keys_of(bus.broker.find("to").stores.index(target))[0]
        await send(bus, "q", "a", partition_key=key)
        pull(bus, target)
        with pytest.raises(errors.PartitionOffline):
            await bus.replay("q", 0, 1, to="to")
        await reopen_store(bus, target)
        assert await bus.replay("q", 0, 1, to="to") == 1
        await settle(bus)
        assert bus.queue("to").active_count == 1
