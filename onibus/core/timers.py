"""Deadlines by key; the earliest is known at once, and a deadline can be moved or taken back."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from onibus.core.block import NEVER

Key = tuple[str, Any]


class Timers:
    """A heap whose outdated entries are skipped, and swept out before they outnumber the rest."""

    __slots__ = ("_changed", "_due", "_heap", "_serial")

    def __init__(self, changed: Callable[[], None] | None = None) -> None:
        """Take a function that is called when a deadline is set: it may be the earliest."""
        self._changed = changed
        self._due: dict[Key, int] = {}
        #: (deadline, rank, key): keys due at one time come in the order they were set, by default
        self._heap: list[tuple[int, int, Key]] = []
        self._serial = 0

    def set(self, key: Key, due: int, rank: int | None = None) -> None:
        """Set or move a deadline; NEVER takes it back. Of equal ones the lower rank comes first."""
        if self._due.get(key) == due:
            return
        if due == NEVER:
            self._due.pop(key, None)
            return
        self._due[key] = due
        self._serial += 1
        heappush(self._heap, (due, self._serial if rank is None else rank, key))
        if self._changed is not None:
            self._changed()
        if len(self._heap) > 2 * len(self._due) + 64:
            self._rebuild()

    def listen(self, changed: Callable[[], None]) -> None:
        """Call a function when a deadline is set: it may be the earliest."""
        self._changed = changed

    def is_set(self, key: Key) -> bool:
        return key in self._due

    def cancel(self, key: Key) -> None:
        self._due.pop(key, None)

    def next_due(self) -> int:
        heap = self._heap
        while heap and self._due.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER

    def peek(self) -> tuple[int, Key | None]:
        """Return the earliest deadline and its key; NEVER and None without one."""
        due = self.next_due()
        return due, self._heap[0][2] if self._heap else None

    def first(self) -> tuple[int, int]:
        """Return the earliest deadline and its rank."""
        return self._heap[0][:2] if self.next_due() != NEVER else (NEVER, NEVER)

    def pop(self, now: int) -> Key | None:
        """Take out and return a key whose deadline is due."""
        if self.next_due() > now:
            return None
        _, _, key = heappop(self._heap)
        del self._due[key]
        return key

    def _rebuild(self) -> None:
        kept = {key: rank for due, rank, key in self._heap if self._due.get(key) == due}
        self._heap = [
            (due, kept.get(key) or self._serial + at, key)
            for at, (key, due) in enumerate(self._due.items(), 1)
        ]
        self._serial += len(self._due)
        heapify(self._heap)
