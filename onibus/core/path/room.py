"""Room: how many bytes one receive may deliver, across any number of partitions.

Blocks are counted whole, since they are read whole, and no message is larger than its block. One
message is always delivered, however large it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onibus.core.errors import InvalidOperation

if TYPE_CHECKING:
    from onibus.core.log import Log


class Room:
    """The bytes that one receive may still deliver."""

    __slots__ = ("_empty", "_most", "left")

    def __init__(self, most: int, at_least_one: bool = True) -> None:
        self._most = most
        self._empty = at_least_one
        self.left = most

    @staticmethod
    def of(bytes_max: int | None, at_least_one: bool = True) -> Room | None:
        """Return the room of a receive; None if it is not bounded."""
        return None if bytes_max is None else Room(bytes_max, at_least_one)

    def take(self, log: Log, ordinals: Sequence[int]) -> int:
        """Return how many messages from the first on have room, which is theirs from now on."""
        first = last = -1
        for count, ordinal in enumerate(ordinals):
            if not first <= ordinal <= last:
                place = log.find(ordinal)
                if place.size > self.left and not self._empty:
                    self.left = 0
                    return count
                first, last = place.first, place.last
                self.left -= place.size
                self._empty = False
        return len(ordinals)

    def take_all(self, log: Log, ordinals: Sequence[int]) -> None:
        """Reject messages that must be delivered together and do not fit."""
        if self.take(log, ordinals) < len(ordinals):
            raise InvalidOperation(
                f"the messages exceed {self._most} bytes together: receive fewer at once"
            )
