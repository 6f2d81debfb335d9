"""What a store needs of the file system beside SQLite: a lock, a synced directory, free space."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from onibus.core.errors import AlreadyOpen

#: Tells how many bytes are free on the disk of a directory; tests put their own in its place.
FreeBytes = Callable[[str], int]


def free_bytes(directory: str) -> int:
    """Return how many bytes an ordinary user can still write on that directory's disk."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


def length_of(path: str) -> int:
    """Return a file's length, 0 if it does not exist."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def written_ms(path: Path) -> int | None:
    """Return when a database or its log was last written, by the clock of that time."""
    files = (path, path.with_name(f"{path.name}-wal"))
    times = [file.stat().st_mtime_ns // 1_000_000 for file in files if file.exists()]
    return max(times, default=None)


def sync_directory(directory: str) -> None:
    """Make the names of files created in the directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FileLock:
    """Keeps a second opener away, of this process or another. The system frees it on any death.

    The file stays when the lock goes: removing it would let two openers lock two different files
    of one name.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise AlreadyOpen(f"{path} is locked: the store is open already") from None

    def release(self) -> None:
        os.close(self._file)


class ProbeFile:
    """A file that is written to see whether a disk takes writes, made by the first of them."""

    #: Changes no metadata that would have to be written as well.
    _sync = staticmethod(getattr(os, "fdatasync", os.fsync))

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1

    def write(self) -> None:
        """Write a few bytes and wait until they are on the disk."""
        try:
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o644)
            os.pwrite(self._file, b"probe\n", 0)
            self._sync(self._file)
        except OSError as error:
            # A full disk answers; sends are refused before it is full.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def remove(self) -> None:
        """Remove the file: it says nothing once the store is closed."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
