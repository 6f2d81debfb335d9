"""What a store is: tables of rows, changed by whole batches, durable before `commit` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from onibus.core.records import Row, Table, Value, WriteBatch

#: Stores with an equal one share their free space.
Disk = int | str


class Store(Protocol):
    """One message store. One owner writes it; `conformance.py` is what every store must pass."""

    name: str
    #: 16 bytes that tell its files from those of any other store
    identity: bytes
    #: the number of its last commit, so that an older copy of its files is noticed
    position: int
    disk: Disk
    #: an anomaly of its opening, for an alarm, or empty
    notice: str

    def commit(self, batch: WriteBatch) -> None:
        """Make the whole batch durable, then return. All of it or, with an error, perhaps none.

        After an error the store is poisoned: every further call but `close` raises `StoreFailed`
        until it has been opened anew, since what reached the disk is not known.
        """

    def read(self, table: Table, key: Row) -> Row | None:
        """Return the committed row of that key."""

    def scan(self, table: Table, columns: tuple[str, ...] = ()) -> Iterator[Row]:
        """Yield all committed rows in key order, of all columns or of those named."""

    def highest(self, table: Table) -> Value:
        """Return the highest first key column in the table, or None when it is empty."""

    def maintain(self) -> None:
        """Do housekeeping that no commit waits for (SQLite: move the log into the file)."""

    def probe(self) -> None:
        """Return when the disk has taken a small write; fail, as `commit` does, if it does not."""

    def size(self) -> int:
        """Return how many bytes the store takes on its disk."""

    def free(self) -> int:
        """Return how many bytes can still be written on the store's disk."""

    def owed(self) -> int:
        """Return how many bytes the store will still write for what is committed, at most."""

    def close(self) -> None:
        """Let go of everything. What was committed stays. Nobody may be using it meanwhile."""


#: Opens a store by its name. One that is known to have been there before is not made anew where its
#: files are missing: their disk may not be mounted.
OpenStore = Callable[[str, bool], Store]
