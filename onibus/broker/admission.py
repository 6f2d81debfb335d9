"""Admission: whether there is room, before anything is done."""

from __future__ import annotations

from onibus.core.errors import DiskNearlyFull
from onibus.store.interface import Store

#: Sends are refused below this much free disk, so that settling always has room.
RESERVE_BYTES = 512 << 20
#: Asking the disk is a system call: done once in so many commits.
_ASK_EVERY = 16


class DiskWatch:
    """Knows whether the stores' disks have room for more messages."""

    def __init__(self, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._reserve = reserve_bytes
        self._asked: dict[str, tuple[int, int]] = {}

    def check(self, store: Store) -> None:
        """Refuse where the disk is nearly full."""
        left, free = self._asked.get(store.name, (0, 0))
        if not left or free < self._reserve:
            left, free = _ASK_EVERY, store.free()
        self._asked[store.name] = (left - 1, free)
        if free < self._reserve:
            raise DiskNearlyFull(
                f"store {store.name} has {free >> 20} MB of disk left and keeps "
                f"{self._reserve >> 20} MB free for settling: receive and complete, or make room"
            )
