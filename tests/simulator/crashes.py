"""A store on a simulated disk, checked against a model of what it was told.

A trial commits batches of rows, drawn by its seed, over several tables at once. After each crash
or failure the store is opened anew and must hold exactly what the model holds: every commit that
returned, in order, and of the one that raised an error all or nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from onibus.core.errors import OnibusError
from onibus.core.records import BLOCKS, COUNTERS, GONE, SESSIONS, Row, Table, WriteBatch
from onibus.store.interface import Store
from onibus.store.memory import MemoryStore
from onibus.store.sqlite import SqliteStore
from onibus.testing.disk import SimulatedBlockFiles, SimulatedDisk

TABLES = (BLOCKS, COUNTERS, GONE, SESSIONS)
#: Blocks that a trial keeps, so that its files stay small and their pages are used again.
BLOCKS_KEPT = 8
#: From this length on a trial's blocks are files: two of the five lengths that are drawn.
FILE_BYTES_MIN = 1_000


class Lost(AssertionError):
    """The store does not hold what was acknowledged."""


def draw_batch(rng: random.Random, number: int) -> WriteBatch:
    """Return the rows of commit `number`: new ones, replaced ones and deleted ones."""
    size = rng.choice((0, 20, 300, 2_000, 30_000))
    payload = (b"%d," % number) * (size // 4)
    batch = WriteBatch()
    batch.put(BLOCKS, (number, payload))
    batch.delete(BLOCKS, (number - BLOCKS_KEPT,))
    batch.put(COUNTERS, (0, number, rng.getrandbits(40), 0, 0, 0, 0, 0, 0))
    batch.put(
        SESSIONS, (0, 0, f"s{rng.randrange(20)}", b"state %d" % number, 0, 0, number, 0, "", b"", 0)
    )
    if rng.random() < 0.5:
        batch.put(GONE, (0, 0, rng.randrange(50), number))
        batch.delete(GONE, (0, 0, rng.randrange(50)))
    return batch


def contents(store: Store) -> dict[Table, list[Row]]:
    """Return all rows of the tables that a trial writes."""
    return {table: list(store.scan(table)) for table in TABLES}


class Trial:
    """One seed's disk, store and model. `prepare` is called with each store just opened."""

    def __init__(
        self,
        seed: int,
        files: dict[str, bytes] | None = None,
        prepare: Callable[[SqliteStore], None] = lambda store: None,
        syncing: bool = True,
    ) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedDisk(seed, files)
        self._block_files = SimulatedBlockFiles(self.disk, syncing)
        self.acknowledged = 0
        self._prepare = prepare
        self._number = 0
        self._model = MemoryStore("model")
        self._unknown = WriteBatch()

    def open(self) -> None:
        """Open the store and compare it with the model."""
        # A log of any length may be moved, so that crashes meet that too.
        self.store = SqliteStore(
            "store",
            "one",
            vfs=self.disk.name,
            log_bytes_max=0,
            block_files=self._block_files,
            file_bytes_min=FILE_BYTES_MIN,
        )
        self._prepare(self.store)
        self.check()

    def check(self) -> None:
        """Raise Lost unless the store holds what was acknowledged and nothing by halves."""
        found = contents(self.store)
        if found != contents(self._model):
            self._model.commit(self._unknown)
            if found != contents(self._model):
                raise Lost(
                    f"{self.acknowledged} commits were acknowledged, the last attempted was "
                    f"{self._number}, the store's counters are {found[COUNTERS]}"
                )
        self._unknown = WriteBatch()

    def commit(self) -> None:
        """Commit the next batch; what raises is unknown until the next check."""
        self._number += 1
        batch = draw_batch(self.random, self._number)
        try:
            self.store.commit(batch)
        except OnibusError:
            self._unknown = batch
            raise
        self._model.commit(batch)
        self.acknowledged += 1

    def run(self, commits: int) -> bool:
        """Commit so many batches, moving the log now and then; return whether all went well."""
        try:
            for _ in range(commits):
                self.commit()
                if self.random.random() < 0.15:
                    self.store.maintain()
        except OnibusError:
            return False
        return True

    def crash(self) -> None:
        """Let power go, here or where it went already, and come back."""
        self.disk.powered = False
        self.store.close()
        self.disk.restart()

    def integrity(self) -> str:
        """Return what SQLite itself says of the store's file."""
        return str(self.store._writer.pragma("integrity_check"))
