"""A cut: all stores of a namespace at the same point in time, while writes continue.

A multi-partition operation is staged in several stores, decided in one of them, and published in
each (directory/works.py). Copies taken one after the other could show it published in one store,
undecided in the second and not even staged in the third. A forwarded message would be
lost or repeated. So all stores are cut together:

1. Take the write lock of every store, as a commit does. Commits wait, as for a slow disk. No commit
   holds one store and waits for another, so there is no deadlock.
2. Begin a read transaction on each. From then on it sees its store as of this point.
3. Give block files a second name: they never change, but those of deleted blocks are removed.
4. Release the locks, after some milliseconds. None of this writes anything.

The cut shows what a power failure at that point would have left: everything acknowledged before,
and unfinished operations, which the next opening finishes as after any crash. It works from another
process, because it needs nothing from the process that has the stores open.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, cast

import apsw

from onibus.core.errors import Damaged, OnibusError, StoreFailed
from onibus.core.records import BLOCKS
from onibus.store.block_files import check_file
from onibus.store.connection import PAGE_BYTES, checksum_vfs, close, open_reader, translate
from onibus.store.sql import BEGIN, READ_META, ROLLBACK

#: Total time for all locks; writers give up after `connection.BUSY_MS`.
LOCK_SECONDS_MAX = 5.0
#: Pause between two attempts at a lock. A busy store frees its lock only briefly between commits.
_PAUSE_SECONDS = 0.0002


class StoreCut:
    """A store as of the cut."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        #: a read transaction on the store as of the cut
        self.reader = open_reader(path)
        self.position = 0
        self.identity = b""
        #: second names of its block files, or empty without any
        self.blocks = ""

    def begin(self) -> None:
        """Begin the read transaction."""
        self.reader.execute("BEGIN")
        rows: Any = self.reader.execute(READ_META).fetchall()
        own = dict(rows)
        self.position, self.identity = int(own["position"]), bytes(own["identity"])
        files = self.path + ".blocks"
        if os.path.isdir(files):
            self.blocks = f"{self.path}.cut-{os.getpid()}-{time.monotonic_ns()}"
            os.mkdir(self.blocks, 0o700)
            for entry in os.scandir(files):
                if entry.name.isdecimal():
                    self._name_again(entry)

    def _name_again(self, entry: os.DirEntry[str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            # A file that is just being removed no longer has a row.
            try:
                os.link(entry.path, os.path.join(self.blocks, entry.name))
            except PermissionError:
                # A file system without hard links.
                shutil.copyfile(entry.path, os.path.join(self.blocks, entry.name))

    def size(self) -> int:
        """Return the approximate size of a copy in bytes."""
        size = int(self.reader.pragma("page_count")) * PAGE_BYTES
        if self.blocks:
            size += sum(entry.stat().st_size for entry in os.scandir(self.blocks))
        return size

    def file_rows(self) -> list[tuple[int, int]]:
        """Return the blocks that are files, each with the fingerprint in its row."""
        statement = f"SELECT block, payload FROM {BLOCKS.name} WHERE typeof(payload) = 'integer'"
        return cast("list[tuple[int, int]]", self.reader.execute(statement).fetchall())

    def read_file(self, block: int, expected: int) -> bytes:
        """Return the verified bytes of a block that is a file."""
        try:
            with open(os.path.join(self.blocks, str(block)), "rb", buffering=0) as file:
                payload = file.read()
        except FileNotFoundError:
            raise Damaged(f"{self.path}: block file {block} is missing") from None
        check_file(block, payload, expected)
        return payload

    def close(self) -> None:
        close(self.reader)
        if self.blocks:
            shutil.rmtree(self.blocks, ignore_errors=True)


class Cut:
    """All stores as of the cut, by name. Close it: the stores' logs grow until then."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        #: longest time that commits waited
        self.held_seconds = 0.0
        self.stores: list[StoreCut] = []
        self._ending = contextlib.ExitStack()
        try:
            self._take(paths)
        except BaseException as error:
            self._ending.close()
            if isinstance(error, (apsw.Error, OSError)):
                raise translate(error, "cutting the stores") from error
            raise

    def _take(self, paths: Mapping[str, str]) -> None:
        with contextlib.ExitStack() as locks:
            writers = [_open_to_lock(path) for path in paths.values()]
            for writer in writers:
                locks.callback(close, writer)
            for name, path in paths.items():
                store = StoreCut(name, path)
                self._ending.callback(store.close)
                self.stores.append(store)
            began = time.monotonic()
            for writer, path in zip(writers, paths.values(), strict=True):
                _lock(writer, path, began + LOCK_SECONDS_MAX)
            for store in self.stores:
                store.begin()
            for writer in writers:
                writer.execute(ROLLBACK)
            self.held_seconds = time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.close()


def _open_to_lock(path: str) -> apsw.Connection:
    connection = apsw.Connection(path, apsw.SQLITE_OPEN_READWRITE, checksum_vfs())
    # Closing it must change nothing, whether or not the store is open elsewhere.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.pragma("wal_autocheckpoint", 0)
    return connection


def _lock(connection: apsw.Connection, path: str, deadline: float) -> None:
    while True:
        try:
            connection.execute(BEGIN)
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise _too_busy(path) from None
            time.sleep(_PAUSE_SECONDS)


def _too_busy(path: str) -> OnibusError:
    return StoreFailed(f"{path} is written to without a pause: nothing was copied; try again")
