"""A store in memory, for tests, the simulator and the ephemeral mode.

It does what every store does, except surviving a power cut: passing `tables` of a closed store to a
new one corresponds to reopening a file.
"""

from __future__ import annotations

from collections.abc import Iterator

from onibus.core.errors import StoreFailed
from onibus.core.records import BLOCKS, TABLES, Row, Table, Value, WriteBatch
from onibus.store.interface import Disk

Tables = dict[Table, dict[Row, Row]]


def _as_bytes(row: Row) -> Row:
    """Return a row of `blocks` as it is read back: only such rows are written as memoryviews."""
    return (row[0], bytes(row[1])) if isinstance(row[1], memoryview) else row


class MemoryStore:
    """Rows in one dict per table. `fail_next` makes a commit fail, for tests."""

    def __init__(self, name: str, tables: Tables | None = None) -> None:
        self.name = name
        self.identity = name.encode()
        self.position = 0
        self.disk: Disk = name
        self.notice = ""
        self.tables: Tables = {table: {} for table in TABLES} if tables is None else tables
        self._unusable = ""
        self._fail_next: bool | None = None

    def fail_next(self, *, kept: bool) -> None:
        """Make the next commit fail as a disk does: its rows are kept nevertheless, or not."""
        self._fail_next = kept

    def commit(self, batch: WriteBatch) -> None:
        if self._unusable:
            self._refuse()
        failing = self._fail_next is not None
        if not failing or self._fail_next:
            for table, rows in batch.tables.items():
                mine = self.tables[table]
                for key, row in rows.items():
                    if row is None:
                        mine.pop(key, None)
                    else:
                        mine[key] = _as_bytes(row) if table is BLOCKS else row
        if failing:
            self._unusable = "a commit failed"
            self._refuse()

    def read(self, table: Table, key: Row) -> Row | None:
        if self._unusable:
            self._refuse()
        return self.tables[table].get(key)

    def scan(self, table: Table, columns: tuple[str, ...] = ()) -> Iterator[Row]:
        if self._unusable:
            self._refuse()
        # A copy: a scan does not show later commits.
        rows = self.tables[table].copy()
        ordered = (rows[key] for key in sorted(rows))
        if not columns:
            return ordered
        wanted = [table.columns.index(column) for column in columns]
        return (tuple([row[index] for index in wanted]) for row in ordered)

    def highest(self, table: Table) -> Value:
        if self._unusable:
            self._refuse()
        rows = self.tables[table]
        return max(rows)[0] if rows else None

    def maintain(self) -> None:
        if self._unusable:
            self._refuse()

    def probe(self) -> None:
        if self._unusable:
            self._refuse()

    def size(self) -> int:
        if self._unusable:
            self._refuse()
        return sum(
            len(value) if isinstance(value, (bytes, str)) else 8
            for rows in self.tables.values()
            for row in rows.values()
            for value in row
        )

    def free(self) -> int:
        return 1 << 62

    def owed(self) -> int:
        return 0

    def close(self) -> None:
        self._unusable = self._unusable or "it was closed"

    def _refuse(self) -> None:
        raise StoreFailed(f"store {self.name} cannot be used: {self._unusable}")
