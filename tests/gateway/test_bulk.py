"""Bulk sends in Arrow: the same promises as for single sends, batch by batch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onibus import Bus, SentBatch
from onibus.core.block import ARROW, ROWS
from onibus.core.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    MessageTooLarge,
    PartitionOffline,
    QuotaExceeded,
)
from onibus.core.message import encode_properties
from onibus.core.path import bulk
from onibus.core.path.route import partition_of
from onibus.core.rules.rule import Rule, SqlAction, SqlFilter
from onibus.gateway.bulk_sending import Admission
from tests.bus_helpers import (
    DAY,
    MINUTE,
    SECOND,
    Disks,
    ManualClock,
    bodies,
    crash,
    get,
    index_in,
    keys_of,
    msg,
    numbers,
    partition_at,
    pass_ms,
    peek_everything,
    picture,
    pull,
    run,
)

#: More than this many rows are kept in columns.
MANY = 200


def texts(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def batch(count: int = 3, prefix: str = "", **columns: list[Any]) -> pa.RecordBatch:
    """Return rows with these columns; their ids, unless given, and bodies are their numbers."""
    given: dict[str, Any] = {"message_id": texts(count, prefix)} | columns
    given["body"] = [text.encode() for text in texts(count, prefix)]
    return pa.record_batch({name: value for name, value in given.items() if value is not None})


def blocks_of(bus: Bus, entity: str, index: int = 0) -> list[int]:
    """Return the encodings of a partition's blocks."""
    log = partition_at(bus, entity, index).log
    return [log.read(place).encoding for place in log.places]


def repeats(sent: SentBatch) -> list[int | None]:
    found: list[int | None] = sent.duplicate_of.to_pylist()
    return found


@pytest.mark.parametrize("count", [1, 5, MANY])
@run
async def test_what_was_sent_in_columns_is_received_as_messages(
    tmp_path: Path, clock: ManualClock, count: int
) -> None:
    rows = batch(
        count,
        subject=[None if at % 2 else f"s{at}" for at in range(count)],
        properties=[encode_properties({"at": at}) for at in range(count)],
        to=["somebody"] * count,
    )
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", requires_duplicate_detection=True)
        sent = await bus.send_arrow("q", rows)
        assert (sent.accepted, sent.duplicates) == (count, 0)
        assert sent.sequence_number.to_pylist() == list(range(1, count + 1))
        assert sent.sequence_number.type == sent.duplicate_of.type == pa.int64()
        assert repeats(sent) == [None] * count
        assert blocks_of(bus, "q") == [ARROW if count == MANY else ROWS]
        assert len(peek_everything(bus, "q")) == count
    async with Bus.open(tmp_path, clock=clock) as bus:
        receiver = bus.receiver("q")
        received = await receiver.receive(count)
        assert bodies(received) == texts(count)
        for at, message in enumerate(received):
            assert message.message_id == f"{at}"
            assert message.properties == {"at": at}
            assert message.message.subject == (None if at % 2 else f"s{at}")
            assert message.message.to == "somebody"
        await receiver.complete(*received)
        assert not partition_at(bus, "q").log.places


