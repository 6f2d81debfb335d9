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
    """Whose turn it is to write. A commit waits for at most one slice of maintenance.

    A commit takes both locks: `with turns.next, turns.writing`. While it waits for a slice to end,
    it holds `next`, which the following slice needs to begin.
    """

    def __init__(self) -> None:
        self.next = threading.Lock()
        self.writing = threading.Lock()

    @contextlib.contextmanager
    def slice(self) -> Iterator[None]:
        """Enter for one slice of maintenance, when no commit waits."""
        with self.next:
            self.writing.acquire()
        try:
            yield
        finally:
            self.writing.release()
