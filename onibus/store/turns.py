"""Turns of the two connections that write to one SQLite file: commits, and maintenance.

SQLite itself lets a connection poll for its lock, less and less often. One that writes again at
once keeps it from all others: a commit waited longer than its timeout while free pages were
released, and the store failed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Turns:
    """Whose turn it is to write. A commit waits for at most one slice of maintenance."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._no_commit = threading.Event()
        self._no_commit.set()

    @property
    def commit_waits(self) -> bool:
        """Return whether a commit runs or waits for its turn."""
        return not self._no_commit.is_set()

    @contextlib.contextmanager
    def commit(self) -> Iterator[None]:
        """Enter for one commit; there is one at a time."""
        self._no_commit.clear()
        try:
            with self._writing:
                yield
        finally:
            self._no_commit.set()

    @contextlib.contextmanager
    def slice(self) -> Iterator[None]:
        """Enter for one slice of maintenance, when no commit waits."""
        self._no_commit.wait()
        with self._writing:
            yield
