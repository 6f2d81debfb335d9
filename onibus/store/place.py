"""The files of an open store: locked, and watched, so that none is replaced or deleted unnoticed.

A program that deletes or replaces the files of an open store does not disturb the descriptors that
SQLite has. SQLite would continue in files without a name, and acknowledged commits would be lost.
So the store looks for its files after each commit, before the commit is acknowledged.

Names change only together with the time of their directory. So a commit compares that time, and
looks at the files only if it changed. The directory is held open: renaming it, or one above it,
does not affect the files. Housekeeping also follows the path, which later openings need.

A program that writes into an open file changes no name. So housekeeping also compares the length
and the first bytes of the main file with what they must be, and its time with that of the last
merge. Only merges of the log write this file.
"""

from __future__ import annotations

import os
import time

from onibus.core.errors import Damaged, StoreFailed
from onibus.store.files import FileLock, length_of
from onibus.store.witness import Testimony

#: The files of a store that must not be replaced, by the ends of their names.
_ENDS = ("", "-wal", "-shm", ".blocks")
#: What every SQLite database begins with.
_MAGIC = b"SQLite format 3\0"
#: File systems count the time of a directory in steps shorter than this.
_STEP_NS = 50_000_000


class StorePlace:
    """The files of an open store."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._name = os.path.basename(path)
        self._lock = FileLock(path)
        try:
            self._directory = os.open(
                os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            )
        except BaseException:
            self._lock.release()
            raise
        # Without a lock on the database, a deleted lock file would let another process open it.
        self._ends = _ENDS if self._lock.on_database else (*_ENDS, ".lock")
        #: the files seen, by the ends of their names
        self._seen: dict[str, os.stat_result] = {}
        #: the directory's time when they were seen
        self._changed = 0
        #: the main file's time and length after the last merge
        self._written = (0, 0)

    @property
    def file(self) -> int:
        """The main file's descriptor."""
        return self._lock.file

    @property
    def device(self) -> int:
        """The number of the file system."""
        return os.fstat(self._directory).st_dev

    def check(self) -> None:
        """Raise if a file of the store was deleted or replaced since it was opened."""
        changed = os.fstat(self._directory).st_mtime_ns
        if changed == self._changed:
            return
        for end in self._ends:
            self._check_file(end)
        # It would not show later changes within the same time step.
        self._changed = changed if time.time_ns() - changed > _STEP_NS else 0

    def _check_file(self, end: str) -> None:
        known = self._seen.get(end)
        try:
            found = os.stat(self._name + end, dir_fd=self._directory)
        except FileNotFoundError:
            if known is None and end:
                return
            raise StoreFailed(f"{self._path}{end} was deleted, {_ADVICE}") from None
        if known is None:
            known = self._seen[end] = os.fstat(self.file) if not end else found
        if not os.path.samestat(known, found):
            raise StoreFailed(f"{self._path}{end} was replaced by another file, {_ADVICE}")

    def check_path(self) -> None:
        """Raise if the path of the store no longer leads to its files."""
        self._changed = 0
        self.check()
        if not os.path.samestat(os.stat(self._path), os.fstat(self.file)):
            raise StoreFailed(f"{self._path} is a different file now, {_ADVICE}")

    def check_content(self, length_min: int) -> None:
        """Raise if the main file is no longer one that SQLite wrote, or lost its end."""
        length = os.fstat(self.file).st_size
        if length < length_min:
            raise Damaged(
                f"{self._path} was truncated to {length} bytes by another program and had at "
                f"least {length_min}: restore the store's files from a backup"
            )
        # A page is written in one piece, and these bytes of the first one never change.
        if os.pread(self.file, len(_MAGIC), 0) != _MAGIC:
            raise Damaged(
                f"{self._path} was overwritten by another program and is not a database now: "
                "restore the store's files from a backup"
            )

    def was_written(self) -> bool:
        """Return whether the main file was written since `note_written`."""
        return self._time_and_length() != self._written

    def note_written(self) -> None:
        """Record the main file as it is now."""
        self._written = self._time_and_length()

    def _time_and_length(self) -> tuple[int, int]:
        found = os.fstat(self.file)
        return found.st_mtime_ns, found.st_size

    def close(self) -> None:
        """Release the lock, after SQLite has closed its own descriptors."""
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)
            self._lock.release()


_ADVICE = "while the store was open: put the store's own files back"


def check_there(path: str) -> None:
    """Reject a known store without its database: nothing is created in its place."""
    if not os.path.exists(path):
        raise StoreFailed(
            f"{path} is missing: its disk may not be mounted. Nothing was changed; put "
            "the store's files back"
        )


def check_length(path: str, testimony: Testimony | None) -> None:
    """Check the files before SQLite does: it would remove the log of an empty main file."""
    length = length_of(path)
    least = testimony.length if testimony else 0
    if length == 0 and length_of(path + "-wal") > 0:
        least = max(least, 1)
    if length < least:
        raise Damaged(
            f"{path} has {length} bytes and had at least {least}: its end is missing. "
            "Nothing was changed. Restore the store's files from a backup"
        )
