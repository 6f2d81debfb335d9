"""Staged sends: invisible until they are published, and published once (R6)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from onibus.core.errors import (
    BatchTooOld,
    EntityDisabled,
    EntityNotFound,
    InvalidArgument,
    MessageTooLarge,
    NotStaged,
    OnibusError,
)
from onibus.core.records import BLOCKS
from onibus.directory import works
from tests.bus_helpers import (
    HOUR,
    KEYS,
    MINUTE,
    SECOND,
    Disks,
    ManualClock,
    bodies,
    crash,
    get,
    msg,
    pass_ms,
    peek_everything,
    picture,
    run,
    send,
    settle,
)
from tests.gateway.fragile import FragileDisks, nothing_staged
from tests.gateway.staging_helpers import listed, publish, stage
from tests.gateway.topic_helpers import sound, there, topic_with
from tests.log_helpers import read

stores = pytest.mark.parametrize("stores", [("a",), ("a", "b")])


@pytest.mark.promise("R6", "D10")
@stores
@run
async def test_what_is_staged_is_invisible_until_it_is_published(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, *stores) as bus:
        await bus.create_queue("q", requires_duplicate_detection=True)
        before = picture(bus, "q")
        await stage(bus, 0, "a", "b")
        await stage(bus, 1, "c")
        assert picture(bus, "q") == before
        assert await get(bus, "q") == []
        # No number was taken and no id recorded: what is sent meanwhile comes first.
        (sent,) = await send(bus, "q", "a", message_id="a")
        assert (sent.sequence_number, sent.duplicate_of) == (1, None)
        assert await publish(bus, (0, 0), (1, 0)) == (2, 1, False)
        assert [(m.sequence_number, m.body) for m in peek_everything(bus, "q")] == [
            (1, b"a"),
            (2, b"b"),
            (3, b"c"),
        ]
        (sent,) = await send(bus, "q", "c", message_id="c")
        assert sent.duplicate_of == 3
        await settle(bus)
        nothing_staged(disks)
        sound(bus)


@pytest.mark.promise("R6")
@run
async def test_attempts_that_are_not_named_vanish(clock: ManualClock) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await stage(bus, 0, "lost 0")
        await stage(bus, 0, "won 0", attempt=1)
        await stage(bus, 1, "won 1")
        await stage(bus, 1, "lost 1", attempt=1)
        await stage(bus, 2, "lost 2")
        assert len(listed(bus)) == 5
        assert await publish(bus, (1, 0), (0, 1)) == (2, 0, False)
        assert there(bus, "q") == ["won 1", "won 0"]
        assert listed(bus) == []
        await settle(bus)
        nothing_staged(disks)


@pytest.mark.promise("R6")
@run
async def test_an_attempt_that_was_staged_twice_is_published_once(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        # The task did not hear that the first one was staged.
        await stage(bus, 0, "x")
        await stage(bus, 0, "x")
        assert await publish(bus, (0, 0)) == (1, 0, False)
        assert there(bus, "q") == ["x"]
        assert listed(bus) == []


@pytest.mark.promise("R6")
@stores
@run
async def test_the_last_batch_again_does_nothing_and_an_older_one_is_an_error(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    disks = Disks()
    async with disks.bus(clock, *stores) as bus:
        await bus.create_queue("q")
        for batch in (4, 7):
            await stage(bus, 0, f"{batch}", batch=batch)
            assert await publish(bus, (0, 0), batch=batch) == (1, 0, False)
    async with disks.bus(clock, *stores) as bus:
        for _ in range(2):
            assert await publish(bus, (0, 0), batch=7) == (0, 0, True)
        # A job that publishes again may have staged again before.
        await stage(bus, 1, "7", batch=7, attempt=5)
        assert await publish(bus, (1, 5), batch=7) == (0, 0, True)
        with pytest.raises(BatchTooOld):
            await publish(bus, (0, 0), batch=6)
        with pytest.raises(BatchTooOld):
            await stage(bus, 0, "6", batch=6)
        assert there(bus, "q") == ["4", "7"]
        await stage(bus, 0, "8", batch=8)
        assert await publish(bus, (0, 0), batch=8) == (1, 0, False)
        assert there(bus, "q") == ["4", "7", "8"]
        assert listed(bus) == []


@pytest.mark.promise("R6")
@run
async def test_a_missing_attempt_publishes_nothing(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await stage(bus, 0, "x")
        await stage(bus, 0, "of the next batch", batch=1)
        for attempts in ([(0, 0), (1, 0)], [(0, 1)], [(0, 0, 2)]):
            with pytest.raises(NotStaged):
                await publish(bus, *attempts)
        assert there(bus, "q") == []
        assert len(listed(bus)) == 2
        assert await publish(bus, (0, 0)) == (1, 0, False)
        assert await publish(bus, (0, 0), batch=1) == (1, 0, False)


@pytest.mark.promise("R6")
@run
async def test_a_batch_without_rows_counts(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await stage(bus, 0, "lost")
        assert await publish(bus) == (0, 0, False)
        assert await publish(bus) == (0, 0, True)
        assert (there(bus, "q"), listed(bus)) == ([], [])


@pytest.mark.promise("R6")
@run
async def test_a_task_stages_in_pieces(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        for piece in (2, 0, 1):
            await stage(bus, 0, f"piece {piece}", piece=piece)
        await stage(bus, 1, "other")
        assert await publish(bus, (1, 0), (0, 0, 3), (5, 5, 0)) == (4, 0, False)
        assert there(bus, "q") == ["other", "piece 0", "piece 1", "piece 2"]


@pytest.mark.promise("R6")
@stores
@run
async def test_what_is_never_published_goes_after_its_lease(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    disks = FragileDisks()
    bus = await disks.bus(clock, *stores)
    await bus.create_queue("q")
    await stage(bus, 0, "short", lease_ms=MINUTE)
    await stage(bus, 1, "long")
    await pass_ms(bus, clock, MINUTE - 1)
    assert len(listed(bus)) == 2
    await bus.close()
    async with disks.bus(clock, *stores) as bus:
        await pass_ms(bus, clock, 1)
        await settle(bus)
        assert [task for _, task, *_ in listed(bus)] == [1]
        with pytest.raises(NotStaged):
            await publish(bus, (0, 0), (1, 0))
        await pass_ms(bus, clock, HOUR)
        assert listed(bus) == []
        nothing_staged(disks)


@pytest.mark.promise("R6")
@run
async def test_discarding(clock: ManualClock) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        for batch in range(3):
            await stage(bus, 0, "x", batch=batch)
            await stage(bus, 1, "x", batch=batch)
        await stage(bus, 0, "x", producer="other")
        assert await bus.discard("q", producer="spark", batch=1) == 2
        assert [batch for batch, *_ in listed(bus)] == [0, 0, 2, 2, 0]
        assert await bus.discard("q", producer="spark") == 4
        assert await bus.discard("q", producer="spark") == 0
        assert [one.producer for one in bus.staged("q")] == ["other"]
        with pytest.raises(NotStaged):
            await publish(bus, (0, 0))
        assert await bus.discard("q", producer="other") == 1
        await settle(bus)
        nothing_staged(disks)


@pytest.mark.promise("R6")
@run
async def test_what_is_staged_is_listed(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await bus.create_queue("r")
        await stage(bus, 3, "x", "y", batch=5, attempt=2, piece=1, lease_ms=MINUTE)
        (one,) = bus.staged("q")
        assert (one.producer, one.batch, one.task, one.attempt, one.piece) == ("spark", 5, 3, 2, 1)
        assert one.count == 2
        assert one.until_ms == bus.broker.clock.now() + MINUTE
        assert bus.staged("r") == []
        with pytest.raises(EntityNotFound):
            bus.staged("nowhere")


@pytest.mark.promise("R6")
@run
async def test_producers_of_different_entities_are_apart(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        for queue in ("q", "r"):
            await bus.create_queue(queue)
            await stage(bus, 0, queue, queue=queue, batch=1)
        assert await publish(bus, (0, 0), batch=1) == (1, 0, False)
        assert (there(bus, "q"), there(bus, "r")) == (["q"], [])
        assert await publish(bus, batch=3) == (0, 0, False)
        assert await publish(bus, (0, 0), batch=1, queue="r") == (1, 0, False)
        assert there(bus, "r") == ["r"]


@pytest.mark.promise("R6", "D10")
@stores
@run
async def test_rows_that_repeat_what_was_sent_or_staged(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("q", requires_duplicate_detection=True)
        await send(bus, "q", "old", message_id="old")
        await stage(bus, 0, "old", "x", "y", "x")
        await stage(bus, 1, "y", "z")
        assert await publish(bus, (0, 0), (1, 0)) == (3, 3, False)
        assert there(bus, "q") == ["old", "x", "y", "z"]
        assert bus.queue("q").duplicates_dropped == 3
        # The window counts from the publishing.
        await pass_ms(bus, clock, 10 * MINUTE - 1)
        (sent,) = await send(bus, "q", "again", message_id="z")
        assert sent.duplicate_of == 4


@pytest.mark.promise("R6", "B3")
@stores
@run
async def test_staged_for_a_topic(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        left, right = await topic_with(bus, "left", "right", enable_partitioning=True)
        rows = [msg(key, partition_key=key) for key in KEYS]
        await bus.stage("t", rows, producer="spark", batch=0, task=0, attempt=0)
        await bus.delete_subscription(right)
        late = await bus.create_subscription("t", "late")
        assert await publish(bus, (0, 0), queue="t") == (16, 0, False)
        assert there(bus, left) == there(bus, late) == KEYS
        with pytest.raises(OnibusError):
            await stage(bus, 0, "x", queue=left)
        sound(bus)


@pytest.mark.promise("R6", "B4", "S5", "B2")
@stores
@run
async def test_sessions_schedule_and_life(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("s", requires_session=True, dead_letter_on_expiration=True)
        due = clock.wall() + HOUR // 2
        rows = [
            msg("first", session_id="x"),
            msg("later", session_id="x", scheduled_enqueue_time_ms=due),
            msg("short", session_id="y", time_to_live_ms=MINUTE),
        ]
        await bus.stage("s", rows, producer="spark", batch=0, task=0, attempt=0)
        await pass_ms(bus, clock, HOUR // 2 - SECOND)
        assert await publish(bus, (0, 0), queue="s") == (3, 0, False)
        # A life begins when its message is published; a moment is a moment.
        assert [m.state for m in peek_everything(bus, "s")] == ["active", "scheduled", "active"]
        await pass_ms(bus, clock, MINUTE)
        assert bodies(peek_everything(bus, "s", dead_letters=True)) == ["short"]
        assert bodies(await (await bus.accept_session("s", "x")).receive(5)) == ["first", "later"]


@pytest.mark.promise("R6", "D10")
@pytest.mark.parametrize("count", [5, 400])
@stores
@run
async def test_rows_in_arrow(clock: ManualClock, stores: tuple[str, ...], count: int) -> None:
    disks = FragileDisks()
    bus = await disks.bus(clock, *stores)
    await bus.create_queue("p", enable_partitioning=True, requires_duplicate_detection=True)
    ids = [str(n) for n in range(count)]
    table = pa.table({"message_id": ids, "body": [text.encode() for text in ids]})
    for task in (0, 1):
        await bus.stage_arrow("p", table, producer="spark", batch=0, task=task, attempt=0)
    assert there(bus, "p") == []
    assert [one.count for one in bus.staged("p")] == [count, count]
    crash(bus)
    async with disks.bus(clock, *stores) as bus:
        await bus.send("p", msg("1", message_id="1"))
        assert await publish(bus, (1, 0), queue="p") == (count - 1, 1, False)
        assert sorted(there(bus, "p")) == sorted(ids)
        await settle(bus)
        nothing_staged(disks)
        sound(bus)


@pytest.mark.promise("R6", "R3")
@pytest.mark.parametrize("kept", [True, False])
@run
async def test_columns_are_written_once(
    clock: ManualClock, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:
        monkeypatch.setattr(works, "KEPT_BYTES_MAX", 0)
    disks = FragileDisks()
    bus = await disks.bus(clock, "a")
    await bus.create_queue("q", requires_session=True, retention_ms=HOUR)
    count = 200
    table = pa.table(
        {
            "body": [b"%d" % at for at in range(count)],
            "session_id": [f"s{at % 3}" for at in range(count)],
            "time_to_live_ms": [None if at % 2 else MINUTE for at in range(count)],
        }
    )
    await bus.stage_arrow("q", table, producer="spark", batch=0, task=0, attempt=0)
    written = dict(disks.rows("a", BLOCKS))
    assert len(written) == 1
    assert await publish(bus, (0, 0)) == (count, 0, False)
    await settle(bus)
    assert disks.rows("a", BLOCKS) == written, "the rows are in the log as they were staged"
    nothing_staged(disks)
    for _ in range(2):
        seen = peek_everything(bus, "q")
        assert [(m.sequence_number, m.body) for m in seen] == [
            (at + 1, b"%d" % at) for at in range(count)
        ]
        rows = await read(bus, "q")
        assert [row["body"] for row in rows] == [b"%d" % at for at in range(count)]
        assert {row["enqueued_time_ms"] for row in rows} == {clock.wall()}
        sound(bus)
        crash(bus)
        bus = await disks.bus(clock, "a")
    session = await bus.accept_session("q", "s1")
    assert bodies(await session.receive(500)) == [str(at) for at in range(1, count, 3)]
    await pass_ms(bus, clock, MINUTE)
    assert len(peek_everything(bus, "q")) == count // 2
    await bus.purge("q")
    await pass_ms(bus, clock, 2 * HOUR)
    await settle(bus)
    assert disks.rows("a", BLOCKS) == {}, "the block goes with its last row"
    await bus.close()


@pytest.mark.promise("R6")
@run
async def test_what_is_wrong_is_refused_at_once(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q", max_message_bytes=200)
        await bus.create_queue("paused", status="send-disabled")
        text: Any = "text"
        refused: list[tuple[Any, type[Exception]]] = [
            (stage(bus, 0), InvalidArgument),
            (stage(bus, 0, "x" * 300), InvalidArgument),
            (bus.stage("q", [msg("x" * 300)], producer="p", batch=0, task=0, attempt=0),
             MessageTooLarge),
            (bus.stage("q", text, producer="p", batch=0, task=0, attempt=0), InvalidArgument),
            (stage(bus, 0, "x", queue="nowhere"), EntityNotFound),
            (stage(bus, 0, "x", queue="paused"), EntityDisabled),
            (stage(bus, 0, "x", producer=""), InvalidArgument),
            (stage(bus, 0, "x", producer="\ud800"), InvalidArgument),
            (stage(bus, 0, "x", producer=1), InvalidArgument),
            (stage(bus, 0, "x", batch=-1), InvalidArgument),
            (stage(bus, 0, "x", batch=2**80), InvalidArgument),
            (stage(bus, 0, "x", piece=None), InvalidArgument),
            (stage(bus, 0, "x", lease_ms=0), InvalidArgument),
            (stage(bus, 0, "x", lease_ms=2**80), InvalidArgument),
            (publish(bus, (0,)), InvalidArgument),
            (publish(bus, (0, 0, "2")), InvalidArgument),  # type: ignore[arg-type]
            (publish(bus, (0, [])), InvalidArgument),  # type: ignore[arg-type]
            (publish(bus, 7), InvalidArgument),  # type: ignore[arg-type]
            (publish(bus, (0, 0), batch=2**80), InvalidArgument),
        ]  # fmt: skip
        for act, error in refused:
            with pytest.raises(error):
                await act
        await stage(bus, 0, "x")
        with pytest.raises(InvalidArgument, match="twice"):
            await publish(bus, (0, 0), (0, 0))
        assert await publish(bus, (0, 0)) == (1, 0, False)


@pytest.mark.promise("R6")
@pytest.mark.parametrize("kept", [0, 200, works.KEPT_BYTES_MAX])
@run
async def test_what_does_not_fit_into_memory_is_read_back(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(works, "KEPT_BYTES_MAX", kept)
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q", enable_partitioning=True)
        for batch in range(3):
            texts = [f"{batch}-{number}" for number in range(4)]
            for task, text in enumerate(texts):
                await stage(bus, task, text + "x" * 80, batch=batch)
            rows = pa.table({"body": [text.encode() for text in texts]})
            await bus.stage_arrow("q", rows, producer="spark", batch=batch, task=4, attempt=0)
            await stage(bus, 4, "lost", batch=batch, attempt=1)
            done = await publish(bus, *[(task, 0) for task in range(5)], batch=batch)
            assert done == (8, 0, False)
        assert len(peek_everything(bus, "q")) == 24
        # What was published or dropped takes no room any more.
        assert bus.broker.works._kept == 0
