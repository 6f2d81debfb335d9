"""Interface of a store: tables of rows, changed by batches, durable before `commit` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from onibus.core.records import Row, Table, Value, WriteBatch

#: Stores with an equal device share their free space.
Disk = int | str


class Store(Protocol):
    """A message store with one writer; every store must pass `conformance.py`."""

    name: str
    #: 16 bytes that distinguish its files from those of any other store
    identity: bytes
    #: the number of its last commit, which reveals an older copy of its files
    position: int
    disk: Disk
    #: an anomaly found at opening, for an alarm, or empty
    notice: str

    def commit(self, batch: WriteBatch) -> None:
        """Make the whole batch durable, then return. After an error, it is durable or not at all.

        After an error the store is unusable: every further call except `close` raises `StoreFailed`
        until it is reopened, since it is unknown which bytes reached the disk.
        """

    def read(self, table: Table, key: Row) -> Row | None:
        """Return the committed row of that key."""

    def scan(self, table: Table, columns: tuple[str, ...] = ()) -> Iterator[Row]:
        """Yield all committed rows in key order, with all columns or the named ones."""

    def highest(self, table: Table) -> Value:
        """Return the highest first key column in the table, or None if it is empty."""

    def maintain(self) -> None:
        """Do housekeeping that no commit waits for (SQLite: merge the log into the file)."""

    def probe(self) -> None:
        """Return once the disk has accepted a small write; otherwise fail like `commit`."""

    def size(self) -> int:
        """Return the bytes that the store takes on its disk."""

    def free(self) -> int:
        """Return the bytes that can still be written on the store's disk."""

    def owed(self) -> int:
        """Return the most bytes that the store will still write for committed data."""

    def close(self) -> None:
        """Release everything; committed data stay. No other thread may use the store."""


#: Opens a store by its name. A store known to exist is not recreated if its files are missing:
#: their disk may not be mounted.
OpenStore = Callable[[str, bool], Store]
