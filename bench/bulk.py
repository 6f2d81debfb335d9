"""Bulk: batches in Arrow against a plain file and COPY, and blocks read back against read()."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pyarrow as pa

from bench.measure import BODY_BYTES, ROUNDS, Figure, folder, median, opened
from bench.postgres import Cluster, cluster, copy_file
from onibus import Bus

ROWS = 10_000
#: Batches of one round, and how many of them are on their way at a time.
BATCHES = 8
SENDERS = 2


def batch_of(prefix: str, bodies: pa.Array) -> pa.RecordBatch:
    """Return rows of 1 KB, each with a different id."""
    ids = pa.array([f"{prefix}-{number}" for number in range(ROWS)])
    return pa.record_batch({"message_id": ids, "body": bodies})


def _append(path: Path, batches: list[pa.RecordBatch]) -> float:
    """Append the bytes of ids and bodies to a plain file, sync each batch; return rows a second."""
    contents = [
        b"".join(bytes(batch.column(name).buffers()[2]) for name in ("message_id", "body"))
        for batch in batches
    ]
    with open(path / "plain", "ab", buffering=0) as file:
        start = time.perf_counter()
        for content in contents:
            file.write(content)
            os.fdatasync(file.fileno())
        return ROWS * len(batches) / (time.perf_counter() - start)


async def _send(bus: Bus, batches: list[pa.RecordBatch]) -> float:
    waiting = iter(batches)

    async def sender() -> None:
        for batch in waiting:
            await bus.send_arrow("queue", batch)

    start = time.perf_counter()
    await asyncio.gather(*[sender() for _ in range(SENDERS)])
    return ROWS * len(batches) / (time.perf_counter() - start)


def _copy(server: Cluster, batches: list[pa.RecordBatch], number: int) -> float:
    files = [server.write(f"{number}-{at}", copy_file(batch)) for at, batch in enumerate(batches)]
    taken = server.copy_s(files)
    for file in files:
        file.unlink()
    return ROWS * len(batches) / sum(taken)


async def _read_log(bus: Bus, start: int) -> tuple[float, int]:
    """Read the log from a number on; return bytes a second, and bytes."""
    begun = time.perf_counter()
    size = 0
    async for batch in bus.read_log("queue", 0, start):
        size += batch.nbytes
    return size / (time.perf_counter() - begun), size


def _read_plain(path: Path, size: int) -> float:
    """Read as many bytes of a plain cached file; return bytes a second."""
    step = 1 << 20
    with open(path / "plain", "rb", buffering=0) as file:
        start = time.perf_counter()
        found = 0
        while found < size and (chunk := file.read(min(step, size - found))):
            found += len(chunk)
        return found / (time.perf_counter() - start)


async def _rounds(rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in ("file", "bus", "copy", "read", "blocks")}
    bodies = pa.array([os.urandom(BODY_BYTES) for _ in range(ROWS)], pa.binary())
    with folder() as path, folder() as other, cluster(other) as server:
        async with opened(path / "bus") as bus:
            await bus.create_queue(
                "queue", requires_duplicate_detection=True, max_size_bytes=1 << 40
            )
            for number in range(rounds + 1):
                batches = [batch_of(f"{number}-{at}", bodies) for at in range(BATCHES)]
                results = {"file": _append(path, batches), "bus": await _send(bus, batches)}
                if server is not None:
                    results["copy"] = await asyncio.to_thread(_copy, server, batches, number)
                # Blocks are written past the system's cache: the first reading brings them there.
                for _ in range(2):
                    results["blocks"], size = await _read_log(bus, 1 + number * BATCHES * ROWS)
                results["read"] = _read_plain(path, size)
                # The first round fills caches and makes files grow.
                for name, value in results.items() if number else ():
                    found[name].append(value)
    return found


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Return the figures of bulk sends and of reading them back."""
    found = asyncio.run(_rounds(rounds))
    file, bus = median(found["file"]), median(found["bus"])
    figures = [
        Figure(
            "bulk sends, of append and sync",
            100 * bus / file,
            35,
            "%",
            note=f"{bus:,.0f} rows/s against {file:,.0f}",
        )
    ]
    if found["copy"]:
        copy = median(found["copy"])
        figures.append(
            Figure(
                "bulk sends, of PostgreSQL's COPY",
                100 * bus / copy,
                100,
                "%",
                note=f"COPY {copy:,.0f} rows/s",
            )
        )
    else:
        figures.append(
            Figure("bulk sends, of PostgreSQL's COPY", 0, 0, "%", note="PostgreSQL is absent")
        )
    plain, blocks = median(found["read"]), median(found["blocks"])
    figures.append(
        Figure(
            "reading the log of bulk sends, of a cached read()",
            100 * blocks / plain,
            25,
            "%",
            note=f"{blocks / 1e6:,.0f} MB/s against {plain / 1e6:,.0f}",
        )
    )
    return figures
