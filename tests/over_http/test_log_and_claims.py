"""The log, its readers, claims and staged sends (R), and replay (X7), through the server."""

from __future__ import annotations

from typing import Any

import pytest

from onibus import Filter
from onibus.core.errors import (
    BatchTooOld,
    ClaimNotFound,
    EntityReplaced,
    LogGap,
    MessageNotFound,
    NotStaged,
    ReaderBehind,
    SessionLocked,
)
from tests.bus_helpers import keys_of, run
from tests.over_http.helpers import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    Open,
    bodies,
    get,
    get_one,
    msg,
    now,
    numbers,
    send,
    until,
)


async def texts(
    client: Any, start: int = 1, end: int | None = None, **how: Any
) -> list[tuple[int, str]]:
    """Return numbers and bodies of the queue's log."""
    how.setdefault("columns", ["sequence_number", "body"])
    rows = [
        row
        async for batch in client.read_log("q", 0, start, end, **how)
        for row in batch.to_pylist()
    ]
    return [(row["sequence_number"], row["body"].decode()) for row in rows]


async def gone(client: Any, start: int, **how: Any) -> Any:
    """Wait until rows are gone, which tidying does by and by; return the gap that is told."""

    async def gap() -> Any:
        await client.advance(2 * SECOND)
        try:
            await texts(client, start, **how)
        except LogGap as error:
            return error
        return None

    return await until(gap)


