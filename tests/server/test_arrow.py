"""Bulk over HTTP: Arrow IPC streams, both ways."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from onibus import Bus
from onibus.api.wire import ARROW
from onibus.client import AsyncClient
from onibus.protocols.http.limits import Limits
from tests.bus_helpers import run
from tests.server.http_helpers import Client, serving

TYPE = {"content-type": ARROW}
WANTED = {"accept": ARROW}


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def table_of(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()


async def read(client: Client, path: str) -> pa.Table:
    response = await client.ask("GET", path)
    assert (response.status_code, response.headers["content-type"]) == (200, ARROW), response.text
    return table_of(response.content)


def rows(count: int, start: int = 0) -> pa.Table:
    ids = [f"m{number}" for number in range(start, start + count)]
    return pa.table({"body": [one.encode() for one in ids], "message_id": ids})


async def send(client: Client, table: pa.Table, **headers: str) -> Any:
    response = await client.http.post(
        "/v1/entities/q/batch", content=stream(table), headers=TYPE | headers
    )
    assert response.status_code == 200, response.text
    return response


@run
async def test_rows_are_sent_and_numbers_come_back() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {"requires_duplicate_detection": True})
        assert (await send(client, rows(1_000))).json() == {"accepted": 1_000, "duplicates": 0}
        told = table_of((await send(client, rows(1_000, 500), **WANTED)).content)
        assert told.column_names == ["sequence_number", "duplicate_of"]
        assert told["sequence_number"].to_pylist() == list(range(501, 1_501))
        assert told["duplicate_of"].to_pylist() == [*range(501, 1_001), *[None] * 500]
        assert (await client.do("GET", "/queues/q"))["active_count"] == 1_500


@run
async def test_the_log_is_read_as_it_was_written() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {"retention_ms": 600_000})
        await send(client, rows(3_000))
        await client.send("q", "one by one")
        received = await client.receive("q", 3)
        await client.on("q", "complete", tokens=[one["token"] for one in received])
        whole = await read(client, "/entities/q/log/messages/0?start=1")
        assert whole["sequence_number"].to_pylist() == list(range(1, 3_002))
        assert whole["body"].to_pylist() == [*rows(3_000)["body"].to_pylist(), b"one by one"]
        part = await read(
            client, "/entities/q/log/messages/0?start=10&end=12&columns=message_id,sequence_number"
        )
        assert part.to_pydict() == {"message_id": ["m9", "m10"], "sequence_number": [10, 11]}
        assert (await read(client, "/entities/q/log/messages/0?start=1&limit=7")).num_rows == 7
        nothing = await read(client, "/entities/q/log/messages/0?start=3002")
        assert (nothing.num_rows, nothing.schema) == (0, whole.schema)
        outcomes = await read(client, "/entities/q/log/outcomes/0?start=1")
        assert outcomes["sequence_number"].to_pylist() == [1, 2, 3]
        assert set(outcomes["outcome"].to_pylist()) == {"completed"}


@run
async def test_a_long_log_is_sent_no_faster_than_it_is_read() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {"retention_ms": 600_000})
        body = b"x" * 10_000
        for _ in range(20):
            await send(client, pa.table({"body": [body] * 100}))
        size = 0
        async with client.http.stream("GET", "/v1/entities/q/log/messages/0?start=1") as response:
            async for piece in response.aiter_raw():
                size += len(piece)
                await asyncio.sleep(0.001)
        assert size > 20_000_000


@run
async def test_a_log_whose_reader_goes_is_read_no_further() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {"retention_ms": 600_000})
        for _ in range(20):
            await send(client, pa.table({"body": [b"x" * 10_000] * 100}))
        async with client.http.stream("GET", "/v1/entities/q/log/messages/0?start=1") as response:
            await anext(response.aiter_raw())
        assert (await client.ask("GET", "/queues")).status_code == 200


@run
async def test_claims_and_staged_rows() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        whose: Any = {"producer": "p", "batch": 0, "task": 0, "attempt": 0}
        response = await client.http.post(
            "/v1/entities/q/staged", content=stream(rows(100)), headers=TYPE, params=whose
        )
        assert response.status_code == 204, response.text
        publish = {"producer": "p", "batch": 0, "attempts": [[0, 0]]}
        assert (await client.on("q", "staged/publish", **publish))["accepted"] == 100
        claim = (await client.on("q", "claims", reader="r", limit=60))["claim"]
        response = await client.ask(
            "POST", f"/entities/q/claims/r/{claim['number']}/read", {}, headers=WANTED
        )
        claimed = table_of(response.content)
        assert claimed["message_id"].to_pylist() == rows(60)["message_id"].to_pylist()


@run
@pytest.mark.parametrize(
    "table",
    [
        pa.table({"body": ["text"], "unknown": [1]}),
        pa.table({"message_id": [1]}),
        pa.table({"body": pa.array([b"x"] * 5), "message_id": pa.array(["a" * 200] * 5)}),
        pa.table({"body": pa.array([], pa.binary())}),
    ],
)
async def test_rows_that_are_no_messages_are_refused_whole(table: pa.Table) -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        response = await client.http.post(
            "/v1/entities/q/batch", content=stream(table), headers=TYPE
        )
        assert response.status_code == 400, response.text
        assert (await client.do("GET", "/queues/q"))["active_count"] == 0


@run
async def test_more_rows_than_the_server_allows_are_refused() -> None:
    async with serving(limits=Limits(table_bytes_max=1 << 20)) as client:
        await client.do("PUT", "/queues/q", {})
        for count, expected in ((10, 200), (11, 413)):
            content = stream(pa.table({"body": [bytes(100_000)] * count}))
            response = await client.http.post("/v1/entities/q/batch", content=content, headers=TYPE)
            assert response.status_code == expected, response.text


@run
async def test_columns_of_other_types_are_sent_by_a_client_as_plain_ones() -> None:
    """What a server does not take from strangers, our own clients convert."""
    ids = pa.array(["a", "b", None, "a"])
    bodies = pa.array([b"1", b"2", b"3", b"4"])
    async with Bus.ephemeral() as bus, serving(bus=bus) as served:
        for at, kind in enumerate((pa.dictionary(pa.int8(), pa.string()), pa.string_view())):
            columns = {"subject": ids.cast(kind), "body": bodies.cast(pa.binary_view())}
            await bus.create_queue(f"q{at}")
            async with AsyncClient.connect(f"http://127.0.0.1:{served.port}") as client:
                sent = await client.send_arrow(f"q{at}", pa.table(columns))
                whose: Any = {"producer": "p", "batch": 0, "task": 0, "attempt": 0}
                await client.stage_arrow(f"q{at}", pa.record_batch(columns), **whose)
                await client.publish(f"q{at}", producer="p", batch=0, attempts=[(0, 0)])
            assert sent.accepted == 4
            messages = bus.peek(f"q{at}", limit=8)
            assert [one.message.subject for one in messages] == ids.to_pylist() * 2
            assert [one.body for one in messages] == bodies.to_pylist() * 2
