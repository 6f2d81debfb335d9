"""A receive over HTTP is bounded in bytes: what has no room stays ready, in its order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onibus import Bus, Message
from onibus.core.limits import BATCH_COUNT_MAX
from onibus.protocols.http.limits import Limits
from tests.bus_helpers import run
from tests.gateway.topic_helpers import sound
from tests.server.server_helpers import ROOT, serving, signed

#: Room for three messages of these, and one of twice as much comes in alone.
LIMITS = Limits(answer_bytes_max=10_000)
SIZE = 3_000
COUNT = 8


class Asking:
    """A bus behind HTTP, and what its clients get."""

    def __init__(self, bus: Bus, client: Any) -> None:
        self.bus = bus
        self._client = client

    async def ask(self, path: str, **body: Any) -> Any:
        answer = await self._client.post(f"/v1/entities/{path}", json=body, headers=signed())
        return answer.json() if answer.content else None

    async def numbers(self, path: str, **body: Any) -> list[int]:
        answer = await self.ask(path, limit=BATCH_COUNT_MAX, **body)
        return [one["sequence_number"] for one in answer["messages"]]

    async def all_of(self, path: str, **body: Any) -> list[list[int]]:
        """Receive until there is nothing more."""
        found = []
        while some := await self.numbers(path, **body):
            found.append(some)
        sound(self.bus)
        return found


@asynccontextmanager
async def asking() -> AsyncIterator[Asking]:
    async with Bus.ephemeral() as bus, serving(ROOT, bus=bus, limits=LIMITS) as (_, client):
        yield Asking(bus, client)


async def fill(bus: Bus, queue: str, **fields: Any) -> None:
    for number in range(COUNT):
        given = {"body": b"x" * SIZE, "message_id": f"m{number}"} | fields
        await bus.send(queue, Message(**given))


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("dead", [False, True])
def test_a_queue(delete: bool, dead: bool) -> None:
    @run
    async def test() -> None:
        async with asking() as http:
            await http.bus.create_queue("q")
            await fill(http.bus, "q")
            if dead:
                receiver = http.bus.receiver("q")
                for message in await receiver.receive(COUNT):
                    await receiver.dead_letter(message)
            found = await http.all_of("q/receive", delete=delete, dead_letters=dead)
            assert found == [[1, 2, 3], [4, 5, 6], [7, 8]]

    test()


@run
async def test_one_message_is_given_out_however_large_it_is() -> None:
    async with asking() as http:
        await http.bus.create_queue("q")
        for size in (1, 50_000, 1, 50_000, 50_000):
            await http.bus.send("q", Message(body=b"x" * size))
        assert await http.all_of("q/receive") == [[1], [2], [3], [4], [5]]


@run
async def test_all_partitions_share_the_room() -> None:
    async with asking() as http:
        await http.bus.create_queue("q", enable_partitioning=True)
        await fill(http.bus, "q")
        found = await http.all_of("q/receive")
        assert sorted(len(some) for some in found) == [2, 3, 3]
        assert len({number for some in found for number in some}) == COUNT


@run
async def test_a_session() -> None:
    async with asking() as http:
        await http.bus.create_queue("q", requires_session=True)
        await fill(http.bus, "q", session_id="s")
        held = await http.ask("q/sessions/accept", session_id="s")
        who = {"session_id": "s", "token": held["token"]}
        assert await http.all_of("q/sessions/receive", **who) == [[1, 2, 3], [4, 5, 6], [7, 8]]


@run
async def test_groups_of_a_fifo_queue() -> None:
    async with asking() as http:
        await http.bus.create_queue("q.fifo", fifo=True)
        for number, group in enumerate("aabbcc"):
            await http.bus.send(
                "q.fifo",
                Message(body=b"x" * SIZE, message_id=str(number), session_id=group),
            )
        first = await http.ask("q.fifo/fifo/receive", limit=BATCH_COUNT_MAX, attempt_id="once")
        again = await http.ask("q.fifo/fifo/receive", limit=BATCH_COUNT_MAX, attempt_id="once")
        assert [one["sequence_number"] for one in first["messages"]] == [1, 2, 3]
        assert [one["token"] for one in again["messages"]] == [
            one["token"] for one in first["messages"]
        ]
        # What had no room stays behind what its group has in flight.
        assert await http.all_of("q.fifo/fifo/receive") == [[5, 6]]
        await http.bus.fifo_receiver("q.fifo").complete(
            bytes.fromhex(first["messages"][2]["token"])
        )
        assert await http.all_of("q.fifo/fifo/receive") == [[4]]


@run
async def test_deferred_messages_have_room_together_or_are_refused() -> None:
    async with asking() as http:
        await http.bus.create_queue("q", enable_partitioning=True)
        await fill(http.bus, "q", partition_key="k")
        receiver = http.bus.receiver("q")
        numbers = []
        for message in await receiver.receive(COUNT):
            await receiver.defer(message)
            numbers.append(message.sequence_number)
        told = await http.ask("q/receive-deferred", numbers=numbers)
        assert (told["type"], "receive fewer at once" in told["detail"]) == (
            "invalid-operation",
            True,
        )
        assert http.bus.queue("q").held_count == 0
        got = await http.ask("q/receive-deferred", numbers=numbers[:3])
        assert len(got["messages"]) == 3


@run
async def test_a_program_in_the_same_process_is_not_bounded() -> None:
    async with asking() as http:
        await http.bus.create_queue("q")
        await fill(http.bus, "q")
        assert len(await http.bus.receiver("q").receive(COUNT)) == COUNT
