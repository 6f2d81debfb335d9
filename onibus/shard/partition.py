"""Partitions as their shard knows them: online or not, and how much they still take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onibus.core.errors import EntityNotFound, PartitionOffline
from onibus.core.numbering import Numbering
from onibus.core.partition import Partition

if TYPE_CHECKING:
    from onibus.shard.shard import Shard

#: Partition ids are incarnation * this + index.
PARTITIONS_MAX = 1 << 16


class ShardPartition:
    """A partition of an entity in its shard, and whether it can be used.

    Only its shard touches `core`; others send it commands (tests/test_border.py).
    """

    __slots__ = (
        "_openings",
        "core",
        "deleted",
        "entity",
        "id",
        "index",
        "numbering",
        "offline",
        "pending_bytes",
        "store",
    )

    def __init__(self, entity: Any, index: int, store: Shard) -> None:
        #: the entity, which only its owner reads; the shard uses its name
        self.entity = entity
        self.index = index
        self.id = entity.incarnation * PARTITIONS_MAX + index
        self.store = store
        self.numbering = Numbering(index, entity.partitioned)
        #: its state in the core; None while it is offline
        self.core: Partition | None = None
        self._openings = 0
        self.offline = "its store is not open yet"
        #: its entity was deleted
        self.deleted = False
        #: admitted, not stored yet: counts towards the quota
        self.pending_bytes = 0

    @property
    def is_online(self) -> bool:
        """Whether it can be used."""
        return self.core is not None

    @property
    def opening(self) -> int:
        """The number of its last opening; 0 while it is offline, when its memory is dropped."""
        return 0 if self.core is None else self._openings

    @property
    def version(self) -> int:
        """A number that differs after each change; -1 while it is offline."""
        # Both only rise. A message may be visible only some time after it was stored.
        return -1 if self.core is None else self.core.changes + self.core.log.visible_below

    def take(self, core: Partition) -> None:
        """Be online, with this state."""
        self.core = core
        self.pending_bytes = 0
        self._openings += 1

    def take_offline(self, reason: str) -> None:
        """Drop its state, whatever it is."""
        self.core = None
        self.offline = reason

    def check_online(self) -> None:
        """Raise why it cannot be used, if it cannot."""
        self.online()

    def online(self) -> Partition:
        """Return its state in the core, or raise why it cannot be used."""
        if self.deleted:
            raise EntityNotFound(f"{self.entity.name} was deleted")
        if self.core is None:
            raise PartitionOffline(
                f"partition {self.index} of {self.entity.name} is offline: {self.offline}"
            )
        return self.core

    def free_bytes(self) -> int:
        """Return the bytes that the partition still takes."""
        core = self.core or self.online()
        return core.settings.max_size_bytes - core.log.live_bytes - self.pending_bytes
