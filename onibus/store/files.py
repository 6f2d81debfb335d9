"""What a store needs of the file system beside SQLite: a lock, a synced directory, free space."""

from __future__ import annotations

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
