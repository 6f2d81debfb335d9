"""What a busy process has written to its history so far, for tests that kill it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.server.processes import wait_for
from tests.simulator.history import Event, decode


class Progress:
    """Counts of the events in a history file that grows."""

    def __init__(self, history: Path, kind_of: Callable[[Event], str | None]) -> None:
        self._history = history
        self._kind_of = kind_of
        self._read = 0
        self._counts: Counter[str] = Counter()

    def wait_until(self, count: int, *kinds: str) -> None:
        """Wait until the history has `count` events of each kind."""
        wait_for(lambda: all(self._look()[kind] >= count for kind in kinds))

    def _look(self) -> Counter[str]:
        if self._history.exists():
            with self._history.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            kinds = map(self._kind_of, decode(whole.split(b"\n")))
            self._counts.update(kind for kind in kinds if kind is not None)
        return self._counts
