"""Admission: whether there is room, before anything is done."""

from __future__ import annotations

from onibus.core.errors import DiskNearlyFull
from onibus.store.interface import Store

#: Sends are refused below this much free disk, so that settling always has room.
RESERVE_BYTES = 512 << 20
#: Asking the disk costs a system call: once in so many milliseconds is enough.
_ASK_EVERY_MS = 250


class DiskWatch:
    """Knows whether a store's disk has room for more messages."""

    def __init__(self, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._reserve = reserve_bytes
        self._asked: dict[str, tuple[int, int]] = {}

    def check(self, store: Store, now: int) -> None:
        """Refuse where the disk is nearly full."""
        asked, free = self._asked.get(store.name, (-_ASK_EVERY_MS, 0))
        if now - asked >= _ASK_EVERY_MS:
            free = store.free()
            self._asked[store.name] = (now, free)
        if free < self._reserve:
            raise DiskNearlyFull(
                f"store {store.name} has {free >> 20} MB of disk left and keeps "
                f"{self._reserve >> 20} MB free for settling: receive and complete, or make room"
            )
