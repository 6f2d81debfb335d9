"""Duplicate detection (D) through the server: what is one, for how long, and who is told."""

from __future__ import annotations

from typing import Any

import pytest

from onibus.core.errors import (
    InvalidArgument,
    InvalidOperation,
    MessageTooLarge,
    QuotaExceeded,
    Unchangeable,
)
from tests.bus_helpers import keys_of, run
from tests.over_http.helpers import (
    DAY,
    MINUTE,
    SECOND,
    Open,
    bodies,
    everything,
    get,
    get_one,
    msg,
    now,
    numbers,
)

WINDOW = 10 * MINUTE
DETECTING = {"requires_duplicate_detection": True}


async def is_duplicate(client: Any, message_id: str, body: str = "x", **fields: Any) -> bool:
    """Send under an id and tell whether it was dropped."""
    sent = await client.send("q", msg(body, message_id=message_id, **fields))
    return sent.duplicate_of is not None


@pytest.mark.promise("D1", "X1", "X9")
@run
async def test_a_duplicate_is_accepted_dropped_and_seen(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", **DETECTING)
        first = await client.send("q", msg("first", message_id="a"))
        before = await client.queue("q")
        second = await client.send("q", msg("second", message_id="a"))
        after = await client.queue("q")
        assert (first.sequence_number, first.duplicate_of) == (1, None)
        assert (second.sequence_number, second.duplicate_of) == (1, 1)
        assert (before.duplicates_dropped, after.duplicates_dropped) == (0, 1)
        assert (after.active_count, after.size_bytes) == (before.active_count, before.size_bytes)
        [(message_id, time_ms, of)] = await client.duplicates("q")
        assert (message_id, of) == ("a", 1)
        assert abs(await now(client) - time_ms) < MINUTE
        assert (await client.send("q", msg("third", message_id="b"))).sequence_number == 2
        assert bodies(await get(client, "q")) == ["first", "third"]


@pytest.mark.promise("D2")
@run
async def test_nothing_but_the_identity_decides(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", **DETECTING)
        assert not await is_duplicate(client, "a", subject="label", properties={"n": 1})
        assert await is_duplicate(client, "a", "y", subject="other", properties={"n": 2})
        assert not await is_duplicate(client, "b", subject="label", properties={"n": 1})
        # Opaque: neither case, nor spaces, nor how a letter is composed is smoothed over.
        for message_id in ("A", "a ", " a", "\u00e4", "a\u0308", "x" * 128, "1/p?q#r"):
            assert not await is_duplicate(client, message_id), message_id
            assert await is_duplicate(client, message_id), message_id
        with pytest.raises(InvalidArgument):
            await client.send("q", msg(message_id="x" * 129))


@pytest.mark.promise("D3")
@run
async def test_what_the_identity_is(connect: Open) -> None:
    one, two = keys_of(5)
    async with connect() as client:
        await client.create_queue("q", requires_session=True, **DETECTING)
        assert not await is_duplicate(client, "a", session_id="one")
        assert await is_duplicate(client, "a", session_id="two"), "also across sessions"
        await client.delete_queue("q")
        await client.create_queue("q", enable_partitioning=True, **DETECTING)
        assert not await is_duplicate(client, "a", partition_key=one)
        assert not await is_duplicate(client, "a", session_id=two), "though they share a partition"
        assert await is_duplicate(client, "a", session_id=one)
        assert not await is_duplicate(client, "a"), "its own id is the key"
        assert await is_duplicate(client, "a", partition_key="a")


@pytest.mark.promise("D4")
@run
async def test_the_window(connect: Open) -> None:
    async with connect() as client:
        made = await client.create_queue("q", **DETECTING)
        assert made.settings.duplicate_detection_window_ms == WINDOW
        for window in (0, 20 * SECOND - 1, 7 * DAY + 1):
            with pytest.raises(InvalidArgument):
                await client.create_queue("no", duplicate_detection_window_ms=window, **DETECTING)
            with pytest.raises(InvalidArgument):
                await client.change_queue("q", duplicate_detection_window_ms=window)
        for wanted in (20 * SECOND, 7 * DAY):
            await client.create_queue(f"w{wanted}", duplicate_detection_window_ms=wanted)
        with pytest.raises(Unchangeable):
            await client.change_queue("q", requires_duplicate_detection=False)
        assert not await is_duplicate(client, "a")
        await client.advance(5 * MINUTE)
        await client.change_queue("q", duplicate_detection_window_ms=20 * MINUTE)
        await client.advance(10 * MINUTE)
        assert await is_duplicate(client, "a"), "longer keeps what is remembered"
        await client.change_queue("q", duplicate_detection_window_ms=MINUTE)
        await client.change_queue("q", duplicate_detection_window_ms=7 * DAY)
        assert not await is_duplicate(client, "a"), "shorter forgets at once"


@pytest.mark.promise("D5", "X2")
@run
async def test_the_memory_outlives_the_message(connect: Open) -> None:
    async with connect() as client:
        settings = DETECTING | {"duplicate_detection_window_ms": 30 * MINUTE}
        await client.create_queue("q", **settings)
        await client.send("q", msg(message_id="completed"))
        await client.receiver("q").complete(await get_one(client, "q"))
        await client.send("q", msg(message_id="deleted"))
        await get_one(client, "q", delete=True)
        await client.send("q", msg(message_id="dead"))
        await client.receiver("q").dead_letter(await get_one(client, "q"))
        await get_one(client, "q", dead_letters=True, delete=True)
        due = await now(client) + MINUTE
        number = await client.schedule("q", msg(message_id="cancelled"), due)
        await client.cancel_scheduled("q", [number])
        await client.send("q", msg(message_id="expired", time_to_live_ms=MINUTE))
        await client.advance(2 * MINUTE)
        await client.send("q", msg(message_id="purged"))
        assert await client.purge("q") == 1
        info = await client.queue("q")
        assert (info.active_count, info.dead_lettered_count, info.scheduled_count) == (0, 0, 0)
        ended = ("completed", "deleted", "dead", "cancelled", "expired", "purged")
        for message_id in ended:
            assert await is_duplicate(client, message_id), message_id
        await client.purge("q", forget_ids=True)
        for message_id in ended:
            assert not await is_duplicate(client, message_id), message_id


@pytest.mark.promise("D5")
@run
async def test_a_dropped_duplicate_does_not_extend_the_window(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", **DETECTING)
        assert not await is_duplicate(client, "a")
        await client.advance(WINDOW // 2)
        assert await is_duplicate(client, "a")
        # The machine's own time passes as well: a minute is more than a test takes.
        await client.advance(WINDOW // 2 - MINUTE)
        assert await is_duplicate(client, "a")
        await client.advance(MINUTE)
        assert not await is_duplicate(client, "a")


@pytest.mark.promise("D6")
@run
async def test_duplicates_are_dropped_at_the_topic(connect: Open) -> None:
    async with connect() as client:
        await client.create_topic("t", **DETECTING)
        early = await client.create_subscription("t", "early")
        first = await client.send("t", msg("first", message_id="m"))
        late = await client.create_subscription("t", "late")
        again = await client.send("t", msg("again", message_id="m"))
        assert again.duplicate_of == first.sequence_number
        assert bodies(await client.peek(early)) == ["first"]
        assert await client.peek(late) == []
        assert (await client.topic("t")).duplicates_dropped == 1


@pytest.mark.promise("D8")
@run
async def test_a_scheduled_message_records_its_id_when_it_is_scheduled(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", **DETECTING)
        due = await now(client) + 5 * MINUTE
        number = await client.schedule("q", msg("later", message_id="a"), due)
        assert await client.schedule("q", msg("again", message_id="a"), due) == number
        assert await is_duplicate(client, "a")
        await client.advance(6 * MINUTE)
        assert bodies(await get(client, "q")) == ["later"]
        assert await is_duplicate(client, "a"), "the window runs from the scheduling"
        await client.advance(4 * MINUTE)
        assert not await is_duplicate(client, "a")


@pytest.mark.promise("D9")
@run
async def test_an_error_before_the_message_was_stored_records_nothing(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", max_message_bytes=1_000, max_size_bytes=1_500, **DETECTING)
        with pytest.raises(MessageTooLarge):
            await client.send("q", msg("x" * 2_000, message_id="a"))
        assert not await is_duplicate(client, "a", "x" * 900)
        with pytest.raises(QuotaExceeded):
            await client.send_batch("q", [msg("x" * 900, message_id="b")])
        assert await client.purge("q") == 1
        assert not await is_duplicate(client, "b")


@pytest.mark.promise("D10")
@run
async def test_batches_transactions_and_staged_sends(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", **DETECTING)
        sent = await client.send_batch("q", [msg("1", message_id="a"), msg("2", message_id="a")])
        assert [one.duplicate_of for one in sent] == [None, 1]
        undone = client.transaction()
        await undone.send("q", msg("never", message_id="t"))
        await undone.rollback()
        work = client.transaction()
        await work.send("q", msg("in a transaction", message_id="t"))
        whose = {"producer": "p", "batch": 1, "attempt": 0}
        await client.stage("q", [msg("staged", message_id="s")], task=0, **whose)
        assert not await is_duplicate(client, "s", "sent before it was published")
        assert [one.duplicate_of for one in await work.commit()] == [None]
        assert await is_duplicate(client, "t")
        published = await client.publish("q", producer="p", batch=1, attempts=[(0, 0)])
        assert (published.accepted, published.duplicates) == (0, 1)
        assert bodies(await everything(client, "q")) == [
            "1", "sent before it was published", "in a transaction"
        ]  # fmt: skip


@pytest.mark.promise("D11")
@run
async def test_messages_without_an_id(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", **DETECTING)
        await client.create_queue("p", enable_partitioning=True, **DETECTING)
        await client.send("q", msg("made by the client"))
        assert (await get_one(client, "q", delete=True)).message_id
        for _ in range(2):
            sent = await client.send("q", msg("same"), make_id=False)
            assert sent.duplicate_of is None
        assert [one.message_id for one in await get(client, "q", delete=True)] == [None, None]
        with pytest.raises(InvalidOperation):
            await client.send("p", msg("no key"), make_id=False)
        await client.send("p", msg("a key", partition_key="k"), make_id=False)
        assert len(numbers(await get(client, "p"))) == 1
