"""Entities and where their partitions sit."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from onibus.broker.replies import fail
from onibus.core.errors import EntityNotFound, OnibusError, PartitionOffline
from onibus.core.partition import Partition
from onibus.core.records import Row
from onibus.core.settings import QueueSettings

if TYPE_CHECKING:
    from onibus.broker.message_store import MessageStore
    from onibus.broker.receiving import Waiter

#: Partition ids are incarnation * this + index.
PARTITIONS_MAX = 1 << 16


class Seat:
    """Where one partition of an entity sits: in which store, and whether it can be used."""

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

    def __init__(self, entity: Entity, index: int, store: MessageStore) -> None:
        self.entity = entity
        self.index = index
        self.id = entity.incarnation * PARTITIONS_MAX + index
        self.store = store
        #: None while the partition is offline
        self.partition: Partition | None = None
        self.offline = "its store has not been opened"
        #: its entity is gone; whoever still has the seat is told so
        self.deleted = False
        #: admitted, not stored yet: counts towards the quota
        self.pending_bytes = 0

    def online(self) -> Partition:
        """Return the partition, or say why it cannot be used."""
        if self.deleted:
            raise EntityNotFound(f"{self.entity.name} was deleted")
        if self.partition is None:
            raise PartitionOffline(
                f"partition {self.index} of {self.entity.name} is offline: {self.offline}"
            )
        return self.partition

    def free_bytes(self) -> int:
        """Return how much more the partition takes."""
        used = self.online().log.live_bytes + self.pending_bytes
        return self.entity.settings.max_size_bytes - used


class Entity:
    """A queue, with its partitions."""

    def __init__(
        self,
        incarnation: int,
        name: str,
        settings: QueueSettings,
        created: int,
        stores: list[str],
    ) -> None:
        self.incarnation = incarnation
        self.name = name
        self.settings = settings
        self.created = created
        self.stores = stores
        self.seats: list[Seat] = []
        self.next_send = 0
        self.next_receive = 0
        self.waiters: deque[Waiter] = deque()
        #: when there are so many waiters, those who have left are looked for
        self.waiters_swept = 16
        self.last_used = 0

    def send_away(self, error: OnibusError) -> None:
        """Tell those who wait for messages that none will come."""
        for waiter in self.waiters:
            fail(waiter.reply, error)
        self.waiters.clear()


class EntityRow(msgspec.Struct):
    """The JSON in the `settings` column of an `entities` row."""

    settings: dict[str, Any]
    stores: list[str]


def row_of(entity: Entity) -> Row:
    """Return an entity as it is kept in the namespace's store."""
    content = EntityRow(msgspec.to_builtins(entity.settings), entity.stores)
    return (
        entity.incarnation,
        entity.name,
        "queue",
        msgspec.json.encode(content),
        entity.created,
    )


def entity_of(row: Row) -> Entity:
    """Return an entity read back from its row."""
    incarnation, name, _, content, created = row
    assert isinstance(incarnation, int)
    assert isinstance(name, str)
    assert isinstance(content, bytes)
    assert isinstance(created, int)
    kept = msgspec.json.decode(content, type=EntityRow)
    settings = msgspec.convert(kept.settings, QueueSettings)
    return Entity(incarnation, name, settings, created, kept.stores)


class EntityInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An entity as its owner sees it: settings, and counts added up over its partitions."""

    name: str
    settings: QueueSettings
    created_ms: int
    #: available, or limited while a partition is offline (P10)
    availability: str
    active_count: int
    deferred_count: int
    scheduled_count: int
    dead_lettered_count: int
    held_count: int
    size_bytes: int
    duplicates_dropped: int
    remembered_ids: int
    offline_partitions: tuple[int, ...]
