"""Admission: whether there is room, before anything is done.

Sends must never take the reserve: settling, deleting and compaction need it. So a send counts with
everything that is about to be written to its disk: records that are gathered or being committed in
any store on it, logs that will be moved into their files, and staged works that will be published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.errors import DiskNearlyFull
from onibus.store.interface import Disk, Store

if TYPE_CHECKING:
    from onibus.shard.commits import CommitLoop

#: Sends are rejected below this much free disk space, so that settling always has room.
RESERVE_BYTES = 512 << 20
#: Bytes of messages are written to a log, and later into its file.
TIMES_WRITTEN = 2
#: The pages that a commit writes in addition to its messages, and the piece by which a log grows.
COMMIT_BYTES = 1 << 20


#: Checks between two questions to a disk that has room: each is a system call.
ASK_EVERY = 16


class DiskWatch:
    """The room for messages on the disks of all stores."""

    def __init__(self, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.reserve = reserve_bytes
        #: bytes of messages that are staged over several stores and not published yet
        self.staged = 0
        self._loops: dict[str, CommitLoop] = {}
        self._rooms: dict[Disk, _Room] = {}

    def watch(self, loop: CommitLoop) -> None:
        """Count what a store writes from now on."""
        self._loops[loop.store.name] = loop

    def check(
        self, store: Store, size: int, *, routing: bool = False, settling: bool = False
    ) -> None:
        """Reject messages of that size if writing them takes the reserve.

        `routing` only chooses a store: the messages are checked again before they are written. What
        belongs to `settling` may take half of the reserve.
        """
        more = self.reserve // 2 if settling else 0
        needed = size * TIMES_WRITTEN
        room = self._rooms.get(store.disk)
        if room is None or not room.trusted(needed):
            room = self._rooms[store.disk] = _Room(self._ask(store))
        if needed > room.left + more:
            raise DiskNearlyFull(
                f"disk nearly full: store {store.name} has {store.free() >> 20} MB free, of which "
                f"{self.reserve >> 20} MB are for settling: complete messages, or free some space"
            )
        if not routing:
            room.left -= needed + COMMIT_BYTES
            room.checks -= 1

    def _ask(self, store: Store) -> int:
        """Return how many bytes can be written before the reserve is taken."""
        room = store.free() - self.reserve - self.staged * TIMES_WRITTEN
        for loop in self._loops.values():
            if loop.store.disk == store.disk:
                room -= COMMIT_BYTES + loop.bytes * TIMES_WRITTEN + loop.store.owed()
        return room


class _Room:
    """The free disk space at the last check, less what was admitted since."""

    __slots__ = ("_asked", "checks", "left")

    def __init__(self, asked: int) -> None:
        self._asked = self.left = asked
        self.checks = ASK_EVERY

    def trusted(self, needed: int) -> bool:
        """Return whether it is safe to admit more without another question to the disk."""
        return self.checks > 0 and self.left - needed > self._asked // 2
