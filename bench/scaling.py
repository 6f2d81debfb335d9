"""Partitions, cores and memory for a given message rate and number of recorded ids.

    python -m bench.scaling --rate 1000000 --ids 10000000000

Measures one core with the kernel of the operators and many recorded ids, simulates how unevenly
keys spread over partitions, and multiplies. docs/scaling.md explains the figures.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from onibus.core.numbering import Numbering
from onibus.core.timeline.chunks import Chunks, nobody
from onibus.core.timeline.known_ids import RUN_ENTRIES_MAX
from onibus.core.timeline.timeline import Arrivals, Timeline
from onibus.core.timeline.words import hashed

#: Bytes of a remembered id: two words of hash, its number, its time.
ID_BYTES = 32
BATCH = 20_000
BATCHES = 10
WINDOW_MS = 600_000
#: How busy a core may be, so that a partition catches up after a stop.
BUSY = 0.6
KEYS = 1_000_000


@dataclass(frozen=True)
class Core:
    """What one core does with one partition."""

    remembered: int
    rows_s: float


def measure_core(remembered: int) -> Core:
    """Measure deduplicating and stamping with this many ids in memory."""
    timeline = Timeline(Numbering(0, True), Chunks(nobody), WINDOW_MS)
    random = np.random.default_rng(1)
    now = 1_700_000_000_000
    for start in range(0, remembered, RUN_ENTRIES_MAX):
        words = random.integers(0, 2**63, (min(RUN_ENTRIES_MAX, remembered - start), 2)).astype(
            np.uint64
        )
        numbers = np.arange(start, start + len(words))
        timeline.known.add(words, numbers, np.full(len(words), now), 0)
    bodies = pa.array([b"x" * 1_024] * BATCH)
    took = 0.0
    for at in range(BATCHES):
        # One in ten repeats another.
        names = [f"message-{at}-{one * 9 // 10:010}" for one in range(BATCH)]
        rows = pa.table({"message_id": names, "body": bodies})
        times = np.full(BATCH, now + at)
        # Time of this process: others may be busy on this machine.
        begun = time.process_time()
        words = hashed(rows.column("message_id").combine_chunks(), None, b"secret")
        timeline.take(Arrivals(rows, times, words, np.arange(BATCH)))
        took += time.process_time() - begun
    return Core(len(timeline.known), BATCH * BATCHES / took)


def skew(partitions: int, weights: np.ndarray | None = None) -> float:
    """Return how much more than its share the fullest partition gets of a million keys."""
    names = (f"{one * 0x9E3779B97F4A7C15 % 2**64:016x}" for one in range(KEYS))
    homes = np.array([crc32(name.encode()) for name in names]) % partitions
    loads = np.bincount(homes, weights, partitions)
    return float(loads.max() / loads.mean())


def plan(rate: int, ids: int, core: Core) -> tuple[int, float, float]:
    """Return partitions that are enough, the skew among them, and gigabytes of ids in each."""
    partitions = 16
    while True:
        worst = skew(partitions)
        enough_speed = rate / partitions * worst <= core.rows_s * BUSY
        enough_memory = ids / partitions * worst <= core.remembered
        if enough_speed and enough_memory:
            return partitions, worst, ids / partitions * worst * ID_BYTES / 1e9
        partitions *= 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling")
    parser.add_argument("--rate", type=int, default=1_000_000, help="messages a second")
    parser.add_argument("--ids", type=int, default=10_000_000_000, help="remembered ids")
    parser.add_argument("--a-partition", type=int, default=10_000_000, help="ids in one of them")
    arguments = parser.parse_args()
    console = Console()
    table = Table("ids in memory", "rows/s of one core", title="Deduplicate and stamp, 1 KB rows")
    for remembered in (0, arguments.a_partition // 10, arguments.a_partition):
        core = measure_core(remembered)
        table.add_row(f"{core.remembered:,}", f"{core.rows_s:,.0f}")
    console.print(table)
    table = Table(
        "partitions", "equal keys", "keys as words are used", title="The fullest one gets"
    )
    by_rank = 1 / np.arange(1, KEYS + 1)
    for partitions in (16, 64, 256, 1_024):
        table.add_row(
            f"{partitions:,}",
            f"{skew(partitions):.2f} × its share",
            f"{skew(partitions, by_rank):.1f} × its share",
        )
    console.print(table)
    partitions, worst, gigabytes = plan(arguments.rate, arguments.ids, core)
    cores = math.ceil(arguments.rate / core.rows_s / BUSY)
    console.print(
        f"{arguments.rate:,} messages/s and {arguments.ids:,} ids: {partitions:,} partitions "
        f"(the fullest has {worst:.2f} × its share), {gigabytes:.2f} GB of ids in it, "
        f"{arguments.ids * ID_BYTES / 1e9:,.0f} GB in all, and {cores:,} cores for the kernel, "
        f"{BUSY:.0%} busy",
        highlight=False,
    )


if __name__ == "__main__":
    main()
