"""File system functions of a store, apart from SQLite: a lock, a synced directory, free space."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from onibus.core.errors import AlreadyOpen

#: Returns the free bytes on the disk of a directory; tests replace it.
FreeBytes = Callable[[str], int]

#: The locked byte of a database. It is in the page that SQLite keeps free of data for its own locks
#: (sqlite.org/fileformat2.html, the lock-byte page), behind those.
LOCK_BYTE = 0x4000_0000 + 4_096
#: `struct flock` of Linux, where open file descriptions have locks; elsewhere the lock file counts.
_FLOCK = struct.Struct("hhqqi4x")
_OWN_FILE = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
#: Errors of a file system without such locks.
_NO_LOCKS = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def free_bytes(directory: str) -> int:
    """Return the bytes that an ordinary user can still write on that directory's disk."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


def length_of(path: str) -> int:
    """Return a file's length, 0 if it does not exist."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def written_ms(path: Path) -> int | None:
    """Return when a database or its log was last written."""
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


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Create a directory with its parents, and make their names durable.

    Sync an existing name too: the process that created it may have been killed before its sync.
    """
    path = path.absolute()
    if not path.parent.is_dir():
        make_directory(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    try:
        sync_directory(str(path.parent))
    except OSError as error:
        if error.errno == errno.EIO:
            raise
        # The user may not read it, or its file system cannot sync directories.
        os.sync()


class FileLock:
    """The lock on a store's database; the system releases it when the process ends.

    The lock is on the database itself, so no second opener gets in while the file has a name,
    whatever its name and whichever files next to it were deleted. Versions up to 0.1.0 lock the
    file `<path>.lock` instead, and so do systems without locks of open file descriptions (macOS):
    it is locked too. It stays when the lock is released, because two openers could otherwise lock
    two files of that name.

    A process loses all of SQLite's locks on a file when it closes any descriptor of that file. So
    a file that this process has locked is never opened here a second time, and the descriptor of
    the lock is closed after SQLite's.
    """

    #: the locks of this process, by device and inode
    _held: dict[tuple[int, int], FileLock] = {}
    _opening = threading.Lock()

    def __init__(self, path: str, *, shared: bool = False) -> None:
        """Lock a database for writing, creating it if missing; or `shared`, for reading."""
        self._path = path
        #: the database's descriptor
        self.file = -1
        self._beside = -1
        self._shared = shared
        #: the lock is on the database itself, not only on the file next to it
        self.on_database = _OWN_FILE
        with FileLock._opening:
            try:
                self._take()
            except BaseException:
                self._close()
                raise
            self._key = _key(os.fstat(self.file))
            FileLock._held[self._key] = self

    def _take(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if _key(os.stat(self._path)) in FileLock._held:
                raise self._refusal()
        mode = os.O_RDONLY if self._shared else os.O_RDWR | os.O_CREAT
        # Reading creates nothing: a backup has no lock file, and its disk may be read-only.
        if not self._shared or os.path.exists(f"{self._path}.lock"):
            self._beside = os.open(f"{self._path}.lock", mode | os.O_CLOEXEC, 0o644)
            kind = fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX
            self._try(fcntl.flock, self._beside, kind | fcntl.LOCK_NB)
        self.file = os.open(self._path, mode | os.O_CLOEXEC, 0o644)
        if _OWN_FILE:
            self._lock_own_file()
        if _key(os.stat(self._path)) != _key(os.fstat(self.file)):
            raise AlreadyOpen(f"{self._path} was replaced while it was opened: try again")

    def _lock_own_file(self) -> None:
        kind = fcntl.F_RDLCK if self._shared else fcntl.F_WRLCK
        wanted = _FLOCK.pack(kind, os.SEEK_SET, LOCK_BYTE, 1, 0)
        try:
            self._try(fcntl.fcntl, self.file, fcntl.F_OFD_SETLK, wanted)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            self.on_database = False

    def _try(self, lock: Callable[..., object], *arguments: object) -> None:
        try:
            lock(*arguments)
        except (BlockingIOError, PermissionError):
            raise self._refusal() from None

    def _refusal(self) -> AlreadyOpen:
        return AlreadyOpen(f"{self._path} is locked: another process has the store open")

    def release(self) -> None:
        FileLock._held.pop(self._key, None)
        self._close()

    def _close(self) -> None:
        # Their numbers may belong to other files by the next use.
        files, self.file, self._beside = (self.file, self._beside), -1, -1
        for file in files:
            if file >= 0:
                os.close(file)


def _key(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def _release_in_child() -> None:
    """Close the locks in a forked child: the lock ends with the parent."""
    FileLock._opening = threading.Lock()
    for lock in list(FileLock._held.values()):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)


class ProbeFile:
    """A file whose writes show whether a disk accepts writes; created by the first one."""

    #: Changes no metadata, which would have to be written as well.
    _sync = staticmethod(getattr(os, "fdatasync", os.fsync))

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1

    def write(self) -> None:
        """Write a few bytes and wait until they are on disk."""
        try:
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o644)
            os.pwrite(self._file, b"probe\n", 0)
            self._sync(self._file)
        except OSError as error:
            # A full disk responds; sends are rejected before it is full.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def remove(self) -> None:
        """Remove the file, which means nothing once the store is closed."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
