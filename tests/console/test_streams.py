"""Streams and searches of the console under strain: stalled clients, large bodies, changed keys."""

from __future__ import annotations

import asyncio
import json

import pytest

from onibus import Bus, Message
from onibus.core.inspection import Filter
from onibus.core.limits import PEEK_BYTES_MAX
from onibus.core.path.peek import SLICE_BYTES
from onibus.gateway import searching
from onibus.protocols.http.api import searching as api_searching
from onibus.security.keys import AccessKey, Keyring
from onibus.security.rights import Right
from onibus.server.server import Server
from tests.bus_helpers import run
from tests.server.http_helpers import KEYS, Client, serving, token

LARGE = b"x" * 100_000


@run
async def test_a_stop_does_not_wait_for_clients_that_stopped_reading_a_tail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_searching, "_LOOK_SECONDS", 0.0)
    bus = await Bus.ephemeral()
    await bus.create_queue("orders")
    server = Server(bus, None, http_port=0)
    async with server:
        client = Client(server.http_port)
        raw = await client.raw()
        body = json.dumps({"where": {}}).encode()
        head = "POST /v1/entities/orders/tail HTTP/1.1\r\nhost: localhost\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        await raw.write(head.encode() + body)
        await raw.reader.readuntil(b"\r\n\r\n")
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = server._connections.open
        while connection._unread is None:
            await bus.send("orders", Message(body=LARGE))
            await asyncio.sleep(0)
        # Without the fix this takes an hour.
        await server.stop(3_600)
        raw.writer.transport.abort()
        await client.close()


@run
async def test_a_look_at_the_tail_has_a_bounded_size() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("orders", enable_partitioning=True)
        tail = searching.Tailing(bus.broker, "orders", Filter())
        for at in range(100):
            await bus.send("orders", Message(body=LARGE, partition_key=str(at)))
        found = tail.look()
        size = sum(len(one.body) for one in found)
        assert 0 < size <= PEEK_BYTES_MAX + len(LARGE)
        assert tail.look() == []


@run
async def test_a_search_reads_a_bounded_number_of_bytes_per_turn() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("orders")
        for _ in range(60):
            await bus.send("orders", Message(body=LARGE))
        wanted = Filter(body_contains=b"nothing")
        steps = list(searching.search(bus.broker, "orders", 0, 50, 5_000, wanted, False))
        found = steps.pop()
        assert found is not None
        assert (found.messages, found.next, found.looked) == ([], None, 60)
        # Other clients have their turn after at most that many bytes.
        assert len(steps) >= 60 * len(LARGE) // (SLICE_BYTES + len(LARGE))


@run
async def test_a_list_has_beginnings_of_bodies() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("orders")
    for body in (b"short", "ä".encode() * 10, b"\xff" * 10, b""):
        await bus.send("orders", Message(body=body))
    async with serving(bus=bus) as client:
        found = await client.on("orders", "search", body_limit=7)
        kept = [
            (one.get("body"), one.get("body_base64"), one.get("body_size"))
            for one in found["messages"]
        ]
        assert kept == [
            ("short", None, None),
            # Not cut inside a character.
            ("äää", None, 20),
            (None, "/////////w==", 10),
            ("", None, None),
        ]
        wanted = {"where": {}, "body_limit": 3}
        async with client.http.stream("POST", "/v1/entities/orders/tail", json=wanted) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            await bus.send("orders", Message(body=LARGE))
            shown = json.loads(await anext(lines))
            assert (shown["body"], shown["body_size"]) == ("xxx", len(LARGE))
        number = shown["sequence_number"]
        found = await client.on("orders", "inspect", number=number, whole=False)
        assert found["message"]["body_size"] == len(LARGE)
        assert (found["message"]["body"], found["sections"]) == ("", [])
        assert found["life"]


@run
async def test_a_stream_ends_when_its_key_is_rotated() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("orders")
    keys = Keyring(KEYS)
    rotated = AccessKey(name="listener", primary="rotated", rights=frozenset({Right.LISTEN}))
    async with serving(keys=keys, bus=bus) as client:
        headers = token("sb://localhost/", "listener", "listen-key")
        path = "/v1/entities/orders/tail"
        async with client.http.stream("POST", path, json={"where": {}}, headers=headers) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            keys.replace([rotated if one.name == "listener" else one for one in KEYS])
            assert [line async for line in lines] == []
        response = await client.http.post(path, json={"where": {}}, headers=headers)
        assert response.status_code == 401
