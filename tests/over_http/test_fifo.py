"""FIFO queues (F) through the server."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import httpx
import pytest

from onibus.core.errors import InvalidArgument, InvalidOperation
from tests.bus_helpers import run
from tests.over_http.helpers import MINUTE, SECOND, Open, bodies, get, msg, numbers
from tests.server.processes import PATIENCE_S, Served
from tests.server.server_helpers import developing

INTERVAL = 5 * MINUTE
VISIBILITY = MINUTE


async def put(client: Any, body: str, dedup: str | None = None, group: str = "g") -> bool:
    """Send to the queue, with that id or none at all; tell whether it was stored."""
    message = msg(body, message_id=dedup, session_id=group)
    return (await client.send("q", message, make_id=False)).duplicate_of is None


async def fill(client: Any, **groups: str) -> None:
    """Send the letters given for each group, in turn: one of each, then the second of each."""
    for at in range(max(len(letters) for letters in groups.values())):
        for group, letters in groups.items():
            if at < len(letters):
                assert await put(client, letters[at], f"{group}{letters[at]}", group)


@pytest.mark.promise("F1", "F3", "X9")
@run
async def test_a_second_message_of_one_id_is_answered_with_the_first(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", fifo=True)
        first = await client.send("q", msg("one", message_id="a", session_id="g"))
        await client.advance(INTERVAL - MINUTE)
        second = await client.send("q", msg("two", message_id="a", session_id="h"))
        assert second.sequence_number == second.duplicate_of == first.sequence_number
        receiver = client.fifo_receiver("q")
        (received,) = await receiver.receive(10)
        assert (received.body, received.message_id, received.session_id) == (b"one", "a", "g")
        assert received.sequence_number == first.sequence_number
        await receiver.complete(received)
        assert not await put(client, "three", "a"), "it survives receive and delete"
        assert await put(client, "four", "b")
        assert await client.purge("q") == 1
        assert not await put(client, "five", "b"), "and purge"
        await client.purge("q", forget_ids=True)
        assert await put(client, "six", "b"), "unless that is told to forget"


@pytest.mark.promise("F1")
@run
async def test_the_scope_is_the_queue_or_the_group(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", fifo=True, deduplication_scope="messageGroup")
        assert await put(client, "1", "a", "g")
        assert await put(client, "2", "a", "h")
        assert not await put(client, "3", "a", "g")
        with pytest.raises(InvalidArgument):
            await client.create_queue("no", fifo=True, deduplication_scope="other")


@pytest.mark.promise("F2")
@run
async def test_without_an_id_and_without_content_rule_the_sender_gets_an_error(
    connect: Open,
) -> None:
    async with connect() as client:
        await client.create_queue("q", fifo=True)
        with pytest.raises(InvalidOperation):
            await put(client, "x")
        assert (await client.queue("q")).active_count == 0


@pytest.mark.promise("F4", "F5", "F6")
@run
async def test_content_gives_the_id_and_an_explicit_one_wins(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", fifo=True, content_based_deduplication=True)
        for at, text in enumerate(("same", "same", "other")):
            letter = msg(text, session_id="g", properties={"at": at})
            await client.send("q", letter, make_id=False)
        receiver = client.fifo_receiver("q")
        received = await receiver.receive(10)
        assert bodies(received) == ["same", "other"], "attributes do not count"
        hashes = [sha256(text).hexdigest() for text in (b"same", b"other")]
        assert [one.message_id for one in received] == hashes
        assert await put(client, "x", "mine")
        assert await put(client, "x"), "its id is its hash, and that is new"
        assert not await put(client, "different", sha256(b"x").hexdigest())
        assert not await put(client, "different", "mine")


@pytest.mark.promise("F7")
@run
async def test_equal_content_under_another_id(connect: Open) -> None:
    async with connect() as client:
        content = {"fifo": True, "content_based_deduplication": True}
        await client.create_queue("q", **content)
        assert await put(client, "x", "one")
        assert await put(client, "x", "two"), "as in the services"
        await client.delete_queue("q")
        await client.create_queue("q", content_matches_any_id=True, **content)
        assert await put(client, "x")
        assert not await put(client, "x", "one"), "as in the document"
        assert await put(client, "y", "two")
        assert not await put(client, "y", "three")
        assert not await put(client, "z", "two"), "and the id matches as well"


@pytest.mark.promise("F8")
@run
async def test_after_the_interval_the_same_id_is_a_new_message(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", fifo=True)
        assert await put(client, "1", "a")
        await client.advance(INTERVAL - MINUTE)
        assert not await put(client, "2", "a")
        await client.advance(MINUTE)
        assert await put(client, "3", "a")
        assert bodies(await client.fifo_receiver("q").receive(10)) == ["1", "3"]


@pytest.mark.promise("F9")
@run
async def test_an_attempt_asked_again_returns_the_same(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", fifo=True, lock_duration_ms=VISIBILITY)
        await fill(client, a="123", b="45")
        receiver = client.fifo_receiver("q")
        first = await receiver.receive(4, attempt_id="try")
        await client.advance(VISIBILITY - 20 * SECOND)
        again = await client.fifo_receiver("q").receive(4, attempt_id="try")
        assert numbers(again) == numbers(first)
        assert len(first) == 4
        assert [m.token for m in again] == [m.token for m in first]
        assert [m.delivery_count for m in again] == [0] * 4, "it is not another receive"
        await client.advance(VISIBILITY - 20 * SECOND)
        assert (await client.queue("q")).held_count == 4, "visibility was restarted"
        await receiver.complete(first[0])
        assert await receiver.receive(4, attempt_id="try") == [], "an ordinary receive: in flight"
        await client.advance(VISIBILITY)
        (second,) = await receiver.receive(1, attempt_id="try")
        assert second.token not in [m.token for m in first]


@pytest.mark.promise("F9")
@run
async def test_a_changed_attempt_is_an_error_where_that_is_wanted(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", fifo=True, strict_attempts=True)
        await fill(client, a="1", b="2")
        receiver = client.fifo_receiver("q")
        (first,) = await receiver.receive(attempt_id="try")
        await receiver.complete(first)
        with pytest.raises(InvalidOperation):
            await receiver.receive(attempt_id="try")
        assert bodies(await receiver.receive(attempt_id="another")) == ["2"]


@pytest.mark.promise("F9")
@run
async def test_an_attempt_id_that_the_server_made_is_told(connect: Open, server: Served) -> None:
    """Our client makes its own; somebody who asks without one gets one in the answer."""
    async with connect() as client:
        await client.create_queue("q", fifo=True)
        await fill(client, a="1")
        async with httpx.AsyncClient(
            base_url=server.http, trust_env=False, timeout=PATIENCE_S
        ) as http:
            path, headers = "/v1/entities/q/fifo/receive", developing()
            told = (await http.post(path, json={}, headers=headers)).json()
            (again,) = await client.fifo_receiver("q").receive(attempt_id=told["attempt_id"])
        assert again.token.hex() == told["messages"][0]["token"]


@pytest.mark.promise("F10")
@run
async def test_groups_are_in_order_and_held_by_what_is_in_flight(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", fifo=True, lock_duration_ms=VISIBILITY)
        await fill(client, a="123", b="4")
        receiver = client.fifo_receiver("q")
        (first,) = await receiver.receive(1)
        (other,) = await receiver.receive(10)
        assert bodies([first, other]) == ["1", "4"], "of a group in flight there is no more"
        await receiver.complete(first)
        assert bodies(await receiver.receive(1)) == ["2"]
        await client.advance(VISIBILITY)
        several = await receiver.receive(10)
        assert sorted(bodies(several)) == ["2", "3", "4"], "visible again"
        assert [m.body for m in several if m.session_id == "a"] == [b"2", b"3"], "in order"
        for message in several:
            await receiver.change_visibility(message, 0)
        await client.change_queue("q", one_message_per_group=True)
        assert sorted(bodies(await receiver.receive(10))) == ["2", "4"], "a switch: one only"
        with pytest.raises(InvalidOperation):
            await get(client, "q")
