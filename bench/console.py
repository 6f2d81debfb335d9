"""The console: how long its data take with many entities, and what an open console costs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.filling import send_in_batches
from bench.measure import Figure, folder, opened
from bench.served import served
from onibus import Bus, Message
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME
from onibus.security.sas import make_token
from tests.node import run_node
from tests.source_tree import ROOT

#: A view may take this long (p95, data only), and an idle console this share of a core.
VIEW_MS = 200
IDLE_PERCENT = 2
#: What the browser may need for it: the private memory of its process, as its task manager has it.
#: The pages of libraries that it shares with other processes are needed for any page.
BROWSER_MB = 150
_LOOKS = 40
#: Pages of 100 entities that the walk through the browser turns.
_PAGES = 20
_IDLE_SECONDS = 40
_AT_ONCE = 500

VIEWS: dict[str, tuple[str, str, Any]] = {
    "overview": ("GET", "/v1/overview", None),
    "overview, sorted by active": ("GET", "/v1/overview?sort=active", None),
    "overview, searched": ("GET", "/v1/overview?search=77", None),
    "figures": ("GET", "/v1/entities/big/history", None),
    "partitions": ("GET", "/v1/entities/big/partitions", None),
    "one entity": ("GET", "/v1/entities/big/summary", None),
    "settings": ("GET", "/v1/queues/big", None),
    "receivers": ("GET", "/v1/entities/big/receivers", None),
    "pipeline": ("GET", "/v1/readers?limit=100", None),
    "sessions": ("GET", "/v1/entities/sessions/sessions?limit=200", None),
    "dead-letter reasons": ("GET", "/v1/entities/dead/dead-letters/reasons", None),
    "one message": ("POST", "/v1/entities/big/inspect", {"number": 1}),
    "messages": ("POST", "/v1/entities/big/search", {"limit": 50, "body_limit": 200}),
    "one step of a search": (
        "POST",
        "/v1/entities/big/search",
        {"where": {"body_path": "customer", "body_equals": "nobody"}, "looks": 5_000},
    ),
}


async def _fill(path: Path, entities: int, messages: int) -> None:
    async with opened(path) as bus:
        await bus.create_queue("big", enable_partitioning=True)
        body = b'{"customer": "somebody", "items": [1, 2, 3]}'
        await send_in_batches(bus, "big", (Message(body=body) for _ in range(messages // 2)))
        await bus.create_queue("sessions", requires_session=True)
        ids = (f"s-{number % 2_000}" for number in range(messages // 50))
        groups = (Message(body=body, session_id=one) for one in ids)
        await send_in_batches(bus, "sessions", groups)
        await bus.create_queue("dead")
        await send_in_batches(bus, "dead", (Message(body=body) for _ in range(messages // 50)))
        await _dead_letter(bus)
        # The other half of the messages waits in all other queues alike.
        each = [Message(body=body)] * (messages // 2 // entities)
        for start in range(0, entities - 3, _AT_ONCE):
            names = [f"queue-{at:05}" for at in range(start, min(start + _AT_ONCE, entities - 3))]
            await asyncio.gather(*(bus.create_queue(name) for name in names))
            readers = (bus.create_reader(name, f"lake-{name}", address="lake") for name in names)
            await asyncio.gather(*readers)
            await asyncio.gather(*(bus.send_batch(name, each) for name in names))


async def _dead_letter(bus: Bus) -> None:
    async with bus.receiver("dead") as receiver:
        while held := await receiver.receive(1_000):
            given = zip(held, itertools.cycle(("timeout", "bad address")), strict=False)
            await asyncio.gather(*(receiver.dead_letter(one, reason=why) for one, why in given))


async def _look(url: str, pid: int) -> list[Figure]:
    expiry = int(time.time()) + 3_600
    token = make_token("sb://localhost/", ROOT_NAME, DEVELOPMENT_KEY, expiry)
    server = psutil.Process(pid)
    figures = []
    async with httpx.AsyncClient(
        base_url=url, headers={"authorization": token}, timeout=60
    ) as client:
        for name, (method, path, body) in VIEWS.items():
            times = []
            used = sum(server.cpu_times()[:2])
            for _ in range(_LOOKS):
                start = time.perf_counter()
                response = await client.request(method, path, json=body)
                times.append((time.perf_counter() - start) * 1e3)
                assert response.status_code == 200, response.text
            used = (sum(server.cpu_times()[:2]) - used) / _LOOKS * 1e3
            p95 = statistics.quantiles(times, n=20)[-1]
            note = f"{used:.1f} ms of processor time each"
            figures.append(Figure(f"console: {name}, p95", p95, VIEW_MS, "ms", True, note))
        rows = (await client.get("/v1/overview")).json()["rows"]
        names = {"names": [row["name"] for row in rows]}

        async def watch() -> None:
            async with client.stream("POST", "/v1/overview/watch", json=names) as stream:
                async for _ in stream.aiter_bytes():
                    pass

        watching = asyncio.create_task(watch())
        await asyncio.sleep(3)
        used = sum(server.cpu_times()[:2])
        await asyncio.sleep(_IDLE_SECONDS)
        share = (sum(server.cpu_times()[:2]) - used) / _IDLE_SECONDS * 100
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    figures.append(
        Figure("console: open and idle, share of a core", share, IDLE_PERCENT, "%", True)
    )
    return figures


def measure(scale: float) -> list[Figure]:
    """Measure with 10,000 entities and 1,000,000 messages, or a part of that."""
    with folder() as path:
        asyncio.run(_fill(path, int(10_000 * scale), int(1_000_000 * scale)))
        with served(path) as server:
            url = server.addresses["http"]
            return [*asyncio.run(_look(url, server.pid)), *_memory(url, int(10_000 * scale))]


def _memory(url: str, entities: int) -> list[Figure]:
    """Measure the process of Debian's Chromium that shows the console; nothing without it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return []
    script = ROOT / "tests" / "console" / "javascript" / "memory.mjs"
    pages = str(min(_PAGES, entities // 100))
    told = json.loads(run_node(script, URL=url, CHROMIUM=chromium, BIG="big", ENTITY_PAGES=pages))
    empty = {name: value / 1e6 for name, value in told["empty"].items()}
    most = {name: value / 1e6 for name, value in told["largest"].items()}
    names = {"own": "private", "shared": "with its share of libraries", "rss": "resident"}
    sums = [f"{text} {most[one]:.0f}, empty page {empty[one]:.0f}" for one, text in names.items()]
    return [
        Figure("console: JavaScript heap", most["heap"], BROWSER_MB, "MB", True),
        Figure("console: private memory", most["own"], BROWSER_MB, "MB", True, "; ".join(sums)),
    ]
