"""A store that only pretends to commit: it reads files and changes none.

Commits are kept in memory, on top of the rows in the files. So opening a store, with its recovery
and the ends of unfinished operations, can be tried on files that must not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import Any, cast

import apsw

from onibus.core.errors import Damaged, OnibusError
from onibus.core.records import BLOCKS, Row, Table, Value, WriteBatch
from onibus.store import sql
from onibus.store.block_files import FILE_BYTES_MIN, DirectoryFiles, LargeBlocks
from onibus.store.connection import close, open_to_look, translate
from onibus.store.interface import Disk


class Rehearsal:
    """A store as its files have it, with pretended writes."""

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.name = name
        self.disk: Disk = path
        self.position = 0
        self.notice = ""
        self._large = LargeBlocks(DirectoryFiles(path + ".blocks"), FILE_BYTES_MIN)
        self._written: dict[Table, dict[Row, Row | None]] = {}
        try:
            self.connection = open_to_look(path)
        except apsw.Error as error:
            raise translate(error, f"reading {path}") from error
        #: the rows of `meta` in the files
        self.own: dict[str, Any] = dict(cast("Any", self._select(sql.READ_META, ())))
        self.identity = cast("bytes", self.own.get("identity", b""))

    def commit(self, batch: WriteBatch) -> None:
        for table, rows in batch.tables.items():
            self._written.setdefault(table, {}).update(rows)

    def read(self, table: Table, key: Row) -> Row | None:
        written = self._written.get(table, {})
        if key in written:
            return written[key]
        rows = self._select(sql.STATEMENTS[table.name].read, key)
        return self._resolve(table, rows[0]) if rows else None

    def scan(self, table: Table, columns: tuple[str, ...] = ()) -> Iterator[Row]:
        written = self._written.get(table, {})
        whole = table.columns if written or not columns else columns
        cursor = self._cursor(sql.scan(table, whole), ())
        if not written:
            return (self._resolve(table, row) for row in self._rows(cursor))
        return self._together(table, written, columns or whole, cursor)

    def _together(
        self,
        table: Table,
        written: dict[Row, Row | None],
        columns: tuple[str, ...],
        cursor: apsw.Cursor,
    ) -> Iterator[Row]:
        """Yield the written rows and the others in the files, in key order."""

        def key(row: Row) -> Any:
            return row[: table.key]

        new = sorted((row for row in written.values() if row is not None), key=key)
        old = (row for row in self._rows(cursor) if key(row) not in written)
        wanted = [table.columns.index(column) for column in columns]
        for row in merge(new, old, key=key):
            yield tuple([self._resolve(table, row)[index] for index in wanted])

    def highest(self, table: Table) -> Value:
        rows = self._select(sql.STATEMENTS[table.name].highest, ())
        keys = [cast("Any", key[0]) for key in self._written.get(table, {})]
        return max([*keys, *[key for (key,) in rows if key is not None]], default=None)

    def maintain(self) -> None:
        """Do nothing: there is nothing to maintain."""

    def probe(self) -> None:
        """Do nothing: there is no disk to probe."""

    def size(self) -> int:
        return 0

    def free(self) -> int:
        return 1 << 62

    def owed(self) -> int:
        return 0

    def close(self) -> None:
        self._large.close()
        close(self.connection)

    def _resolve(self, table: Table, row: Row) -> Row:
        return self._large.resolve(row) if table is BLOCKS and len(row) > 1 else row

    def _select(self, statement: str, values: Row) -> list[Row]:
        return list(self._rows(self._cursor(statement, values)))

    def _cursor(self, statement: str, values: Row) -> apsw.Cursor:
        try:
            return self.connection.execute(statement, values)
        except apsw.Error as error:
            raise self._error(error) from error

    def _rows(self, cursor: apsw.Cursor) -> Iterator[Row]:
        try:
            yield from cast("Iterator[Row]", cursor)
        except apsw.Error as error:
            raise self._error(error) from error
        except UnicodeDecodeError as error:
            raise Damaged(f"{self.path} has an invalid string: {error}") from error

    def _error(self, error: apsw.Error) -> OnibusError:
        return translate(error, f"reading {self.path}", self.connection)
