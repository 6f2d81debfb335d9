"""Routing: which partitions a request goes to, and which take over if one is unavailable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.commands import check_token
from onibus.core.errors import (
    EntityDisabled,
    InvalidOperation,
    MessageNotFound,
    OnibusError,
    PartitionOffline,
    QuotaExceeded,
    UnknownToken,
)
from onibus.core.holds import TOKEN
from onibus.core.numbering import partition_index
from onibus.core.path.admit import Prepared
from onibus.core.path.route import partition_of
from onibus.directory.entity import Entity
from onibus.shard.partition import ShardPartition

if TYPE_CHECKING:
    from onibus.directory.host import Host

#: A partition, the positions of its messages in the batch (not needed if it gets all), and whether
#: any other partition would do.
Routed = tuple[ShardPartition, list[int], bool]


def route(entity: Entity, batch: list[Prepared]) -> list[Routed]:
    """Return the partitions of a batch's messages; keyless ones share one (P4)."""
    if len(entity.partitions) == 1:
        partition = entity.partitions[0]
        check_room(partition, size_of(batch))
        return [(partition, [], False)]
    keyed: dict[int, list[int]] = {}
    keyless: list[int] = []
    for position, prepared in enumerate(batch):
        if prepared.key is None:
            keyless.append(position)
        else:
            index = partition_of(prepared.key, len(entity.partitions))
            keyed.setdefault(index, []).append(position)
    parts: list[Routed] = []
    for index, positions in keyed.items():
        partition = entity.partitions[index]
        check_room(partition, size_of([batch[position] for position in positions]))
        parts.append((partition, positions, False))
    if not keyless:
        return parts
    size = size_of([batch[position] for position in keyless])
    partition = any_partition(entity, size)
    together = [positions for one, positions, _ in parts if one is partition]
    if together:
        # Their turn has come to a partition that gets messages by their keys as well.
        together[0][:] = sorted(together[0] + keyless)
    else:
        parts.append((partition, keyless, True))
    return parts


def partition_of_message(entity: Entity, prepared: Prepared) -> ShardPartition:
    """Return the partition of one message."""
    size = len(prepared.row)
    if len(entity.partitions) > 1:
        if prepared.key is None:
            return any_partition(entity, size)
        partition = entity.partitions[partition_of(prepared.key, len(entity.partitions))]
    else:
        partition = entity.partitions[0]
    check_room(partition, size)
    return partition


def partition_of_key(entity: Entity, key: str | None) -> ShardPartition:
    """Return the partition that a key chooses, or the only one."""
    return entity.partitions[partition_of(key or "", len(entity.partitions))]


def size_of(batch: list[Prepared]) -> int:
    """Return how much messages count towards a quota."""
    return sum([len(prepared.row) for prepared in batch])


def any_partition(entity: Entity, size: int) -> ShardPartition:
    """Return the next partition in turn that is up and has room (P5)."""
    refusal: OnibusError | None = None
    for _ in entity.partitions:
        partition = entity.partitions[entity.next_send % len(entity.partitions)]
        entity.next_send += 1
        try:
            check_room(partition, size)
            partition.store.check_disk(size, routing=True)
        except (PartitionOffline, QuotaExceeded) as error:
            refusal = error
        else:
            entity.tally.failovers += refusal is not None
            return partition
    assert refusal is not None
    raise refusal


def check_room(partition: ShardPartition, size: int) -> int:
    """Reject messages that do not fit into a partition any more; return how many bytes would."""
    free = partition.free_bytes()
    if size > free:
        where = f"partition {partition.index} of " if len(partition.entity.partitions) > 1 else ""
        raise QuotaExceeded(
            f"{where}{partition.entity.name} is full: {max(free, 0)} bytes are free and "
            f"{size} needed"
        )
    return free


def partition_of_token(entity: Entity, token: bytes) -> ShardPartition:
    """Return the partition that issued a token; reject bytes that are not a token."""
    check_token(token)
    if len(entity.partitions) == 1:
        return entity.partitions[0]
    index = partition_index(TOKEN.unpack(token)[0], entity.partitioned)
    if index >= len(entity.partitions):
        raise UnknownToken("not a lock token of this entity: settle where it was received")
    return entity.partitions[index]


def partition_of_number(entity: Entity, number: int) -> ShardPartition:
    """Return the partition of a sequence number."""
    if isinstance(number, int) and number >= 0:
        index = partition_index(number, entity.partitioned)
        if index < len(entity.partitions):
            return entity.partitions[index]
    raise MessageNotFound(f"no message with sequence number {number}")


def in_turn(entity: Entity) -> list[ShardPartition]:
    """Return the partitions, another one first each time, so that none is starved."""
    entity.next_receive = (entity.next_receive + 1) % len(entity.partitions)
    return entity.partitions[entity.next_receive :] + entity.partitions[: entity.next_receive]


def open_for_sends(broker: Host, name: str) -> Entity:
    """Return a queue or topic that accepts messages; reject any other entity."""
    entity = broker.find(name)
    if entity.topic is not None:
        raise InvalidOperation(f"{entity.name} is a subscription: send to {entity.topic.name}")
    check_takes(entity)
    return entity


def check_takes(entity: Entity) -> None:
    """Reject a send to a queue or topic that is paused for sends."""
    if not entity.log_settings.sends:
        raise EntityDisabled(f"{entity.name} is {entity.settings.status}: it accepts no messages")