@pytest.mark.promise("D1", "D5", "D10")
@run
async def test_duplicates_inside_across_and_against_single_sends(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", requires_duplicate_detection=True)
        await bus.send("q", msg("single", message_id="b"))
        sent = await bus.send_arrow("q", batch(5, message_id=["a", "b", "a", None, "c"]))
        assert (sent.accepted, sent.duplicates) == (3, 2)
        assert sent.sequence_number.to_pylist() == [2, 1, 2, 3, 4]
        assert repeats(sent) == [None, 1, 2, None, None]
        assert (await bus.send("q", msg("again", message_id="c"))).duplicate_of == 4
        again = await bus.send_arrow("q", batch(2, message_id=["c", "d"]))
        assert repeats(again) == [4, None]
        assert [(name, number) for name, _, number in bus.duplicates("q")] == [
            ("b", 1), ("a", 2), ("c", 4), ("c", 4)
        ]  # fmt: skip
    async with Bus.open(tmp_path, clock=clock) as bus:
        whole = await bus.send_arrow("q", batch(3, message_id=["a", "b", "c"]))
        assert (whole.accepted, whole.duplicates) == (0, 3)
        assert repeats(whole) == [2, 1, 4]
        assert bodies(await get(bus, "q")) == ["single", "0", "3", "4", "1"]
        await pass_ms(bus, clock, 10 * MINUTE)
        assert (await bus.send_arrow("q", batch(1, message_id=["a"]))).accepted == 1


@pytest.mark.promise("D10")
@run
async def test_singles_and_bulk_in_one_commit_keep_their_order(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_duplicate_detection=True)
        # A commit is on its way while the others gather.
        first = asyncio.create_task(bus.send("q", msg("first", message_id="first")))
        bulk = [
            asyncio.create_task(bus.send_arrow("q", batch(100, message_id=texts(100, str(n % 2)))))
            for n in range(4)
        ]
        singles = [
            asyncio.create_task(bus.send("q", msg("s", message_id=f"0{at}"))) for at in range(3)
        ]
        results = await asyncio.gather(*bulk)
        assert sum(one.accepted for one in results) + 3 >= 200
        stored = [sent for sent in await asyncio.gather(*singles) if sent.duplicate_of is None]
        assert sum(one.accepted for one in results) + len(stored) == 200
        assert (await first).sequence_number == 1
        seen = peek_everything(bus, "q")
        assert numbers(seen) == list(range(1, 202))
        assert len({message.message_id for message in seen}) == 201


@pytest.mark.promise("D8", "S5", "S6")
@run
async def test_rows_that_are_scheduled_wait_for_their_time(
    tmp_path: Path, clock: ManualClock
) -> None:
    due: list[int | None] = [None] * MANY
    due[1], due[7] = clock.wall() + MINUTE, clock.wall() + 2 * MINUTE
    due[9] = clock.wall() - 1
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", requires_duplicate_detection=True)
        sent = await bus.send_arrow("q", batch(MANY, scheduled_enqueue_time_ms=due))
        assert sent.accepted == MANY
        assert bus.queue("q").scheduled_count == 2
        waiting = [m for m in peek_everything(bus, "q") if m.state == "scheduled"]
        assert numbers(waiting) == [2, 8]
        receiver = bus.receiver("q", delete=True)
        assert len(await receiver.receive(MANY)) == MANY - 2
        assert (await bus.send_arrow("q", batch(2))).duplicates == 2
    async with Bus.open(tmp_path, clock=clock) as bus:
        await pass_ms(bus, clock, MINUTE)
        (message,) = await get(bus, "q", delete=True)
        assert (message.body, message.sequence_number) == (b"1", MANY + 1)
        await bus.cancel_scheduled("q", [8])
        await pass_ms(bus, clock, 2 * MINUTE)
        assert not await get(bus, "q")


@pytest.mark.promise("B2")
@run
async def test_rows_expire_each_at_its_time(tmp_path: Path, clock: ManualClock) -> None:
    ttl: list[int | None] = [None] * MANY
    ttl[0], ttl[5], ttl[6] = SECOND, SECOND, 2 * DAY
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", default_time_to_live_ms=DAY, dead_letter_on_expiration=True)
        await bus.send_arrow("q", batch(MANY, time_to_live_ms=ttl))
    async with Bus.open(tmp_path, clock=clock) as bus:
        await pass_ms(bus, clock, SECOND)
        assert bodies(await get(bus, "q", dead_letters=True, delete=True)) == ["0", "5"]
        (message,) = bus.peek("q", start=7, limit=1)
        # The smaller of its own and the queue's.
        assert message.expires_at_ms == clock.wall() - SECOND + DAY
        await pass_ms(bus, clock, DAY)
        assert bus.queue("q").dead_lettered_count == MANY - 2


@pytest.mark.promise("B4")
@run
async def test_rows_join_their_sessions(tmp_path: Path, clock: ManualClock) -> None:
    sessions = [f"s{at % 3}" for at in range(MANY)]
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", requires_session=True)
        with pytest.raises(InvalidOperation, match=r"row 2: .*session_id"):
            await bus.send_arrow("q", batch(3, session_id=["a", "b", None]))
        await bus.send_arrow("q", batch(MANY, session_id=sessions))
        await bus.send("q", msg("single", session_id="s1"))
    async with Bus.open(tmp_path, clock=clock) as bus:
        session = await bus.accept_session("q", "s1")
        assert bodies(await session.receive(MANY)) == [*texts(MANY)[1::3], "single"]
        assert (await bus.accept_session("q")).session_id == "s0"


@pytest.mark.promise("P3", "P4", "P13", "D3")
@run
async def test_rows_go_to_the_partitions_of_their_keys(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, stores=["a", "b"], clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True, requires_duplicate_detection=True)
        sent = await bus.send_arrow("q", batch(MANY))
        found = [number >> 48 for number in sent.sequence_number.to_pylist()]
        assert found == [partition_of(name, 16) for name in texts(MANY)]
        single = await bus.send("q", msg("single", message_id="77"))
        assert single.duplicate_of == sent.sequence_number[77].as_py()
        # One id under two keys is two messages, under one key a duplicate.
        keyed = await bus.send_arrow(
            "q", batch(3, message_id=["x"] * 3, partition_key=["k", "l", "k"])
        )
        assert keyed.accepted == 2
        assert repeats(keyed)[2] == keyed.sequence_number[0].as_py()
        with pytest.raises(InvalidOperation, match="row 1: "):
            await bus.send_arrow("q", batch(2, message_id=["x", None]))
    async with Bus.open(tmp_path, stores=["a", "b"], clock=clock) as bus:
        assert (await bus.send_arrow("q", batch(MANY))).duplicates == MANY
        assert bus.queue("q").active_count == MANY + 2


@pytest.mark.promise("P4", "P5")
@run
async def test_keyless_rows_share_a_partition_that_is_up(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q", enable_partitioning=True)
        homes = []
        for _ in range(16):
            sent = await bus.send_arrow("q", batch(5))
            (home,) = {number >> 48 for number in sent.sequence_number.to_pylist()}
            homes.append(home)
        assert sorted(homes) == list(range(16))
        pull(bus, "a")
        down, up = index_in(bus, "q", "a"), index_in(bus, "q", "b")
        for _ in range(16):
            sent = await bus.send_arrow("q", batch(5))
            home = sent.sequence_number[0].as_py() >> 48
            assert bus.broker.find("q").stores[home] == "b"
        mixed = [*keys_of(up, 1), *keys_of(down, 1)]
        before = bus.queue("q").active_count
        with pytest.raises(PartitionOffline):
            await bus.send_arrow("q", batch(2, partition_key=mixed))
        assert bus.queue("q").active_count == before


@pytest.mark.promise("F1", "F4", "F5", "F6", "F7")
@run
async def test_fifo_rows_get_ids_of_their_content(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("plain", fifo=True)
        await bus.create_queue("content", fifo=True, content_based_deduplication=True)
        await bus.create_queue(
            "any", fifo=True, content_based_deduplication=True, content_matches_any_id=True
        )
        groups = ["g"] * 3
        with pytest.raises(InvalidOperation, match=r"row 1: .*deduplication id"):
            await bus.send_arrow("plain", batch(3, message_id=["a", None, "c"], session_id=groups))
        rows = pa.record_batch({"session_id": groups, "body": [b"x", b"y", b"x"]})
        for queue in ("content", "any"):
            sent = await bus.send_arrow(queue, rows)
            assert repeats(sent) == [None, None, 1]
        (first, _) = await bus.fifo_receiver("content").receive(10)
        single = await bus.send(
            "content", msg("other", message_id=first.message_id, session_id="h")
        )
        assert single.duplicate_of == 1
    async with Bus.open(tmp_path, clock=clock) as bus:
        renamed = pa.record_batch({"session_id": ["g"], "body": [b"y"], "message_id": ["new"]})
        assert (await bus.send_arrow("content", renamed)).accepted == 1
        assert repeats(await bus.send_arrow("any", renamed)) == [2]


@pytest.mark.promise("B3", "D6")
@run
async def test_a_topic_fans_rows_out(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_topic("t", requires_duplicate_detection=True)
        everything = await bus.create_subscription("t", "all")
        some = await bus.create_subscription(
            "t", "some", rules=[Rule("r", SqlFilter("at < 3"), SqlAction("SET seen = at + 1"))]
        )
        grouped = await bus.create_subscription("t", "grouped", requires_session=True)
        rows = batch(
            MANY,
            properties=[encode_properties({"at": at}) for at in range(MANY)],
            session_id=["s" if at < 5 else None for at in range(MANY)],
        )
        assert (await bus.send_arrow("t", rows)).accepted == MANY
        assert (await bus.send_arrow("t", rows)).duplicates == MANY
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bodies(await get(bus, everything, MANY)) == texts(MANY)
        got = await get(bus, some)
        assert [(message.body, message.properties["seen"]) for message in got] == [
            (b"0", 1), (b"1", 2), (b"2", 3)
        ]  # fmt: skip
        session = await bus.accept_session(grouped, "s")
        assert bodies(await session.receive(10)) == texts(5)
        assert bus.subscription(grouped).dead_lettered_count == MANY - 5


@pytest.mark.promise("B7", "P1")
@run
async def test_a_full_queue_takes_nothing_of_a_batch(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", max_size_bytes=20_000, max_message_bytes=1_000)
        body = pa.array([b"x" * 900] * MANY)
        before = picture(bus, "q")
        with pytest.raises(QuotaExceeded):
            await bus.send_arrow("q", pa.record_batch({"body": body}))
        with pytest.raises(MessageTooLarge, match="row 1: "):
            await bus.send_arrow("q", pa.record_batch({"body": [b"", b"x" * 1_000]}))
        assert picture(bus, "q") == before
        assert (await bus.send_arrow("q", pa.record_batch({"body": body[:10]}))).accepted == 10


@run
async def test_a_batch_in_any_layout_is_the_same(clock: ManualClock) -> None:
    plain = batch(MANY, subject=["a", None] * (MANY // 2), time_to_live_ms=[None, 5_000] * 100)
    strange = pa.record_batch(
        {
            "body": plain["body"].cast(pa.large_binary()),
            "time_to_live_ms": plain["time_to_live_ms"].cast(pa.int32()),
            "subject": plain["subject"].dictionary_encode(),
            "message_id": plain["message_id"].cast(pa.string_view()),
            "reply_to": pa.nulls(MANY),
        }
    )
    longer = pa.concat_batches([batch(7, "before"), plain.select(["message_id", "body"])])
    table = pa.Table.from_batches([plain.slice(0, 50), plain.slice(50)])
    seen = []
    for number, given in enumerate((plain, strange, table, plain.slice(3, 90), longer[7:])):
        async with Bus.ephemeral(clock=clock) as bus:
            await bus.create_queue("q", requires_duplicate_detection=True)
            await bus.send_arrow("q", given)
            found = peek_everything(bus, "q")
            seen.append([(m.message_id, m.body, m.message.subject, m.expires_at_ms) for m in found])
            assert len(found) == given.num_rows, number
    assert seen[0] == seen[1] == seen[2]
    assert seen[3] == seen[0][3:93]
    assert [row[:2] for row in seen[4]] == [row[:2] for row in seen[0]]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (pa.record_batch({"body": [b"x"], "colour": ["red"], "size": [1]}), "colour, size"),
        (pa.record_batch({"body": ["text"]}), "column body is string: use binary"),
        (pa.record_batch({"message_id": [1]}), "message_id is int64"),
        (pa.record_batch({"time_to_live_ms": [1.5]}), "time_to_live_ms is double"),
        (pa.record_batch({"hop_count": pa.array([2**63], pa.uint64())}), "cannot encode"),
        (pa.record_batch({"properties": [b"none"]}), "row 0: properties must be"),
        (pa.record_batch({"format": ["", "other"]}), "row 1: format is 'other'"),
        (pa.RecordBatch.from_arrays([pa.array([b""])] * 2, ["body"] * 2), "a column twice"),
        (pa.record_batch({"body": pa.array([], pa.binary())}), "send 1 to 10000"),
        (pa.record_batch({"body": pa.nulls(10_001, pa.binary())}), "send 1 to 10000"),
        ([{"body": b"x"}], "a pyarrow RecordBatch or Table, not a list"),
    ],
)
@run
async def test_what_is_no_batch_of_messages_is_refused(
    clock: ManualClock, rows: Any, what: str
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        with pytest.raises(InvalidArgument, match=what):
            await bus.send_arrow("q", rows)
        assert bus.queue("q").active_count == 0


@run
async def test_invalid_utf8_is_refused(clock: ManualClock) -> None:
    offsets, data = pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")
    broken = pa.StringArray.from_buffers(1, offsets, data)
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        with pytest.raises(InvalidArgument, match="UTF8"):
            await bus.send_arrow("q", pa.record_batch({"message_id": broken}))


@run
async def test_where_bulk_sends_cannot_go(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("off", status="send-disabled")
        await bus.create_topic("t")
        subscription = await bus.create_subscription("t", "s")
        with pytest.raises(EntityNotFound):
            await bus.send_arrow("none", batch())
        with pytest.raises(EntityDisabled):
            await bus.send_arrow("off", batch())
        with pytest.raises(InvalidOperation, match="is a subscription"):
            await bus.send_arrow(subscription, batch())


@run
async def test_an_entity_that_changes_meanwhile_is_asked_again(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        admission = Admission(bus.broker, "q", batch())
        admission.admit()
        await bus.delete_queue("q")
        await bus.create_queue("q", requires_session=True)
        with pytest.raises(InvalidOperation, match=r"row 0: .*session_id"):
            await bus.ask(admission.send)
        assert bus.queue("q").active_count == 0


@pytest.mark.promise("S3", "D9")
@run
async def test_a_crash_before_the_commit_leaves_no_trace(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    await bus.create_queue("q", requires_duplicate_detection=True)
    await bus.send_arrow("q", batch(MANY))
    lost = asyncio.create_task(bus.send_arrow("q", batch(MANY, "lost")))
    await asyncio.sleep(0)
    crash(bus)
    lost.cancel()
    async with disks.bus(clock) as bus:
        assert bus.queue("q").active_count == MANY
        sent = await bus.send_arrow("q", batch(MANY, "lost"))
        assert sent.sequence_number.to_pylist() == list(range(MANY + 1, 2 * MANY + 1))


@run
async def test_what_is_left_of_a_large_batch_is_compacted(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await bus.send_arrow("q", pa.record_batch({"body": [b"x" * 2_000] * 3_000}))
        assert blocks_of(bus, "q") == [ARROW] * 2
        receiver = bus.receiver("q")
        received = await receiver.receive(3_000)
        kept = received[::100]
        await receiver.complete(*[one for at, one in enumerate(received) if at % 100])
        for message in kept:
            await receiver.abandon(message)
        await pass_ms(bus, clock, 10 * SECOND)
        assert partition_at(bus, "q").log.total_bytes < 100_000
        assert numbers(peek_everything(bus, "q")) == numbers(kept)
    async with Bus.open(tmp_path, clock=clock) as bus:
        found = peek_everything(bus, "q")
        assert {message.body for message in found} == {b"x" * 2_000}
        assert numbers(found) == numbers(kept)


@pytest.mark.promise("S4")
@pytest.mark.parametrize("count", [3, 100])
@run
async def test_stamps_do_not_go_back_with_the_clock(clock: ManualClock, count: int) -> None:
    bus = await Disks().bus(clock)
    await bus.create_queue("q")
    await bus.send("q", msg("before"))
    clock.jump(-10 * SECOND)
    bus.broker.clock.observe()
    await bus.send_arrow("q", batch(count))
    assert len({message.enqueued_time_ms for message in bus.peek("q", limit=200)}) == 1
    await bus.close()


@pytest.mark.promise("D1", "R3")
@run
async def test_few_large_rows_are_read_before_the_loop_stores_them(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = [encode_properties({f"p{at}": row for at in range(50)}) for row in range(6)]
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_duplicate_detection=True)
        await bus.send("q", msg("known", message_id="2"))
        admission = await bus.admit_arrow("q", batch(6, properties=properties))

        def read(*_: Any) -> Any:
            raise AssertionError("rows are read on the event loop")

        monkeypatch.setattr(bulk, "messages_of", read)
        sent = await bus.ask(admission.send)
        monkeypatch.undo()
        assert (sent.accepted, sent.duplicates) == (5, 1)
        there = bus.peek("q")[1:]
        assert [one.body for one in there] == [b"0", b"1", b"3", b"4", b"5"]
        assert [one.properties["p49"] for one in there] == [0, 1, 3, 4, 5]