@pytest.mark.promise("R1", "R3")
@run
async def test_completed_messages_are_read_again_until_their_retention_ends(
    connect: Open,
) -> None:
    async with connect() as client:
        await client.create_queue("q", retention_ms=HOUR)
        await send(client, "q", "a", "b", "c")
        await get(client, "q", delete=True)
        expected = [(1, "a"), (2, "b"), (3, "c")]
        for _ in range(2):
            assert await texts(client) == expected, "the same rows each time"
        assert await get(client, "q") == [], "reading gives nothing back"
        await client.advance(HOUR // 2)
        await client.advance(2 * SECOND)
        assert await texts(client, 2, 3) == [(2, "b")]
        await send(client, "q", "d")
        await client.advance(HOUR // 2)
        error = await gone(client, 1)
        assert (error.first, error.last) == (1, 3)
        assert await texts(client, 4) == [(4, "d")]
        positions = await client.log_positions("q")
        assert (positions.earliest, positions.latest) == ((4,), (5,))


@pytest.mark.promise("R3", "S2")
@run
async def test_a_scheduled_number_is_a_marker_and_its_activation_a_row_of_its_own(
    connect: Open,
) -> None:
    async with connect() as client:
        await client.create_queue("q", retention_ms=HOUR)
        await client.schedule("q", msg("later"), await now(client) + MINUTE)
        await client.advance(MINUTE)
        kinds = [
            (row["sequence_number"], row["kind"])
            async for batch in client.read_log("q", 0, 1, columns=["sequence_number", "kind"])
            for row in batch.to_pylist()
        ]
        assert kinds == [(1, "scheduled"), (2, "message")]


@pytest.mark.promise("R2", "R8")
@run
async def test_what_a_reader_has_not_passed_is_kept_for_it(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", reader_age_ms_max=DAY)
        made = await client.create_reader("q", "slow")
        await client.create_reader("q", "idle", idle_ms=HOUR)
        await send(client, "q", "a", "b", "c")
        await get(client, "q", delete=True)
        await client.advance(MINUTE)
        assert len(await texts(client, 1, reader="slow")) == 3
        assert (await client.queue("q")).size_bytes == 0, "it does not count to the quota"
        await client.move_reader("q", "slow", [2], made.incarnation)
        await client.advance(HOUR)
        (slow,) = await client.readers("q")
        assert (slow.name, slow.positions, slow.lag) == ("slow", (2,), (2,))
        await client.advance(DAY)
        error = await gone(client, 2, reader="slow")
        assert isinstance(error, ReaderBehind)
        assert (error.first, error.last) == (2, 3)
        (slow,) = await client.readers("q")
        assert (slow.positions, slow.lost) == ((2,), ((2, 3),)), "told so, and not moved"
        await client.delete_reader("q", "slow")
        assert await client.readers("q") == []


@pytest.mark.promise("R8")
@run
async def test_an_entity_made_again_is_a_clear_error(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        old = await client.create_reader("q", "r")
        await client.delete_queue("q")
        await client.create_queue("q")
        await client.create_reader("q", "r")
        with pytest.raises(EntityReplaced):
            await client.move_reader("q", "r", [1], old.incarnation)
        for start in (1, 50):
            with pytest.raises(EntityReplaced):
                await texts(client, start, incarnation=old.incarnation)


@pytest.mark.promise("R4")
@run
async def test_what_became_of_each_message(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("to")
        await client.create_queue("q", retention_ms=DAY)
        await send(client, "q", "done", "bad", "purged")
        receiver = client.receiver("q")
        await receiver.complete(await get_one(client, "q"))
        await receiver.dead_letter(await get_one(client, "q"), reason="why", description="so")
        await client.resubmit("q", [2], to="to")
        number = await client.schedule("q", msg("cancelled"), await now(client) + HOUR)
        await client.cancel_scheduled("q", [number])
        await send(client, "q", "mortal", time_to_live_ms=MINUTE)
        await client.advance(MINUTE)
        await client.purge("q", Filter(body_contains=b"purged"))
        rows = (await client.read_outcomes("q", 0, 1)).to_pylist()
        assert [(row["sequence_number"], row["outcome"]) for row in rows] == [
            (1, "completed"),
            (2, "dead-lettered"),
            (2, "forwarded"),
            (4, "cancelled"),
            (5, "expired"),
            (3, "purged"),
        ]
        assert (rows[1]["reason"], rows[1]["description"]) == ("why", "so")
        assert all(row["time_ms"] for row in rows)
        reader = await client.create_reader("q", "o", log="outcomes")
        await client.move_reader("q", "o", [4], reader.incarnation)
        (told,) = await client.readers("q")
        assert (told.positions, told.lag) == ((4,), (3,))


@pytest.mark.promise("R5")
@run
async def test_a_claim_gives_the_same_messages_each_time(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", max_delivery_count=1)
        await send(client, "q", "1", "2", "3", "4", "5")
        claim = await client.claim("q", "r", 3)
        assert (claim.number, claim.count, claim.read) == (1, 3, False)
        first = await client.read_claim("q", "r", 1)
        assert bodies(first) == ["1", "2", "3"]
        assert await client.read_claim("q", "r", 1) == first
        assert await client.purge("q") == 2, "what is held is skipped"
        stranger = {77: (None, None)}
        with pytest.raises(MessageNotFound):
            await client.commit_claim("q", "r", 1, dead_letters=stranger)
        letters = {first[1].sequence_number: ("bad", "no total")}
        for _ in range(2):
            await client.commit_claim("q", "r", 1, dead_letters=letters)
        with pytest.raises(ClaimNotFound):
            await client.read_claim("q", "r", 1)
        assert await client.peek("q") == []
        (dead,) = await client.peek("q", dead_letters=True)
        assert (dead.body, dead.dead_letter_reason) == (b"2", "bad")
        await send(client, "q", "6")
        await client.claim("q", "r", 3)
        await client.release_claim("q", "r", 2)
        back = await get_one(client, "q")
        assert (back.body, back.delivery_count) == (b"6", 0)


@pytest.mark.promise("R7", "R8")
@run
async def test_leases_and_sessions_of_claims(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", requires_session=True)
        for name in ("held", "a", "b"):
            await send(client, "q", f"{name}1", f"{name}2", session_id=name)
        holder = await client.accept_session("q", "held")
        claim = await client.claim("q", "r", 3, lease_ms=MINUTE)
        assert bodies(await client.read_claim("q", "r", claim.number)) == ["a1", "a2", "b1"]
        for name in ("a", "b"):
            with pytest.raises(SessionLocked):
                await client.accept_session("q", name)
        await client.advance(2 * MINUTE)
        (listed,) = await client.claims("q")
        assert (listed.number, listed.read, listed.count) == (claim.number, True, 3), "it was read"
        await client.commit_claim("q", "r", claim.number)
        unread = await client.claim("q", "r", 1, lease_ms=MINUTE)
        await client.advance(MINUTE)
        assert await client.claims("q") == [], "never read: given back"
        with pytest.raises(ClaimNotFound):
            await client.commit_claim("q", "r", unread.number)
        assert holder.session_id == "held"


@pytest.mark.promise("R6", "P12")
@run
async def test_staged_sends(connect: Open) -> None:
    one, two = (keys_of(index, 1)[0] for index in (1, 2))
    async with connect() as client:
        await client.create_queue("q", enable_partitioning=True)

        async def stage(task: int, *keys: str, batch: int = 4, attempt: int = 0, **how: Any) -> Any:
            rows = [msg(f"{task}/{attempt}", partition_key=key) for key in keys]
            whose = {"producer": "spark", "batch": batch, "task": task, "attempt": attempt}
            return await client.stage("q", rows, **whose, **how)

        async def publish(*attempts: tuple[int, ...], batch: int = 4) -> Any:
            return await client.publish("q", producer="spark", batch=batch, attempts=attempts)

        await stage(0, one, two)
        await stage(0, one, two, attempt=1)
        await stage(1, one)
        assert await client.peek("q") == []
        assert len(await client.staged("q")) == 3
        with pytest.raises(NotStaged):
            await publish((0, 0), (9, 0))
        done = await publish((0, 1), (1, 0))
        assert (done.accepted, done.again) == (3, False)
        assert (await publish((0, 1), (1, 0))).again, "the last batch again does nothing"
        with pytest.raises(BatchTooOld):
            await publish((0, 0), batch=3)
        received = await get(client, "q")
        assert sorted(bodies(received)) == ["0/1", "0/1", "1/0"]
        assert {number & 0xFF for number in numbers(received)} == {1, 2}, "no number was taken"
        await stage(0, one, batch=5, lease_ms=MINUTE)
        await client.advance(MINUTE)
        assert await client.staged("q") == [], "never published: gone after its lease"


@pytest.mark.promise("X7", "R1")
@run
async def test_replay(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", retention_ms=HOUR)
        await client.create_queue("to", requires_duplicate_detection=True)
        for n in range(1, 7):
            await send(client, "q", f"{n}", message_id=f"m{n}", properties={"n": n})
        await get(client, "q", delete=True)
        assert await client.replay("q", 0, 2, 5) == 3
        again = await get(client, "q", delete=True)
        assert (bodies(again), numbers(again)) == (["2", "3", "4"], [7, 8, 9])
        assert [one.message.enqueued_sequence_number for one in again] == [2, 3, 4]
        for _ in range(2):
            assert await client.replay("q", 0, 1, 7, where=Filter(sql="n > 5"), to="to") == 1
        renamed = [one.message_id for one in await get(client, "to")]
        assert renamed == ["m6", "m6/replayed/6"]
