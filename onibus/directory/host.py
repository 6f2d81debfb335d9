"""What the directory needs of the process that runs it, beyond what its shards need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from onibus.shard.shard import Host as ShardHost

if TYPE_CHECKING:
    from onibus.core.commands import Command
    from onibus.directory.claims import Claims
    from onibus.directory.entity import Entity
    from onibus.directory.namespace import Namespace
    from onibus.directory.probing import Probing
    from onibus.directory.producers import Producers
    from onibus.directory.turns import Turns
    from onibus.directory.works import Works
    from onibus.shard.commits import CommitLoop
    from onibus.shard.partition import ShardPartition
    from onibus.shard.shard import Shard

T = TypeVar("T")


class Host(ShardHost, Protocol):
    """The process of a directory: the stores, and what runs over them."""

    stores: dict[str, Shard]
    #: those that are online, by their ids
    partitions: dict[int, ShardPartition]
    namespace: Namespace
    works: Works
    producers: Producers
    claims: Claims
    probing: Probing
    #: when the namespace's files were last written, by the clock of that time
    written_ms: int | None
    closed: bool

    @property
    def turns(self) -> Turns:
        """The sends that wait for their turn."""

    def find(self, name: str, kind: str | None = None) -> Entity:
        """Return an entity by its name; of that kind, if one is given."""

    def partition(self, partition_id: int) -> ShardPartition | None:
        """Return a partition, online or not; None if its entity was deleted."""

    def apply(self, partition: ShardPartition, command: Command[T], now: int | None = None) -> T:
        """Carry out a command on a partition."""

    def use(
        self, entity: Entity, partition: ShardPartition, command: Command[T], now: int | None = None
    ) -> T:
        """Carry out a command on the messages of an entity in a partition."""

    def advance(self, partition: ShardPartition, now: int) -> None:
        """Bring a partition up to that bus time."""

    def install(self, entity: Entity) -> None:
        """Assign partitions of a new entity to stores."""

    def take_up(self, partition: ShardPartition) -> None:
        """Serve a partition that is online."""

    def forget(self, entity: Entity) -> None:
        """Drop the partitions of a deleted entity and fail its pending calls."""

    def wake_all(self, entity: Entity) -> None:
        """Serve receivers that wait for messages of a queue or topic, and its forwarding."""

    def settings_changed(self, outlet: Entity) -> None:
        """Follow new settings of an entity whose messages receivers get."""

    def committed(self, shard: Any, loop: CommitLoop) -> None:
        """Note that a store, or that of the namespace, has committed."""
