"""Deliveries that ended without completion: when, and how. For people who ask about a message.

One bounded record for all partitions of a store, in memory: the newest entries since the store was
opened. A completed delivery costs nothing here, because its message is gone.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: Deliveries recorded for one store, about 150 bytes each.
RETURNS_MAX = 20_000


class Return(NamedTuple):
    """The end of one delivery, in bus time."""

    #: None if the lock of a session held the message
    received: int | None
    ended: int
    how: str


class Returns:
    """The newest returns of a store."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        #: partition and subscription, ordinal, and the end of the delivery
        self._kept: deque[tuple[tuple[int, int], int, Return]] = deque(maxlen=RETURNS_MAX)

    def note(self, key: tuple[int, int], ordinal: int, ended: Return) -> None:
        """Record the end of a delivery."""
        self._kept.append((key, ordinal, ended))

    def of(self, key: tuple[int, int], ordinal: int) -> list[Return]:
        """Return the recorded deliveries of a message, the oldest first."""
        return [one for place, at, one in self._kept if at == ordinal and place == key]
