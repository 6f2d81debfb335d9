"""Reads over separate connections: scans, and a second read before a store counts as damaged.

SQLite calls a database malformed when a page fails its checks, or when the disk fails a read.
Only the first is damage. The second passes with the disk, and the broker reopens the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import apsw

from onibus.core.errors import Damaged, OnibusError, StoreFailed
from onibus.core.records import Row
from onibus.store import sql
from onibus.store.connection import close, open_reader, translate

Read = Callable[[apsw.Connection], object]


def check_pages(connection: apsw.Connection) -> None:
    """Read every page in use; raise for the first that differs from what was written."""
    found = connection.execute(sql.CHECK_PAGES).get
    if found != "ok":
        raise apsw.CorruptError(found)


def judge(
    error: Exception, doing: str, connection: apsw.Connection, again: Read, path: str | None
) -> OnibusError:
    """Return our error for one that a connection met; damage only if `again` meets it too.

    `again` reads over a new connection to `path`, or over the same one if that is None.
    """
    told = translate(error, doing, connection)
    if told is error or not isinstance(told, Damaged):
        return told
    try:
        fresh = connection if path is None else open_reader(path)
    except apsw.Error as second:
        return translate(second, doing)
    try:
        again(fresh)
    except apsw.Error as second:
        return translate(second, doing, fresh)
    finally:
        if path is not None:
            close(fresh)
    return StoreFailed(f"{doing}: {error}; another connection reads the same pages well")


def scan(path: str, statement: str, doing: str) -> Iterator[Row]:
    """Run a statement on the committed rows; return an iterator.

    An unfinished scan over a shared connection would keep all other reads at its snapshot.
    """
    try:
        connection = open_reader(path)
    except apsw.Error as error:
        raise translate(error, doing) from error
    try:
        cursor = connection.execute(statement)
    except apsw.Error as error:
        told = translate(error, doing, connection)
        close(connection)
        raise told from error
    return _rows(connection, cursor, doing)


def _rows(connection: apsw.Connection, cursor: apsw.Cursor, doing: str) -> Iterator[Row]:
    try:
        yield from cast("Iterator[Row]", cursor)
    except apsw.Error as error:
        raise translate(error, doing, connection) from error
    finally:
        close(connection)
