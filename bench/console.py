"""The console: how long its data take with many entities, and what an open console costs."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.filling import send_in_batches
from bench.measure import Figure, folder, opened
from bench.served import served
from onibus import Message
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME
from onibus.security.sas import make_token

#: A view may take this long (p95, data only), and an idle console this share of a core.
VIEW_MS = 200
IDLE_PERCENT = 2
_LOOKS = 40
_IDLE_SECONDS = 40

VIEWS: dict[str, tuple[str, str, Any]] = {
    "overview": ("GET", "/v1/overview", None),
    "overview, sorted by active": ("GET", "/v1/overview?sort=active", None),
    "overview, searched": ("GET", "/v1/overview?search=77", None),
    "figures": ("GET", "/v1/entities/big/history", None),
    "partitions": ("GET", "/v1/entities/big/partitions", None),
    "messages": ("POST", "/v1/entities/big/search", {"limit": 50}),
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
        await send_in_batches(bus, "big", (Message(body=body) for _ in range(messages)))
        for number in range(entities - 1):
            await bus.create_queue(f"queue-{number:05}")


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
            return asyncio.run(_look(server.addresses["http"], server.pid))
