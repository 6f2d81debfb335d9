"""What remembering ten million ids costs: memory, lookups, maintenance, recovery.

    python bench/remembered_ids.py [--ids 10000000] [--sqlite]

Each line says what was measured. Lookups are measured with nothing remembered, with all ids, and
with the number of ids just below it that leaves the most runs (that is the worst of all counts).
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onibus.core.records import ID_CHUNKS, ID_RUNS, RECENT_IDS, Row, Table, WriteBatch
from onibus.core.remembered_ids import RememberedIds

PARTITION = 65_536
COMMIT_IDS = 64
HITS = 0.10


class MemoryDisk:
    """Rows in dictionaries."""

    def __init__(self) -> None:
        self.rows: dict[Table, dict[Row, Row]] = {t: {} for t in (RECENT_IDS, ID_RUNS, ID_CHUNKS)}
        self._last_id = 0

    def read_ids(self, chunk: int) -> bytes:
        data = self.rows[ID_CHUNKS][(chunk,)][2]
        assert isinstance(data, bytes)
        return data

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def commit(self, batch: WriteBatch) -> None:
        for table, rows in batch.tables.items():
            mine = self.rows[table]
            for key, row in rows.items():
                if row is None:
                    mine.pop(key, None)
                else:
                    mine[key] = row


class SqliteDisk(MemoryDisk):
    """Chunks in a SQLite file, so that they are read as the default store reads them."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        import apsw

        self._connection = apsw.Connection(os.path.join(folder, "ids.db"))
        self._connection.execute("pragma journal_mode=wal; pragma synchronous=off")
        self._connection.execute(
            "create table id_chunks (chunk integer primary key, partition, entries)"
        )

    def read_ids(self, chunk: int) -> bytes:
        query = "select entries from id_chunks where chunk = ?"
        for (data,) in self._connection.execute(query, (chunk,)):
            assert isinstance(data, bytes)
            return data
        raise KeyError(chunk)

    def commit(self, batch: WriteBatch) -> None:
        chunks = batch.tables.pop(ID_CHUNKS, {})
        with self._connection as connection:
            for key, row in chunks.items():
                if row is None:
                    connection.execute("delete from id_chunks where chunk = ?", key)
                    self.rows[ID_CHUNKS].pop(key, None)
                else:
                    connection.execute("insert into id_chunks values (?, ?, ?)", row)
                    self.rows[ID_CHUNKS][key] = ()
        super().commit(batch)


def identities(start: int, count: int) -> list[bytes]:
    """Return identities by number, so that a lookup of known ones needs no list of them."""
    numbers = np.arange(start, start + count, dtype=np.uint64)
    halves = np.empty((count, 2), dtype=np.uint64)
    for column, seed in enumerate((0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)):
        mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        halves[:, column] = mixed ^ mixed >> np.uint64(31)
    packed = halves.tobytes()
    return [packed[at : at + 16] for at in range(0, len(packed), 16)]


class Filling:
    """Records ids as commits do, and keeps what it cost."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.ids = RememberedIds(PARTITION, disk)
        self.count = 0
        self.seconds = 0.0
        #: Processor time, since what others on the machine take is not ours.
        self.slices: list[float] = []

    def fill(self, until: int) -> None:
        clock = time.perf_counter
        while self.count < until:
            batches = identities(self.count, min(until - self.count, 65_536))
            for at in range(0, len(batches), COMMIT_IDS):
                out = WriteBatch()
                start = clock()
                for hash in batches[at : at + COMMIT_IDS]:
                    self.ids.record(hash, self.count, 1_000 + self.count)
                    self.count += 1
                self.ids.write(out)
                self.seconds += clock() - start
                self._maintain(out)

    def _maintain(self, out: WriteBatch) -> None:
        more = True
        while more:
            start, start_processor = time.perf_counter(), time.thread_time()
            more = self.ids.maintain(0, out)
            mark = self.ids.mark()
            self.slices.append(time.thread_time() - start_processor)
            self.seconds += time.perf_counter() - start
            self.disk.commit(out)
            self.ids.settled(mark)
            out = WriteBatch()


def lookup_microseconds(ids: RememberedIds, known: int, size: int, hits: float) -> float:
    """Return the cost of an id in batches of that size, in the best of five rounds."""
    generator = random.Random(size)
    total = 60_000 // size * size
    fresh = identities(2**40, total)
    hashes = [
        identities(generator.randrange(known), 1)[0] if generator.random() < hits else hash
        for hash in fresh
    ] if known else fresh  # fmt: skip
    batches = [hashes[at : at + size] for at in range(0, total, size)]
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for batch in batches:
            ids.find(batch, 0)
        rounds.append(time.perf_counter() - start)
    return min(rounds) / total * 1e6


def recovery_milliseconds(disk: MemoryDisk) -> float:
    """Return how long it takes to take up the rows, once they are read."""
    recent, runs = list(disk.rows[RECENT_IDS].values()), list(disk.rows[ID_RUNS].values())
    rounds = []
    for _ in range(5):
        gc.collect()
        ids = RememberedIds(PARTITION, disk)
        start = time.perf_counter()
        ids.recover(recent, runs)
        ids.find([bytes(16)], 0)
        rounds.append(time.perf_counter() - start)
    return statistics.median(rounds) * 1e3


def report_lookups(name: str, ids: RememberedIds, known: int) -> None:
    runs = len(ids._runs)
    print(f"\nlookups, {name}: {ids.count:,} ids in {runs} runs (µs an id)")
    for size in (1, 4, 64, 1_000):
        none = lookup_microseconds(ids, known, size, 0.0)
        some = lookup_microseconds(ids, known, size, HITS)
        print(f"  batches of {size:5}: {none:6.2f} all new, {some:6.2f} with {HITS:.0%} known")


def report_filling(filling: Filling) -> None:
    ids, slices = filling.ids, sorted(filling.slices)
    print(f"\nrecord, write, maintain: {filling.seconds / filling.count * 1e6:.2f} µs an id")
    worst, often = slices[-1] * 1e3, slices[int(len(slices) * 0.999)] * 1e3
    print(f"slices of maintenance: worst {worst:.2f} ms, 99.9 % below {often:.2f} ms")
    print(f"memory stated: {ids.memory_bytes() / ids.count:.2f} bytes an id")
    filters = sum(run.filter.nbytes for run in ids._runs)
    print(f"of which filters: {filters / ids.count:.2f} bytes an id")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, default=10_000_000)
    parser.add_argument("--sqlite", action="store_true", help="keep the chunks in a SQLite file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        filling = Filling(SqliteDisk(folder) if options.sqlite else MemoryDisk())
        gc.disable()
        report_lookups("none", filling.ids, 0)
        tier = 16_384 * 8**3
        worst = options.ids // tier * tier - 100
        if worst > 0:
            filling.fill(worst)
            report_lookups("most runs", filling.ids, worst)
        filling.fill(options.ids)
        report_lookups("all", filling.ids, options.ids)
        report_filling(filling)
        print(f"recovery: {recovery_milliseconds(filling.disk):.1f} ms")


if __name__ == "__main__":
    main()
