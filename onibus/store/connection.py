"""Connections to a SQLite file, set up so that a commit that returned survives a power cut.

Every page of the main file ends in a checksum of 8 bytes, written and verified by SQLite's own
`cksumvfs`, so a flipped bit is an error instead of a wrong result. The log has its own checksums.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import uuid
from urllib.parse import quote

import apsw
import apsw.sqlite_extra

from onibus.core.errors import Damaged, OnibusError, StoreFailed
from onibus.core.records import FORMAT_VERSION
from onibus.store import sql

#: Older versions can lose commits when the log is reset (sqlite.org/wal.html#walresetbug).
OLDEST_SQLITE = (3, 51, 3)
#: Bytes that `cksumvfs` needs at the end of each page.
CHECKSUM_BYTES = 8
#: Measured best for commits of 1 KB to 1 MB: 4096 takes a third more time for large blocks, and
#: 16384 writes twice as much for small ones.
PAGE_BYTES = 8192
CACHE_BYTES = 8 << 20
#: Time that a connection waits while another uses the log exclusively, which takes microseconds.
BUSY_MS = 10_000

#: A page failed its checksum, or the file ends before it.
DAMAGES = (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_SHORT_READ)
#: SQLite reports a failed read with one of these as a malformed database.
READ_ERRORS = (errno.EIO, errno.ENXIO, errno.ERANGE)


#: Earlier formats never existed.
OLDEST_FORMAT = min(sql.MIGRATIONS)


def migrate(writer: apsw.Connection, version: int) -> None:
    """Migrate a store of an earlier version to the current format, in one transaction."""
    writer.execute(sql.BEGIN)
    for step in range(version, FORMAT_VERSION):
        for statement in sql.MIGRATIONS[step]:
            writer.execute(statement)
    writer.execute(sql.PUT_META, ("format", FORMAT_VERSION))
    writer.execute(sql.COMMIT)


def create(writer: apsw.Connection, name: str) -> None:
    """Create the tables of a new store.

    A power cut at any point leaves a file without tables, or with all of them.
    """
    # Whether a file can shrink is decided before its first table exists.
    writer.pragma("auto_vacuum", "INCREMENTAL")
    writer.pragma("journal_mode", "WAL")
    writer.pragma("wal_autocheckpoint", 0)
    writer.execute(sql.BEGIN)
    for statement in sql.SCHEMA:
        writer.execute(statement)
    own = {"format": FORMAT_VERSION, "identity": uuid.uuid4().bytes, "name": name, "position": 0}
    writer.executemany(sql.PUT_META, own.items())
    writer.execute(sql.COMMIT)


def require_sqlite(version: str) -> None:
    """Reject a SQLite that is known to lose data."""
    if tuple(int(part) for part in version.split(".")) < OLDEST_SQLITE:
        oldest = ".".join(str(part) for part in OLDEST_SQLITE)
        raise StoreFailed(f"SQLite {version} can lose commits: install {oldest} or newer")


@functools.cache
def checksum_vfs() -> str:
    """Register SQLite's checksumming file layer and return its name."""
    connection = apsw.Connection(":memory:")
    try:
        apsw.sqlite_extra.load(connection, "cksumvfs")
    except Exception as error:
        raise StoreFailed(f"cannot load SQLite's checksums (cksumvfs): {error}") from error
    finally:
        connection.close()
    return "cksmvfs"


def unreadable(connection: apsw.Connection) -> bool:
    """Return whether the disk failed a read of this connection.

    SQLite's result does not say so. Its file layer knows about the main file. The log is read once
    more, because SQLite hides its errors.
    """
    last = ctypes.c_int(0)
    connection.file_control("main", apsw.SQLITE_FCNTL_LAST_ERRNO, ctypes.addressof(last))
    if last.value in READ_ERRORS:
        return True
    if connection.open_vfs != checksum_vfs():
        return False
    try:
        with open(connection.filename_wal, "rb") as log:
            while log.read(1 << 20):
                pass
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def translate(error: Exception, doing: str, *connections: apsw.Connection) -> OnibusError:
    """Return our error for a SQLite error met while `doing`, over one of these connections."""
    if isinstance(error, OnibusError):
        return error
    if isinstance(error, apsw.IOError):
        damaged = getattr(error, "extendedresult", 0) in DAMAGES
    else:
        damaged = isinstance(error, (apsw.CorruptError, apsw.NotADBError))
        if damaged and any(unreadable(connection) for connection in connections):
            return StoreFailed(f"{doing}: the disk failed a read, which SQLite calls: {error}")
    if damaged:
        return Damaged(f"{doing}: stored bytes differ from those written ({error})")
    return StoreFailed(f"{doing}: {type(error).__name__}: {error}")


def open_writer(path: str, vfs: str | None) -> apsw.Connection:
    """Open the only connection that writes. `vfs` is a simulated disk; None a real one."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    connection = apsw.Connection(path, flags, vfs or checksum_vfs())
    try:
        # Closing must neither merge nor remove a log that may be the only evidence left.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if vfs:
            # A simulated disk has no shared memory, which a log with several users needs.
            connection.pragma("locking_mode", "EXCLUSIVE")
        else:
            reserve = ctypes.c_int(CHECKSUM_BYTES)
            connection.file_control(
                "main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserve)
            )
        connection.set_busy_timeout(BUSY_MS)
        connection.pragma("page_size", PAGE_BYTES)
        connection.pragma("synchronous", "FULL")
        # Without this, a sync on macOS does not reach the disk; elsewhere it changes nothing.
        connection.pragma("fullfsync", 1)
        connection.pragma("cache_size", -CACHE_BYTES // 1024)
    except BaseException:
        close(connection)
        raise
    return connection


def close(connection: apsw.Connection) -> None:
    """Close a connection. An error here only concerns uncommitted data."""
    with contextlib.suppress(apsw.Error):
        connection.close()


def open_reader(path: str) -> apsw.Connection:
    """Open a read-only connection, next to the one that writes."""
    connection = apsw.Connection(path, apsw.SQLITE_OPEN_READONLY, checksum_vfs())
    connection.set_busy_timeout(BUSY_MS)
    return connection


def open_to_look(path: str) -> apsw.Connection:
    """Open a connection that leaves the files unchanged, whether or not they are open elsewhere."""
    if os.path.exists(path + "-wal"):
        return open_reader(path)
    # Without a log no process has it open: SQLite need not create its own files next to it.
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(path)}?immutable=1", flags, checksum_vfs())
