"""Partitions as their shard knows them: online or not, and how much they still take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onibus.core.errors import EntityNotFound, PartitionOffline
from onibus.core.partition import Partition

if TYPE_CHECKING:
    from onibus.shard.shard import Shard

#: Partition ids are incarnation * this + index.
PARTITIONS_MAX = 1 << 16


class Seat:
    """A partition of an entity in its shard, and whether it can be used."""

    __slots__ = (
        "deleted",
        "entity",
        "id",
        "index",
        "offline",
        "partition",
        "pending_bytes",
        "store",
    )

    def __init__(self, entity: Any, index: int, store: Shard) -> None:
        #: the entity, which only its owner reads; the shard uses its name
        self.entity = entity
        self.index = index
        self.id = entity.incarnation * PARTITIONS_MAX + index
        self.store = store
        #: None while the partition is offline
        self.partition: Partition | None = None
        self.offline = "its store is not open yet"
        #: its entity was deleted
        self.deleted = False
        #: admitted, not stored yet: counts towards the quota
        self.pending_bytes = 0

    def online(self) -> Partition:
        """Return the partition, or raise why it cannot be used."""
        if self.deleted:
            raise EntityNotFound(f"{self.entity.name} was deleted")
        if self.partition is None:
            raise PartitionOffline(
                f"partition {self.index} of {self.entity.name} is offline: {self.offline}"
            )
        return self.partition

    def free_bytes(self) -> int:
        """Return the bytes that the partition still takes."""
        partition = self.partition or self.online()
        return partition.settings.max_size_bytes - partition.log.live_bytes - self.pending_bytes
