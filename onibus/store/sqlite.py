"""The default store: a SQLite file with one writing connection and several that read.

Files, for a store at `<path>`:

    <path>            the database; every page has a checksum (connection.py)
    <path>-wal, -shm  SQLite's log (log_room.py) and its index; removed by a clean close
    <path>.blocks/    large blocks, one file each (block_files.py)
    <path>.lock       locked while the store is open, like the database itself (files.py)
    <path>.witness    position of the store (witness.py)
    <path>.probe      written at times to test the disk; removed by a clean close

Four names in the table `meta` belong to the store itself: `format`, `identity` (16 random bytes),
`name`, and `position`, the number of the last commit, which each commit raises.

A commit returns after a sync of the log (synchronous=FULL). `maintain` merges the log into the main
file over a separate connection, so that commits hardly wait for it. One thread may commit while
others read and one maintains. With a simulated disk one connection does everything, without lock,
witness or page checksums, and only one thread may use the store; its block files are given to it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, NoReturn, cast

import apsw

from onibus.core.errors import Damaged, NewerFormat, StoreFailed
from onibus.core.records import BLOCKS, FORMAT_VERSION, Row, Table, Value, WriteBatch
from onibus.store import sql, witness
from onibus.store.block_files import FILE_BYTES_MIN, BlockFiles, DirectoryFiles, LargeBlocks
from onibus.store.connection import (
    BUSY_MS,
    OLDEST_FORMAT,
    PAGE_BYTES,
    close,
    create,
    migrate,
    open_reader,
    open_writer,
    require_sqlite,
    translate,
)
from onibus.store.files import FreeBytes, ProbeFile, free_bytes, length_of, sync_directory
from onibus.store.interface import Disk
from onibus.store.log_room import LogRoom
from onibus.store.place import StorePlace, check_length, check_there
from onibus.store.reading import Read, check_pages, judge, scan
from onibus.store.turns import Turns

#: A log larger than this is merged. Larger means fewer merges, and a longer start.
LOG_BYTES_MAX = 24 << 20
#: Pages of the log that may be left for a commit to merge; it takes a few milliseconds.
REST_BYTES_MAX = 4 << 20
#: Free pages are released to the disk once they exceed this and a quarter of the file.
FREE_PAGES_MAX = 64
#: Pages released in one transaction, which commits wait for. SQLite returns a row for each, and
#: each row waits for the interpreter: 5 ms while another thread computes.
PAGES_A_SLICE = 64
#: Passes that `maintain` makes over a growing log.
PASSES_MAX = 5


class SqliteStore:
    """A message store in one SQLite file."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        vfs: str | None = None,
        *,
        log_bytes_max: int = LOG_BYTES_MAX,
        free_bytes: FreeBytes = free_bytes,
        block_files: BlockFiles | None = None,
        file_bytes_min: int = FILE_BYTES_MIN,
        known: bool = False,
    ) -> None:
        require_sqlite(apsw.sqlite_lib_version())
        self.name = name
        #: an anomaly found at opening, for an alarm, or empty
        self.notice = ""
        self.path = os.fspath(path) if vfs else os.path.abspath(path)
        self._simulated = vfs is not None
        self.disk: Disk = name
        #: it existed before, so it is not recreated
        self._known = known
        if not self._simulated:
            block_files = DirectoryFiles(self.path + ".blocks")
        self._large = LargeBlocks(block_files, file_bytes_min)
        self._log_bytes_max = log_bytes_max
        self._free_bytes = free_bytes
        self._unusable = ""
        self._commit_failed = False
        self._log_pages = 0
        #: pages of the log that are already in the main file
        self._moved_pages = 0
        self._move_rest = False
        self._room: LogRoom | None = None
        self._length = 0
        #: the main file may have been written by another program
        self._suspect = False
        self._merging = threading.Lock()
        #: the position at the last maintenance
        self._maintained = -1
        #: the log has pages whose merge shortens the main file
        self._shrinking = False
        self._reading = threading.Lock()
        self._turns = Turns()
        # Resources to release in reverse order, whether or not opening succeeds.
        self._held = contextlib.ExitStack()
        try:
            self._open(vfs)
        except BaseException as error:
            self._unusable = "it cannot be opened"
            with self._held:
                if isinstance(error, (apsw.Error, OSError)):
                    used = [self._writer] if hasattr(self, "_writer") else []
                    raise translate(error, f"opening {self.path}", *used) from error
            raise

    # Opening

    def _open(self, vfs: str | None) -> None:
        testimony = None
        if not self._simulated:
            if self._known:
                check_there(self.path)
            if not os.path.exists(self.path):
                # Before an empty one is created in its place.
                check_length(self.path, witness.read(self.path + ".witness"))
            self._place = StorePlace(self.path)
            self._held.callback(self._place.close)
            self.disk = self._place.device
            testimony = witness.read(self.path + ".witness")
            check_length(self.path, testimony)
        self._writer = self._checkpointer = self._reader = open_writer(self.path, vfs)
        self._held.callback(close, self._writer)
        self._cursor = self._writer.cursor()
        if self._writer.execute(sql.COUNT_TABLES).get == 0:
            if testimony:
                raise Damaged(
                    f"{self.path} has no tables and had {testimony.position} commits. Nothing was "
                    "changed. Restore the store's files from a backup"
                )
            create(self._writer, self.name)
        self._read_meta()
        self._check_witness(testimony)
        statement = sql.STATEMENTS[BLOCKS.name].read
        self._held.callback(self._large.close)
        self._large.open(lambda block: self._writer.execute(statement, (block,)).fetchone())
        self._writer.set_wal_hook(self._note_log)
        if not self._simulated:
            self._open_beside()

    def _open_beside(self) -> None:
        self._reader = open_reader(self.path)
        self._held.callback(close, self._reader)
        self._checkpointer = open_writer(self.path, None)
        self._held.callback(close, self._checkpointer)
        # Only `_move_log` and `_empty_log` write the main file.
        self._checkpointer.pragma("wal_autocheckpoint", 0)
        self._room = LogRoom(self.path + "-wal")
        self._held.callback(self._room.close)
        self._witness = witness.Witness(self.path + ".witness", self.identity)
        self._held.callback(self._witness.close)
        self._probe_file = ProbeFile(self.path + ".probe")
        self._held.callback(self._probe_file.close)
        sync_directory(os.path.dirname(self.path))
        self._note_length()
        self._place.note_written()
        self._place.check()
        self._witness.settle(self.position, self._length)

    def _check_place(self, *, thoroughly: bool = False) -> None:
        """Reject further use of files that no opening would find under the store's name."""
        if self._simulated:
            return
        try:
            if thoroughly:
                self._place.check_path()
                self._place.check_content(self._length)
            else:
                self._place.check()
        except (OSError, StoreFailed, Damaged) as error:
            self._fail(error, "its files were moved, replaced or overwritten")

    def _check_writes(self) -> None:
        """If another program may have written the main file, read all of it.

        Times alone prove nothing: some file systems change them late, and `touch` does too.
        """
        with self._merging:
            self._look_at_writes()
        if not self._suspect:
            return
        self._suspect = False
        try:
            fresh = open_reader(self.path)
            try:
                with self._turns.slice():
                    own = dict(
                        cast("list[tuple[str, Any]]", fresh.execute(sql.READ_META).fetchall())
                    )
                    identity, position = own.get("identity"), own.get("position")
                    if (identity, position) != (self.identity, self.position):
                        raise Damaged(
                            f"{self.path} was overwritten by another program: it is at commit "
                            f"{position}, not {self.position}. Restore the store's files from a "
                            "backup"
                        )
                check_pages(fresh)
            finally:
                close(fresh)
        except BaseException as error:
            self._fail(error, "its main file was overwritten")

    def _look_at_writes(self) -> None:
        """Note whether the main file was written since the last merge."""
        if not self._simulated and self._place.was_written():
            self._suspect = True
            self._place.note_written()

    def _note_writes(self) -> None:
        """Record the main file after a merge."""
        if not self._simulated:
            self._place.note_written()

    def _note_length(self) -> None:
        """Record a length that the main file certainly has.

        SQLite does not sync the main file after a pass that left part of the log. A witness with a
        length that a power cut undoes would report a loss that did not happen.
        """
        if not self._simulated and not self._shrinking:
            os.fsync(self._place.file)
            self._length = os.fstat(self._place.file).st_size

    def _read_meta(self) -> None:
        if self._writer.pragma("journal_mode") != "wal":
            raise Damaged(f"{self.path}: its first page declares no write-ahead log")
        if not self._simulated and self._writer.pragma("checksum_verification") != "1":
            raise Damaged(f"{self.path}: its first page declares pages without checksums")
        self._writer.pragma("wal_autocheckpoint", 0)
        own = dict(cast("list[tuple[str, Any]]", self._writer.execute(sql.READ_META).fetchall()))
        try:
            version, self.identity = int(own["format"]), bytes(own["identity"])
            name, self.position = str(own["name"]), int(own["position"])
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(
                f"{self.path}: the rows that identify the store are missing ({error})"
            ) from error
        if version < OLDEST_FORMAT:
            raise Damaged(f"{self.path} has the unknown format {version}")
        if version > FORMAT_VERSION:
            raise NewerFormat(
                f"{self.path} has format {version}; this version reads up to {FORMAT_VERSION}. "
                "Open it with the version that wrote it, or a later one"
            )
        if name != self.name:
            raise StoreFailed(f"{self.path} holds store {name!r}, not {self.name!r}")
        if version < FORMAT_VERSION:
            migrate(self._writer, version)

    def _check_witness(self, testimony: witness.Testimony | None) -> None:
        if testimony is None:
            if self.position and not self._simulated:
                self.notice = (
                    f"{self.path}.witness was missing: lost commits would go unnoticed. Unless "
                    "you removed it, compare the store with a backup"
                )
            return
        if testimony.store != self.identity:
            raise Damaged(
                f"{self.path} is not the store in its witness. Nothing was changed. Put the "
                f"right file back, or remove {self.path}.witness to continue with this one"
            )
        if testimony.position > self.position:
            raise Damaged(
                f"{self.path} ends at commit {self.position} and was at {testimony.position}: its "
                "last commits are lost. Nothing was changed. Restore the files from a backup, "
                f"or remove {self.path}.witness to continue without them"
            )
        if not testimony.whole:
            self.notice = (
                f"{self.path}.witness was partly damaged: lost commits may go unnoticed. This "
                "is normal after a power failure; otherwise compare the store with a backup"
            )

    # Writing

    def commit(self, batch: WriteBatch) -> None:
        self._check()
        if batch:
            with self._turns.next, self._turns.writing:
                self._commit(batch)

    def _commit(self, batch: WriteBatch) -> None:
        if self._move_rest:
            self._move_rest = False
            self._move_log(self._writer)
        position = self.position + 1
        try:
            files = self._large.write(batch)
            cursor = self._cursor
            cursor.execute(sql.BEGIN)
            if self._room is not None:
                self._room.provide(self._log_pages)
            for table, rows in batch.tables.items():
                if table is BLOCKS and files:
                    rows = rows | files
                statements = sql.STATEMENTS[table.name]
                puts = [row for row in rows.values() if row is not None]
                if puts:
                    cursor.executemany(statements.put, puts)
                if len(puts) < len(rows):
                    gone = [key for key, row in rows.items() if row is None]
                    cursor.executemany(statements.delete, gone)
            cursor.execute(sql.PUT_POSITION, (position,))
            cursor.execute(sql.COMMIT)
        except BaseException as error:
            self._commit_failed = True
            self._fail(error, "a commit failed", self._writer)
        self.position = position
        self._check_place()
        if not self._simulated:
            self._witness.write(position, self._length)
        try:
            self._large.committed(batch, files)
        except (apsw.Error, OSError) as error:
            self._fail(error, "cannot remove the file of a block")

    def maintain(self) -> None:
        self._check()
        self._check_place(thoroughly=True)
        self._check_writes()
        idle = self.position == self._maintained
        self._maintained = self.position
        self._give_back()
        if idle:
            self._empty_log()
        if self._log_pages * PAGE_BYTES < self._log_bytes_max and not self._shrinking:
            return
        # Commits continue, and each pass leaves what they added. The log starts over only when
        # nothing is left, so under load a commit merges the last small rest.
        for _ in range(PASSES_MAX):
            left = self._move_log(self._checkpointer)
            if left == 0:
                self._shrinking = False
                return
            if left * PAGE_BYTES < REST_BYTES_MAX:
                break
        self._move_rest = True

    def probe(self) -> None:
        self._check()
        self._check_place(thoroughly=True)
        if self._simulated:
            return
        try:
            self._probe_file.write()
        except OSError as error:
            self._fail(error, "its disk rejects writes")

    def _empty_log(self) -> None:
        """Merge the whole log and truncate its file, after a time without commits."""
        try:
            # Waiting for a reader blocks commits, and a backup reads for a long time.
            self._checkpointer.set_busy_timeout(0)
            with self._turns.slice(), self._merging:
                self._look_at_writes()
                self._checkpointer.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)
                # Before the next commit, which compares them with the length of the file.
                self._log_pages = self._moved_pages = 0
                self._note_writes()
        except apsw.BusyError:
            return
        except BaseException as error:
            self._fail(error, "cannot merge the log into the main file")
        finally:
            self._checkpointer.set_busy_timeout(BUSY_MS)
        self._shrinking = False
        self._note_length()

    def _give_back(self) -> None:
        """Release free pages to the disk, if compaction and settling left many."""
        try:
            while (free := int(self._checkpointer.pragma("freelist_count"))) > FREE_PAGES_MAX:
                if free * 4 < int(self._checkpointer.pragma("page_count")):
                    return
                self._forget_length()
                with self._turns.slice():
                    self._checkpointer.execute(sql.give_back(PAGES_A_SLICE)).fetchall()
        except apsw.BusyError:
            return
        except BaseException as error:
            self._fail(error, "cannot release free pages")

    def _forget_length(self) -> None:
        """Update the witness before the main file shrinks, so that it does not miss the rest."""
        if not self._shrinking and not self._simulated:
            self._length = 0
            self._witness.settle(self.position, 0)
        self._shrinking = True

    def _move_log(self, connection: apsw.Connection) -> int:
        """Merge the log into the main file; return how many pages are left."""
        if not self._merging.acquire(blocking=False):
            # Another thread is merging.
            return self._log_pages
        try:
            self._look_at_writes()
            _, moved = connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._note_length()
            self._note_writes()
        except apsw.BusyError:
            # Another connection is merging.
            return self._log_pages
        except BaseException as error:
            # A failed sync may succeed the next time without having written anything. The content
            # of the main file is then unknown, so this log must not be overwritten.
            self._fail(error, "cannot merge the log into the main file", connection)
        finally:
            self._merging.release()
        self._moved_pages = moved
        return max(0, self._log_pages - moved)

    def _note_log(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        if pages < self._log_pages:
            # It starts over: everything was merged.
            self._moved_pages = 0
        self._log_pages = pages
        return apsw.SQLITE_OK

    # Reading

    def read(self, table: Table, key: Row) -> Row | None:
        statement = sql.STATEMENTS[table.name].read
        rows = self._select(statement, key)
        if rows and table is BLOCKS and isinstance(rows[0][-1], int):
            rows = [self._resolve(rows[0])]
            if isinstance(rows[0][-1], int):
                # Its file may have been removed in between: then its row is gone too.
                rows = self._select(statement, key)
                if rows and isinstance(rows[0][-1], int):
                    self._check_place(thoroughly=True)
        return rows[0] if rows else None

    def _resolve(self, row: Row) -> Row:
        """Return the row of a block with its payload, in the row or in a file."""
        try:
            return self._large.resolve(row)
        except (apsw.Error, OSError) as error:
            raise translate(error, f"reading the file of block {row[0]!r}") from error

    def highest(self, table: Table) -> Value:
        return self._select(sql.STATEMENTS[table.name].highest, ())[0][0]

    def scan(self, table: Table, columns: tuple[str, ...] = ()) -> Iterator[Row]:
        statement = sql.scan(table, columns)
        if self._simulated:
            return self._resolved(table, columns, iter(self._select(statement, ())))
        self._check()
        rows = scan(self.path, statement, f"scanning {table.name}")
        return self._resolved(table, columns, rows)

    def _resolved(
        self, table: Table, columns: tuple[str, ...], rows: Iterator[Row]
    ) -> Iterator[Row]:
        """Return rows with payloads from files, if requested."""
        whole = table is BLOCKS and columns in ((), BLOCKS.columns)
        return map(self._resolve, rows) if whole else rows

    def _select(self, statement: str, values: Row) -> list[Row]:
        self._check()
        try:
            with self._reading:
                # All rows at once: an unfinished statement would keep its snapshot for others.
                return cast("list[Row]", self._reader.execute(statement, values).fetchall())
        except apsw.Error as error:
            self._raise(
                error,
                "reading",
                self._reader,
                lambda fresh: fresh.execute(statement, values).fetchall(),
            )

    def size(self) -> int:
        self._check()
        files = self._large.size()
        if self._simulated:
            return int(self._writer.pragma("page_count")) * PAGE_BYTES + files
        return length_of(self.path) + length_of(self.path + "-wal") + files

    def free(self) -> int:
        """Return the bytes that can still be written on the store's disk."""
        try:
            return self._free_bytes(os.path.dirname(self.path))
        except OSError as error:
            raise StoreFailed(f"{self.path}: cannot read the free space: {error}") from error

    def owed(self) -> int:
        """Return the most bytes that merging the log adds to the main file."""
        return max(0, self._log_pages - self._moved_pages) * PAGE_BYTES

    # Ending

    def close(self) -> None:
        if self._commit_failed:
            self._overwrite_failed_commit()
        if not self._unusable:
            # If this fails, the log stays and the next opening reads it.
            with contextlib.suppress(StoreFailed, Damaged):
                self._move_log(self._writer)
                if not self._simulated:
                    self._witness.write(self.position, self._length)
                    self._probe_file.remove()
                self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        self._unusable = self._unusable or "it was closed"
        self._held.close()

    def _overwrite_failed_commit(self) -> None:
        """Commit only a new position, over the failed commit in the log.

        After a failed sync a system may show bytes that the disk does not have and never will. An
        opening would read the failed commit there, and later commits would follow a hole. The next
        commit of this connection overwrites what it does not count as committed, and is really
        written and synced. If the disk rejects that too, reopening is the only way.
        """
        self._commit_failed = False
        with contextlib.suppress(apsw.Error):
            if self._writer.in_transaction:
                self._writer.execute(sql.ROLLBACK)
            self._writer.execute(sql.BEGIN)
            self._writer.execute(sql.PUT_POSITION, (self.position + 1,))
            self._writer.execute(sql.COMMIT)

    def _check(self) -> None:
        if self._unusable:
            raise StoreFailed(f"store {self.name} cannot be used: {self._unusable}")

    def _fail(
        self, error: BaseException, what: str, connection: apsw.Connection | None = None
    ) -> NoReturn:
        self._unusable = f"{what}: {error}"
        if isinstance(error, Exception):
            self._raise(error, what, connection or self._checkpointer, check_pages)
        raise error

    def _raise(
        self, error: Exception, what: str, connection: apsw.Connection, again: Read
    ) -> NoReturn:
        path = None if self._simulated else self.path
        raise judge(error, f"{self.path}: {what}", connection, again, path) from error
