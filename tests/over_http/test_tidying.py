"""What an owner does with messages (X2, X5, X6, X10) through the server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from onibus import Filter
from onibus.core.errors import InvalidArgument, InvalidFilter, MessageNotFound
from tests.bus_helpers import run
from tests.over_http.helpers import (
    HOUR,
    MINUTE,
    Open,
    bodies,
    everything,
    get,
    get_one,
    msg,
    now,
    numbers,
    picture,
    send,
)

BOTH = pytest.mark.parametrize("partitioned", [False, True])


async def filled(client: Any, partitioned: bool) -> int:
    """Make a queue with messages in every state; return when it was half full."""
    await client.create_queue("q", enable_partitioning=partitioned)
    for n in range(6):
        await send(client, "q", f"text {n}", properties={"n": n}, partition_key="k")
    dead, deferred = await get(client, "q", 2)
    await client.receiver("q").dead_letter(dead, reason="bad")
    await client.receiver("q").defer(deferred)
    half = await client.advance(MINUTE)
    later = msg("later", partition_key="k", properties={"n": 9})
    await client.schedule("q", later, await now(client) + HOUR)
    await send(client, "q", "last", session_id="k", properties={"n": 6})
    return int(half)


@pytest.mark.promise("X2", "P12")
@BOTH
@run
async def test_purge_by_state_age_and_filter(connect: Open, partitioned: bool) -> None:
    async with connect() as client:
        half = await filled(client, partitioned)
        assert await client.purge("q", Filter(sql="n = 5")) == 1
        assert await client.purge("q", Filter(state="active", enqueued_before_ms=half)) == 3
        assert [m.body for m in await everything(client, "q", where=Filter(state="active"))] == [
            b"last"
        ]
        for state in ("deferred", "scheduled", "dead-lettered", "active"):
            assert await client.purge("q", Filter(state=state)) == 1, state
        assert (await picture(client, "q"))[1:] == ([], [])


@pytest.mark.promise("X5")
@BOTH
@run
async def test_peek_with_a_filter(connect: Open, partitioned: bool) -> None:
    async with connect() as client:
        half = await filled(client, partitioned)

        async def found(**where: Any) -> list[str]:
            return bodies(await everything(client, "q", where=Filter(**where)))

        assert await found(state="deferred") == ["text 1"]
        assert await found(sql="n > @n", sql_parameters={"@n": 5}) == ["later", "last"]
        assert await found(body_contains=b"xt 3") == ["text 3"]
        assert await found(session_id="k") == ["last"]
        assert await found(enqueued_from_ms=half) == ["later", "last"]
        assert await found(enqueued_before_ms=half, state="active") == [
            f"text {n}" for n in (2, 3, 4, 5)
        ]
        with pytest.raises(InvalidFilter) as wrong:
            await found(sql="n >")
        assert wrong.value.position is not None
        with pytest.raises(InvalidArgument):
            await found(state="asleep")


@pytest.mark.promise("X6", "B1")
@run
async def test_dead_letters_are_resubmitted(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", requires_duplicate_detection=True)
        await client.create_queue("tiny", max_message_bytes=100)
        for n, text in enumerate(("0", "1", "2", "x" * 200)):
            await send(client, "q", text, message_id=f"m{n}", properties={"n": n})
        for message in await get(client, "q"):
            await client.receiver("q").dead_letter(message, reason="bad")
        before = await picture(client, "q")
        planned = await client.resubmit("q", where=Filter(), to="tiny", dry_run=True)
        assert (planned.moved, list(planned.refused)) == ({1: None, 2: None, 3: None}, [4])
        with pytest.raises(MessageNotFound):
            await client.resubmit("q", [1, 99])
        assert await picture(client, "q") == before, "all or none, and a dry run is dry"
        assert (await client.resubmit("q", [2])).moved == {2: 5}
        back = await get_one(client, "q")
        assert (back.body, back.delivery_count, back.dead_letter_reason) == (b"1", 0, None)
        assert back.message_id != "m1", "a new id where the old one is remembered"
        assert back.message.enqueued_sequence_number == 2
        moved = await client.resubmit("q", where=Filter(sql="n < 3"), to="tiny")
        assert (list(moved.moved), bodies(await client.peek("tiny"))) == ([1, 3], ["0", "2"])
        assert numbers(await client.peek("q", dead_letters=True)) == [4]


@pytest.mark.promise("X10")
@run
async def test_a_reset_leaves_nothing_and_the_clock_moves(connect: Open) -> None:
    async with connect() as client:
        await filled(client, True)
        await client.create_topic("t")
        await client.create_subscription("t", "s")
        before = await now(client)
        assert await client.advance(HOUR) - before >= HOUR
        await client.reset()
        assert (await client.queues(), await client.topics()) == ([], [])
        with pytest.raises(InvalidArgument):
            await client.advance(-1)


@pytest.mark.promise("S1", "D2")
@run
async def test_every_field_of_a_message_comes_back_as_it_went(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        properties = {
            "text": "ä\u0000", "int": 2**63 - 1, "negative": -(2**63), "float": 0.1, "no": False,
            "bytes": b"\x00\xff", "when": datetime(2026, 11, 16, 12, 30, 15, 250_000, UTC),
            "nothing": None,
        }  # fmt: skip
        whole = msg(
            "",
            message_id="id", session_id="s", partition_key="s", properties=properties,
            time_to_live_ms=HOUR, subject="subject", correlation_id="c", content_type="text/plain",
            to="to", reply_to="back", reply_to_session_id="there",
        )  # fmt: skip
        whole.body = bytes(range(256))
        await client.send("q", whole)
        assert (await get_one(client, "q")).message == whole
