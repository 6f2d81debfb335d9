"""One message with its sections and its life, counting before a purge, and moving messages."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from onibus import Bus, Message
from onibus.api.delivery import Resubmitted
from onibus.core.errors import InvalidArgument, MessageNotFound
from onibus.core.inspection import Filter
from onibus.core.limits import MESSAGE_BYTES_MAX
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.service_bus import sections
from tests.bus_helpers import ManualClock, run
from tests.server.http_helpers import Client, serving


async def inspected(client: Client, entity: str, number: int) -> dict[str, Any]:
    found: dict[str, Any] = await client.on(entity, "inspect", number=number)
    return found


def events(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["what"]: one for one in found["life"]}


@run
async def test_a_message_is_shown_in_amqp_sections() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("jobs")
    message = Message(
        body=b"text", message_id="a", subject="s", properties={"n": 1, "raw": b"\xff"}
    )
    one = await bus.send("jobs", message)
    value = sections.section(sections.VALUE, to.map_([to.string("k"), to.long(2**60)]))
    two = await bus.send("jobs", Message(body=value, format="amqp"))
    async with serving(bus=bus) as client:
        found = await inspected(client, "jobs", one.sequence_number)
        named = {section["name"]: section["value"] for section in found["sections"]}
        assert named["data"] == "text"
        assert named["properties"]["message-id"] == "a"
        assert named["properties"]["subject"] == "s"
        assert named["application properties"] == {"n": 1, "raw": {"binary": "/w=="}}
        assert named["message annotations"]["x-opt-sequence-number"] == one.sequence_number
        found = await inspected(client, "jobs", two.sequence_number)
        assert {"name": "value", "value": {"k": 2**60}} in found["sections"]
        path = "/entities/jobs/inspect"
        await client.refused(404, "message-not-found", "POST", path, {"number": 99})
        assert bus.queue("jobs").held_count == 0


@run
async def test_a_large_message_is_shown_in_part_and_saved_whole() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("jobs")
    await bus.create_topic("news")
    body = json.dumps({"rows": ["ä" * 90] * 1_000}, ensure_ascii=False).encode()
    text = (await bus.send("jobs", Message(body=body))).sequence_number
    binary = (await bus.send("jobs", Message(body=b"\xff" * 1_000))).sequence_number
    numbers = sections.section(sections.VALUE, to.list_([to.long(1)] * 10_000))
    many = (await bus.send("jobs", Message(body=numbers, format="amqp"))).sequence_number
    due = int(time.time() * 1_000) + 3_600_000
    later = await bus.schedule("news", Message(body=body), due)

    async def shown(entity: str, number: int) -> tuple[Any, Any]:
        found = await client.on(entity, "inspect", number=number, body_limit=500)
        named = {one["name"]: one["value"] for one in found["sections"]}
        return found["message"], named.get("data", named.get("value"))

    async with serving(bus=bus) as client:
        for entity, number in (("jobs", text), ("news", later)):
            message, data = await shown(entity, number)
            assert message["body_size"] == len(body)
            assert body.startswith(message["body"].encode())
            assert 0 <= 500 - len(message["body"].encode()) < 4
            assert data == message["body"]
        message, data = await shown("jobs", binary)
        assert data == {"binary": message["body_base64"]}
        _, data = await shown("jobs", many)
        assert data.endswith("bytes: save the body to see them")
        for number, whole in ((text, body), (binary, b"\xff" * 1_000), (many, numbers)):
            response = await client.http.get(f"/v1/entities/jobs/messages/{number}/body")
            assert response.content == whole
            # A browser never shows it as a page of this server.
            assert response.headers["content-type"] == "application/octet-stream"
            assert response.headers["content-disposition"] == "attachment"
            assert response.headers["x-content-type-options"] == "nosniff"
        path = "/entities/jobs/messages/99/body"
        await client.refused(404, "message-not-found", "GET", path)


@run
@pytest.mark.parametrize("body", [b"x", b"x" * (1 << 20)], ids=["small", "large"])
async def test_properties_beyond_a_bound_are_left_out_and_counted(body: bytes) -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("jobs", max_message_bytes=MESSAGE_BYTES_MAX)
    many = {f"p{at}": at for at in range(40_000)}
    long = {"first": 1, "long": "x" * 100_000, "last": 2}
    usual = {f"p{at}": "x" * 100 for at in range(400)}
    async with serving(bus=bus) as client:
        for properties, least, most in ((many, 1_000, 2_000), (long, 1, 1), (usual, 400, 400)):
            sent = await bus.send("jobs", Message(body=body, properties=properties))
            number = sent.sequence_number
            whole = (await client.on("jobs", "inspect", number=number))["message"]
            assert whole["properties"] == properties
            asked = {"start": number, "limit": 1, "body_limit": 200}
            found = [
                (await client.on("jobs", "inspect", number=number, body_limit=200))["message"],
                (await client.on("jobs", "search", **asked))["messages"][0],
            ]
            for one in found:
                shown = one["properties"]
                assert least <= len(shown) <= most
                assert list(shown.items()) == list(properties.items())[: len(shown)]
                left_out = len(shown) < len(properties)
                assert one.get("property_count") == (len(properties) if left_out else None)


@run
async def test_a_life_has_what_the_store_knows_and_nothing_else() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("jobs")
    first = (await bus.send("jobs", Message(body=b"x"))).sequence_number
    due = int(time.time() * 1_000) + 3_600_000
    later = await bus.schedule("jobs", Message(body=b"later"), due)
    async with serving(bus=bus) as client:
        life = events(await inspected(client, "jobs", first))
        assert list(life) == ["enqueued"]
        life = events(await inspected(client, "jobs", later))
        assert life["scheduled for"]["at_ms"] == due
        async with bus.receiver("jobs") as receiver:
            (held,) = await receiver.receive(1)
            life = events(await inspected(client, "jobs", first))
            assert list(life) == ["enqueued", "received", "held until"]
            assert life["held until"]["at_ms"] == held.locked_until_ms
            await receiver.abandon(held)
            (held,) = await receiver.receive(1)
            await receiver.defer(held)
            life = events(await inspected(client, "jobs", first))
            assert "2 times" in life["delivered"]["detail"]
            assert "deferred" in life
            assert "held until" not in life
            (held,) = await receiver.receive_deferred([first])
            await receiver.dead_letter(held, reason="bad", description="address")
        found = await inspected(client, "jobs", first)
        assert events(found)["dead-lettered"]["detail"] == "bad: address"
        moved = (await bus.resubmit("jobs", [first])).moved[first]
        assert moved is not None
        assert str(first) in events(await inspected(client, "jobs", moved))["sent before"]["detail"]


@run
async def test_a_life_has_the_times_of_recent_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onibus.core.returns.RETURNS_MAX", 3)
    clock = ManualClock()
    bus = await Bus.ephemeral(clock=clock)
    await bus.create_queue("jobs", lock_duration_ms=60_000)
    number = (await bus.send("jobs", Message(body=b"x"))).sequence_number
    began = clock.wall()
    async with bus.receiver("jobs") as receiver:
        clock.advance(1_000)
        (held,) = await receiver.receive(1)
        clock.advance(2_500)
        await receiver.abandon(held)
        await receiver.receive(1)
        clock.advance(60_000)
        (held,) = await receiver.receive(1, wait_ms=1_000)
        clock.advance(500)
        await receiver.dead_letter(held, reason="bad")
    async with serving(bus=bus) as client:
        life = (await inspected(client, "jobs", number))["life"]
        assert [(one["what"], one.get("at_ms"), one.get("detail")) for one in life] == [
            ("enqueued", began, None),
            ("delivered", None, "2 times without being settled"),
            ("received", began + 1_000, "abandoned after 2.5 s"),
            ("received", began + 3_500, "lock expired after 60 s"),
            ("received", began + 63_500, "dead-lettered after 0.5 s"),
            ("dead-lettered", None, "bad"),
        ]
        # Other messages take the room of the oldest record; the first receive stays known.
        await bus.send("jobs", Message(body=b"y"))
        async with bus.receiver("jobs") as receiver:
            (held,) = await receiver.receive(1)
            await receiver.abandon(held)
        life = events(await inspected(client, "jobs", number))
        assert life["first received"]["at_ms"] == began + 1_000


@run
async def test_a_purge_counts_before_it_deletes() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("jobs", enable_partitioning=True)
    for at in range(600):
        body = json.dumps({"odd": at % 2}).encode()
        await bus.send("jobs", Message(body=body, partition_key=str(at)))
    async with serving(bus=bus) as client:
        where = {"state": "active", "body_path": "odd", "body_equals": "1"}
        async with bus.receiver("jobs") as receiver:
            held = [one for one in await receiver.receive(50) if b"1" in one.body]
            expected = 300 - len(held)
            counted = await client.on("jobs", "purge", where=where, dry_run=True)
            assert counted == {"count": expected}
            assert bus.queue("jobs").active_count == 600
            assert await client.on("jobs", "purge", where=where) == {"count": expected}
        assert await client.on("jobs", "purge", where={"sql": "1=0"}, dry_run=True) == {"count": 0}


@run
async def test_active_messages_move_to_another_queue_once() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("from", enable_partitioning=True)
        await bus.create_queue("to", requires_duplicate_detection=True)
        await bus.create_queue("sessions", requires_session=True)
        for at in range(30):
            message = Message(body=str(at % 3).encode(), partition_key=str(at), message_id=str(at))
            await bus.send("from", message)
        # A message of the same id is at the destination: the moved one is not dropped.
        await bus.send("to", Message(body=b"before", message_id="0"))
        async with bus.receiver("from") as receiver:
            held = await receiver.receive(5)
            where = Filter(body_contains=b"0")
            expected = 10 - sum(one.body == b"0" for one in held)
            done: Resubmitted = await bus.move("from", "to", where=where, dry_run=True)
            assert len(done.moved) == expected
            assert bus.queue("to").active_count == 1
            done = await bus.move("from", "to", where=where, limit=2)
            assert len(done.moved) == 2
            done = await bus.move("from", "to", where=where)
            assert len(done.moved) == expected - 2
            assert bus.queue("to").active_count == 1 + expected
            assert bus.queue("from").active_count == 30 - expected
            with pytest.raises(MessageNotFound):
                await bus.move("from", "to", [held[0].sequence_number])
        done = await bus.move("from", "sessions", where=Filter())
        assert not done.moved
        assert len(done.refused) == 25 - expected
        with pytest.raises(InvalidArgument):
            await bus.move("from", "from", where=Filter())


@run
async def test_a_limit_bounds_what_a_resubmission_moves_or_rejects() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("from")
    await bus.create_queue("sessions", requires_session=True)
    # Every other message has a session, so the destination rejects the others.
    bodies = [Message(body=b"x", session_id=None if at % 2 else "s") for at in range(1_200)]
    await bus.send_batch("from", bodies)
    async with bus.receiver("from") as receiver:
        for held in await receiver.receive(1_200):
            await receiver.dead_letter(held, reason="r")
    async with serving(bus=bus) as client:

        async def resubmit(**given: Any) -> tuple[int, int]:
            path = "/entities/from/dead-letters/resubmit"
            done = await client.do("POST", path, {"where": {}, **given})
            return len(done["moved"]), len(done["refused"])

        assert await resubmit(to="sessions", limit=700, dry_run=True) == (350, 350)
        # One after the other is looked for, and messages that do not match take no room.
        last = {"sql": "sys.SequenceNumber > 1190"}
        assert await resubmit(where=last, limit=3, dry_run=True) == (3, 0)
        assert await resubmit(to="sessions", limit=700) == (350, 350)
        assert await resubmit(to="sessions", limit=2_000) == (250, 600)
        assert await resubmit(limit=600) == (600, 0)
        assert bus.queue("from").dead_lettered_count == 0


@run
async def test_messages_of_sessions_move_in_order() -> None:
    bus = await Bus.ephemeral()
    for name in ("from", "to"):
        await bus.create_queue(name, requires_session=True)
    for at in range(40):
        await bus.send("from", Message(body=str(at).encode(), session_id=str(at % 4)))
    async with serving(bus=bus) as client:
        where = {"session_id": "2"}
        done = await client.on("from", "move", to="to", where=where, limit=10)
        assert (len(done["moved"]), done["refused"]) == (10, [])
        done = await client.on("from", "move", to="to", where=where)
        assert done["moved"] == []
        session = await bus.accept_session("to", "2")
        bodies = [int(one.body) for one in await session.receive(20)]
        assert bodies == list(range(2, 40, 4))
        assert bus.queue("from").active_count == 30
