"""Compressed bodies: accepted as gzip, in bounded steps; everything else is rejected."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import zlib
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from onibus.api.wire import ARROW
from onibus.protocols.http import content_encoding
from onibus.protocols.http.limits import Limits
from tests.bus_helpers import run
from tests.server.http_helpers import JSON_TYPE, Client, serving
from tests.server.processes import served
from tests.server.test_arrow import stream
from tests.server.test_hostile_arrow import peak_bytes

MB = 1 << 20
PATH = "/v1/entities/q/messages"
GZIP = {"content-encoding": "gzip"}


async def post(client: Client, body: bytes, coding: str = "gzip") -> httpx.Response:
    headers = {**JSON_TYPE, "content-encoding": coding}
    return await client.http.post(PATH, content=body, headers=headers)


@run
async def test_a_message_may_come_compressed() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        body = json.dumps({"body": "three apples"}).encode()
        for coding in ("gzip", "x-gzip", "GZIP"):
            assert (await post(client, gzip.compress(body), coding)).status_code == 200
        for coding in ("identity", ""):
            assert (await post(client, body, coding)).status_code == 200
        assert {one["body"] for one in await client.receive("q")} == {"three apples"}


@run
async def test_rows_may_come_compressed() -> None:
    table = pa.table({"body": [b"x" * 1_000] * 10_000})
    content = gzip.compress(stream(table), 1)
    assert len(content) < MB
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        for path in ("batch", "staged?producer=p&batch=0&task=0&attempt=0"):
            response = await client.http.post(
                f"/v1/entities/q/{path}", content=content, headers={"content-type": ARROW, **GZIP}
            )
            assert response.status_code in (200, 204), response.text
        assert (await client.do("GET", "/queues/q"))["active_count"] == 10_000


@run
@pytest.mark.parametrize("step", [1, 7, 100, 1 << 20])
async def test_steps_of_any_size_make_the_same_body(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_encoding, "_STEP_IN_BYTES", step)
    monkeypatch.setattr(content_encoding, "_STEP_OUT_BYTES", step)
    # Some of it repeats, some does not: pieces end inside of what was taken in, and after it.
    chance = random.Random(3)
    body = b"".join(bytes(chance.randrange(90)) + chance.randbytes(9) for _ in range(20))
    for size in (0, 1, len(body)):
        pieces = content_encoding.decompress(gzip.compress(body[:size]), MB)
        assert b"".join([piece async for piece in pieces]) == body[:size]


def bad_bodies() -> dict[str, bytes]:
    good = gzip.compress(b"{}" * 100)
    return {
        "no gzip": b"{}",
        "nothing": b"",
        "half of it": good[: len(good) // 2],
        "without its end": good[:-1],
        "a wrong sum": good[:-8] + bytes(8),
        "two streams": good * 2,
        "more bytes": good + b"x",
        "zlib": zlib.compress(b"{}"),
        "compressed twice": gzip.compress(good),
    }


@run
@pytest.mark.parametrize("what", bad_bodies())
async def test_what_is_no_gzip_is_rejected(what: str) -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        response = await post(client, bad_bodies()[what])
        assert (response.status_code, response.json()["type"]) == (400, "invalid-argument")
        assert (await client.ask("GET", "/queues/q")).json()["active_count"] == 0


@run
@pytest.mark.parametrize("coding", ["zstd", "br", "deflate", "gzip, gzip", "x"])
async def test_another_coding_is_named_as_not_supported(coding: str) -> None:
    async with serving(limits=Limits(unknown_bytes_max=1_000)) as client:
        await client.do("PUT", "/queues/q", {})
        # The second is rejected before its body is read.
        for body in (b"{}", b" " * 10_000):
            response = await post(client, body, coding)
            assert (response.status_code, response.json()["type"]) == (415, "wrong-content-type")
            assert response.headers["accept-encoding"] == "gzip"


@run
async def test_what_becomes_too_much_is_rejected() -> None:
    async with serving(limits=Limits(body_bytes_max=100_000)) as client:
        await client.do("PUT", "/queues/q", {})
        for size, expected in ((99_000, 200), (100_001, 413), (50 * MB, 413)):
            body = b'{"body": "x"}' + b" " * (size - 13)
            response = await post(client, gzip.compress(body, 1))
            assert response.status_code == expected, response.text
        assert response.json()["type"] == "body-too-large"


@run
async def test_only_bodies_that_a_call_reads_are_decompressed() -> None:
    """A call without credentials costs no memory and no time, whatever comes with it."""
    async with serving(limits=Limits(body_bytes_max=100_000)) as client:
        for body in (gzip.compress(bytes(MB), 1), b"no gzip"):
            response = await client.http.request("GET", "/livez", content=body, headers=GZIP)
            assert response.status_code == 200


@run
async def test_a_small_body_has_a_small_answer() -> None:
    """An error that names what it does not know does not repeat all of it."""
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        response = await post(client, gzip.compress(b'{"%b": 1}' % (b"x" * 10 * MB)))
        assert (response.status_code, response.json()["type"]) == (400, "invalid-argument")
        assert len(response.content) < 4_000


@run
async def test_what_bodies_become_counts_towards_all_that_is_held() -> None:
    limits = Limits(all_bodies_bytes_max=2 * MB)
    async with serving(limits=limits) as client:
        await client.do("PUT", "/queues/q", {})
        bomb = gzip.compress(bytes(8 * MB), 1)
        answers = await asyncio.gather(*(post(client, bomb) for _ in range(4)))
        assert {(one.status_code, one.json()["type"]) for one in answers} == {(503, "overloaded")}
        # The server released all of it, and serves others.
        for _ in range(4):
            assert (await post(client, gzip.compress(b" " * MB + b"{}"))).status_code == 200


def test_a_bomb_costs_no_more_than_the_limit(tmp_path: Path) -> None:
    config = tmp_path / "small.toml"
    config.write_text(f"[limits]\nbody_bytes_max = {8 * MB}\n[queues.q]\n")
    bomb = gzip.compress(bytes(600 * MB), 1)
    with (
        served("--ephemeral", "--insecure", "--config", config, "--log-level", "error") as server,
        server.client(headers=JSON_TYPE) as client,
    ):
        for kind in (JSON_TYPE["content-type"], ARROW):
            headers = {"content-type": kind, **GZIP}
            client.post("/v1/entities/q/batch", content=gzip.compress(b"{}"), headers=headers)
            before = peak_bytes(server)
            answer = client.post("/v1/entities/q/batch", content=bomb, headers=headers)
            assert (answer.status_code, answer.json()["type"]) == (413, "body-too-large")
            assert peak_bytes(server) - before < 64 * MB
            assert client.get("/livez").status_code == 200
