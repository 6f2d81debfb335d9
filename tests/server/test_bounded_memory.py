"""What peers send does not grow a server's memory without bound, and others are still served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.bus_helpers import PATIENCE_S, run
from tests.server.processes import Served, served
from tests.server.server_helpers import developing
from tests.server.test_many_connections import resident_bytes

MB = 1 << 20
#: Far above what all bodies together may take, far below what they would take without a bound.
HELD_BYTES_MAX = 200 * MB
PATH = "/v1/entities/q/messages"

#: Sends bytes to a port; returns what came of it.
Push = Callable[[int, bytes], Awaitable[str]]


@contextmanager
def small(tmp_path: Path) -> Iterator[Served]:
    """Run a server that takes little at a time."""
    config = tmp_path / "small.toml"
    config.write_text(
        f"[limits]\nall_bodies_bytes_max = {16 * MB}\nbody_bytes_max = {8 * MB}\n"
        f"write_seconds = 5.0\n[queues.q]\nmax_message_bytes = {8 * MB}\n"
    )
    # What is let go goes back to the system at once: what is measured is what the server holds.
    given_back = {"MALLOC_MMAP_THRESHOLD_": str(MB)}
    with served("--ephemeral", "--config", config, "--log-level", "error", **given_back) as server:
        yield server


def head(length: int, *more: str) -> bytes:
    lines = (f"POST {PATH} HTTP/1.1", "host: localhost", "content-type: application/json", *more)
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


async def push(port: int, what: bytes) -> str:
    """Send to a server whatever it takes; return the type of the problem it answers with."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(what)
    try:
        told = await reader.readuntil(b"\r\n\r\n")
        length = int(told.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return str(json.loads(await reader.readexactly(length))["type"])
    except (ConnectionError, asyncio.IncompleteReadError):
        return "cut off"
    finally:
        writer.close()


def push_all_but(few: int, times: int) -> Push:
    """Send so many times, until all but a few are answered: those wait for the rest to come."""
    unanswered = set(range(times))
    numbers = iter(range(times))
    enough = asyncio.Event()

    async def push_one(port: int, what: bytes) -> str:
        number = next(numbers)
        asking = asyncio.ensure_future(push(port, what))
        waiting = asyncio.ensure_future(enough.wait())
        await asyncio.wait((asking, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not asking.done():
            asking.cancel()
            return "waits"
        unanswered.discard(number)
        if len(unanswered) <= few:
            enough.set()
        return await asking

    return push_one


async def still_serves(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/queues/q", headers=developing())
    assert answer.status_code == 200


async def ignore(port: int, what: bytes) -> str:
    """Ask, and read no answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_000)
    writer.write(what)
    await reader.readexactly(1)
    # The server answers, and has time to work on the other requests.
    await asyncio.sleep(1)
    writer.close()
    return "ignored"


async def press(server: Served, request: bytes, times: int, push: Push = push) -> list[str]:
    """Send the same many times at once; others are served, and memory stays bounded."""
    async with httpx.AsyncClient(
        base_url=server.http, trust_env=False, timeout=PATIENCE_S
    ) as client:
        await still_serves(client)
        before = resident_bytes(server.process.pid)
        pushing = asyncio.gather(*(push(server.port, request) for _ in range(times)))
        most = 0
        while not pushing.done():
            await still_serves(client)
            most = max(most, resident_bytes(server.process.pid) - before)
            await asyncio.sleep(0.05)
        assert most < HELD_BYTES_MAX, f"{most // MB} MB"
        await still_serves(client)
        return await pushing


@run
async def check_strangers(server: Served) -> None:
    told = await press(server, head(6 * MB) + b"x" * (6 * MB), 60)
    assert set(told) <= {"unauthorized", "body-too-large", "cut off"}, set(told)


@run
async def check_friends(server: Served) -> None:
    signature = f"authorization: {developing()['authorization']}"
    # All but the last byte comes: whoever is let in holds what it sent.
    body = b"x" * (6 * MB - 1)
    told = await press(server, head(6 * MB, signature) + body, 60, push_all_but(2, 60))
    assert set(told) <= {"overloaded", "cut off", "waits"}, told
    assert "overloaded" in told, told
    assert 1 <= told.count("waits") <= 2, told


@run
async def check_liars(server: Served) -> None:
    signature = f"authorization: {developing()['authorization']}"
    told = await press(server, head(1 << 40, signature), 200)
    assert set(told) == {"body-too-large"}


@pytest.mark.parametrize("check", [check_strangers, check_friends, check_liars])
def test_bodies_do_not_fill_the_memory(tmp_path: Path, check: object) -> None:
    with small(tmp_path) as server:
        assert callable(check)
        check(server)


@run
async def check_pipelining(server: Served) -> None:
    async with httpx.AsyncClient(
        base_url=server.http, trust_env=False, timeout=PATIENCE_S
    ) as client:
        body = {"body": "x" * (4 * MB)}
        sent = await client.post(PATH, json=body, headers=developing())
        assert sent.status_code == 200, sent.text
    lines = (
        "POST /v1/entities/q/peek HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
    )
    signature = f"authorization: {developing()['authorization']}"
    ask = "\r\n".join([*lines, signature, "content-length: 2", "", "{}"]).encode()
    # Each of 100 connections asks for 2 GB of answers, and reads none of them.
    assert await press(server, ask * 500, 100, ignore) == ["ignored"] * 100


def test_answers_that_nobody_reads_do_not_fill_the_memory(tmp_path: Path) -> None:
    with small(tmp_path) as server:
        check_pipelining(server)
