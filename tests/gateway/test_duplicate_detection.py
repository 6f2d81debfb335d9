"""Duplicate detection (D): what is a duplicate, for how long, and what becomes of it (X1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onibus import Bus, Filter, Message
from onibus.core.errors import (
    InvalidArgument,
    InvalidOperation,
    MessageTooLarge,
    QuotaExceeded,
    Unchangeable,
    Unknown,
)
from onibus.core.path.route import partition_of
from tests.bus_helpers import (
    DAY,
    MINUTE,
    SECOND,
    Disks,
    ManualClock,
    bodies,
    crash,
    get,
    get_one,
    keys_of,
    msg,
    numbers,
    pass_ms,
    picture,
    run,
    send,
)

WINDOW = 10 * MINUTE
DETECTING = {"requires_duplicate_detection": True}
PARTITIONED = {"requires_duplicate_detection": True, "enable_partitioning": True}


async def is_duplicate(bus: Bus, message_id: str, **fields: Any) -> bool:
    """Send under an id and tell whether it was dropped."""
    sent = await bus.send("q", Message(message_id=message_id, **fields))
    return sent.duplicate_of is not None


@pytest.mark.promise("D1")
@run
async def test_a_duplicate_is_accepted_and_dropped(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", **DETECTING)
        first = await bus.send("q", msg("first", message_id="a"))
        before = bus.queue("q")
        second = await bus.send("q", msg("second", message_id="a"))
        after = bus.queue("q")
        assert (first.duplicate_of, second.duplicate_of) == (None, first.sequence_number)
        assert second.sequence_number == first.sequence_number
        assert (before.duplicates_dropped, after.duplicates_dropped) == (0, 1)
        assert (after.active_count, after.size_bytes) == (before.active_count, before.size_bytes)
        assert after.remembered_ids == before.remembered_ids
        third = await bus.send("q", msg("third", message_id="b"))
        assert third.sequence_number == first.sequence_number + 1, "no number was used up"
        assert bodies(await get(bus, "q")) == ["first", "third"]


@pytest.mark.promise("D2")
@run
async def test_nothing_but_the_identity_decides(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", **DETECTING)
        same = {"body": b"x", "properties": {"n": 1}, "subject": "label"}
        assert not await is_duplicate(bus, "a", **same)
        assert await is_duplicate(bus, "a", body=b"y", properties={"n": 2}, subject="other")
        assert not await is_duplicate(bus, "b", **same)
        # Opaque: neither case, nor spaces, nor the way a letter is composed is smoothed over.
        composed = ["\u00e4", "a\u0308"]
        for message_id in ("A", "a ", " a", *composed, "x" * 128, "x" * 127 + "y", "1/p"):
            assert not await is_duplicate(bus, message_id), message_id
            assert await is_duplicate(bus, message_id), message_id


@pytest.mark.promise("D3")
@run
async def test_the_identity_is_the_message_id_also_across_sessions(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_session=True, **DETECTING)
        assert not await is_duplicate(bus, "a", session_id="one")
        assert await is_duplicate(bus, "a", session_id="two")


@pytest.mark.promise("D3")
@pytest.mark.parametrize("field", ["session_id", "partition_key"])
@run
async def test_where_partitioned_the_key_belongs_to_the_identity(
    clock: ManualClock, field: str
) -> None:
    one, two = keys_of(5)
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", **PARTITIONED)
        assert not await is_duplicate(bus, "a", **{field: one})
        assert not await is_duplicate(bus, "a", **{field: two}), "though they share a partition"
        assert await is_duplicate(bus, "a", **{field: one})
        # Without any key the MessageId is the key, and an id of its own.
        assert not await is_duplicate(bus, "a")
        assert await is_duplicate(bus, "a", partition_key="a")
        # Where one ends and the other begins is not mixed up.
        tail = next(f"{n}" for n in range(1_000) if partition_of(f"{n}{one}", 16) == 5)
        assert not await is_duplicate(bus, f"a{tail}", **{field: one})
        assert not await is_duplicate(bus, "a", **{field: f"{tail}{one}"})


@pytest.mark.promise("D4")
@run
async def test_the_window_is_ten_minutes_unless_set(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", **DETECTING)
        assert bus.queue("q").settings.duplicate_detection_window_ms == WINDOW
        for window in (20 * SECOND, 7 * DAY):
            await bus.create_queue(f"w{window}", duplicate_detection_window_ms=window, **DETECTING)
        for window in (0, -1, 20 * SECOND - 1, 7 * DAY + 1):
            with pytest.raises(InvalidArgument):
                await bus.create_queue("no", duplicate_detection_window_ms=window, **DETECTING)
            with pytest.raises(InvalidArgument):
                await bus.change_queue("q", duplicate_detection_window_ms=window)
        assert bus.queue("q").settings.duplicate_detection_window_ms == WINDOW
        assert "no" not in bus.queues()


@pytest.mark.promise("D4")
@run
async def test_a_longer_window_keeps_and_a_shorter_one_forgets_at_once(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", **DETECTING)
        assert not await is_duplicate(bus, "a")
        clock.advance(5 * MINUTE)
        await bus.change_queue("q", duplicate_detection_window_ms=20 * MINUTE)
        clock.advance(10 * MINUTE)
        assert await is_duplicate(bus, "a"), "remembered for longer now"
        assert not await is_duplicate(bus, "b")
        clock.advance(2 * MINUTE)
        await bus.change_queue("q", duplicate_detection_window_ms=MINUTE)
        await bus.change_queue("q", duplicate_detection_window_ms=7 * DAY)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert not await is_duplicate(bus, "b"), "what was forgotten stays forgotten"


@pytest.mark.promise("D4")
@run
async def test_whether_duplicates_are_detected_cannot_change(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("on", **DETECTING)
        await bus.create_queue("off")
        with pytest.raises(Unchangeable):
            await bus.change_queue("on", requires_duplicate_detection=False)
        with pytest.raises(Unchangeable):
            await bus.change_queue("off", requires_duplicate_detection=True)
        await bus.change_queue("on", requires_duplicate_detection=True)
        assert not (await send(bus, "off", "x", "x", message_id="a"))[1].duplicate_of


async def complete(bus: Bus, clock: ManualClock, number: int) -> None:
    await bus.receiver("q").complete(await get_one(bus, "q"))


async def delete(bus: Bus, clock: ManualClock, number: int) -> None:
    await get_one(bus, "q", delete=True)


async def dead_letter_and_delete(bus: Bus, clock: ManualClock, number: int) -> None:
    await bus.receiver("q").dead_letter(await get_one(bus, "q"))
    await get_one(bus, "q", dead_letters=True, delete=True)


async def purge(bus: Bus, clock: ManualClock, number: int) -> None:
    assert await bus.purge("q") == 1


async def expire(bus: Bus, clock: ManualClock, number: int) -> None:
    await pass_ms(bus, clock, 2 * MINUTE)


@pytest.mark.promise("D5")
@pytest.mark.parametrize("end", [complete, delete, dead_letter_and_delete, purge, expire])
@run
async def test_the_memory_outlives_the_message(
    tmp_path: Path, clock: ManualClock, end: Any
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", default_time_to_live_ms=2 * MINUTE, **DETECTING)
        sent = await bus.send("q", msg(message_id="a"))
        await end(bus, clock, sent.sequence_number)
        assert bus.queue("q").active_count == 0
        assert bus.queue("q").dead_lettered_count == 0
        assert await is_duplicate(bus, "a")
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert await is_duplicate(bus, "a")
        assert await get(bus, "q") == []


@pytest.mark.promise("D5")
@run
async def test_the_memory_outlives_cancelling(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", **DETECTING)
        number = await bus.schedule("q", msg(message_id="a"), clock.wall() + MINUTE)
        await bus.cancel_scheduled("q", [number])
        assert await is_duplicate(bus, "a")


@pytest.mark.promise("D5")
@run
async def test_the_memory_outlives_a_crash(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", **DETECTING)
        await bus.send_batch("q", [msg(message_id=f"{n}") for n in range(100)])
        crash(bus)
    clock.advance(WINDOW - 1)
    async with Bus.open(tmp_path, clock=clock) as bus:
        again = await bus.send_batch("q", [msg(message_id=f"{n}") for n in range(100)])
        assert [one.duplicate_of for one in again] == list(range(1, 101))


@pytest.mark.promise("D5")
@run
async def test_the_window_ends_to_the_millisecond_and_duplicates_do_not_extend_it(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", **DETECTING)
        assert not await is_duplicate(bus, "a")
        clock.advance(WINDOW // 2)
        assert await is_duplicate(bus, "a")
        clock.advance(WINDOW // 2 - 1)
        assert await is_duplicate(bus, "a")
        clock.advance(1)
        assert not await is_duplicate(bus, "a")
        clock.advance(WINDOW - 1)
        assert await is_duplicate(bus, "a"), "recorded anew"


@pytest.mark.promise("D8")
@run
async def test_a_scheduled_message_records_its_id_when_it_is_scheduled(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", **DETECTING)
        due = clock.wall() + 15 * MINUTE
        number = await bus.schedule("q", msg("kept", message_id="a"), due)
        assert await bus.schedule("q", msg("dropped", message_id="a"), due + 1) == number
        assert await is_duplicate(bus, "a")
        assert bus.queue("q").scheduled_count == 1
        await pass_ms(bus, clock, WINDOW)
        assert not await is_duplicate(bus, "a"), "the window runs from the scheduling"
        await pass_ms(bus, clock, 5 * MINUTE)
        assert bodies(await get(bus, "q")) == ["", "kept"], "activation is no send: not checked"


@pytest.mark.promise("D9")
@run
async def test_a_refused_message_records_nothing(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", max_size_bytes=600, max_message_bytes=400, **DETECTING)
        await bus.send("q", msg("x" * 300, message_id="first"))
        before = picture(bus, "q")
        with pytest.raises(MessageTooLarge):
            await bus.send("q", msg("x" * 500, message_id="a"))
        with pytest.raises(QuotaExceeded):
            await bus.send("q", msg("x" * 300, message_id="a"))
        bad = msg(message_id="b", session_id="s", partition_key="p")
        with pytest.raises(InvalidOperation):
            await bus.send_batch("q", [msg(message_id="a"), bad])
        assert picture(bus, "q") == before
        assert not await is_duplicate(bus, "a"), "the retry gets in"
        assert not await is_duplicate(bus, "b")


@pytest.mark.promise("D9", "S3")
@pytest.mark.parametrize("kept", [False, True])
@run
async def test_after_a_failed_commit_the_retry_is_stored_exactly_once(
    clock: ManualClock, kept: bool
) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q", **DETECTING)
        await bus.send("q", msg("one", message_id="1"))
        disks.open["main"].fail_next(kept=kept)
        with pytest.raises(Unknown) as raised:
            await bus.send("q", msg("two", message_id="2"))
        assert raised.value.retryable
        await pass_ms(bus, clock, SECOND)
        assert await is_duplicate(bus, "2", body=b"two") == kept
        await bus.send("q", msg("three", message_id="3"))
        received = await get(bus, "q")
        assert (bodies(received), numbers(received)) == (["one", "two", "three"], [1, 2, 3])


@pytest.mark.promise("D10")
@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_inside_one_batch_the_second_of_two_is_a_duplicate(
    clock: ManualClock, partitioned: bool
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=partitioned, **DETECTING)
        ids = ["a", "b", "a", "c", "b", "a"]
        sent = await bus.send_batch("q", [msg(f"{at}", message_id=i) for at, i in enumerate(ids)])
        firsts = {i: sent[at].sequence_number for i, at in {"a": 0, "b": 1, "c": 3}.items()}
        assert [one.sequence_number for one in sent] == [firsts[i] for i in ids]
        assert [one.duplicate_of for one in sent] == [
            None,
            None,
            firsts["a"],
            None,
            firsts["b"],
            firsts["a"],
        ]
        assert sorted(bodies(await get(bus, "q"))) == ["0", "1", "3"]


@pytest.mark.promise("D11")
@run
async def test_without_a_message_id_a_message_is_never_a_duplicate(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", **DETECTING)
        await send(bus, "q", "same", "same")
        received = await get(bus, "q")
        assert bodies(received) == ["same", "same"]
        assert [message.message_id for message in received] == [None, None], "none is made up"


@pytest.mark.promise("D11")
@run
async def test_where_partitioned_a_message_needs_an_id_or_a_key(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", **PARTITIONED)
        with pytest.raises(InvalidOperation):
            await bus.send("q", msg("refused"))
        await send(bus, "q", "same", "same", partition_key="k")
        await send(bus, "q", "same", "same", session_id="k")
        assert bodies(await get(bus, "q")) == ["same"] * 4
        assert bus.queue("q").duplicates_dropped == 0


@pytest.mark.promise("X1")
@run
async def test_dropped_duplicates_are_counted_and_listed(
    tmp_path: Path, clock: ManualClock
) -> None:
    start = clock.wall()
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", **DETECTING)
        await send(bus, "q", "1", message_id="a")
        await send(bus, "q", "2", message_id="b")
        for message_id in ("b", "a", "b"):
            clock.advance(SECOND)
            await send(bus, "q", "x", message_id=message_id)
        await bus.purge("q", Filter())
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bus.queue("q").duplicates_dropped == 3
        assert bus.duplicates("q") == [
            ("b", start + SECOND, 2),
            ("a", start + 2 * SECOND, 1),
            ("b", start + 3 * SECOND, 2),
        ]


@pytest.mark.promise("X1")
@run
async def test_the_list_of_duplicates_keeps_the_last_thousand(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", **DETECTING)
        await bus.send_batch("q", [msg(message_id=f"{n}") for n in range(1_100)])
        await bus.send_batch("q", [msg(message_id=f"{n}") for n in range(1_100)])
        assert bus.queue("q").duplicates_dropped == 1_100
        assert [one[0] for one in bus.duplicates("q")] == [f"{n}" for n in range(100, 1_100)]
