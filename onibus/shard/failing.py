"""Partitions that fail while their store is up: offline alone, or the store is opened again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from onibus.core.errors import PartitionOffline, StoreFailed

if TYPE_CHECKING:
    from onibus.shard.commits import CommitLoop
    from onibus.shard.partition import ShardPartition
    from onibus.shard.shard import Host, Shard

#: A partition whose reads fail again is tried again after this, doubled each time.
_RETRY_MS, _RETRY_MS_MAX = 1_000, 60_000
#: After this long without a failed read, the next one counts as the first.
_FORGET_MS = 600_000


def partition_failed(
    shard: Shard, host: Host, partition: ShardPartition, error: BaseException
) -> PartitionOffline:
    """Take one partition offline: its stored bytes, or our own code, cannot be trusted.

    A failed read does not mean that bytes are wrong: for it the store is opened again. If it is
    the same place that fails each time, as a bad sector does, the other partitions must not suffer
    for it: only this one stays offline, and the store is opened again ever more rarely.
    """
    partition.take_offline(str(error))
    loop = shard.loop
    if not partition.deleted:
        shard.failed.add(partition.id)
    if (
        isinstance(error, StoreFailed)
        and loop is not None
        and not (wait := _wait(shard, host, partition))
    ):
        # Later: the caller may be in the middle of something with this store.
        host.call_soon(partial(_read_failed, shard, host, loop, error))
    else:
        host.alarms.raise_one(f"partition {partition.index} of {partition.entity.name}", error)
        if isinstance(error, StoreFailed) and loop is not None:
            host.timers.set(("reread", partition.id), host.clock.now() + wait)
    return PartitionOffline(f"partition {partition.index} of {partition.entity.name}: {error}")


def _wait(shard: Shard, host: Host, partition: ShardPartition) -> int:
    """Count a failed read of a partition; return how long its store is left as it is."""
    now = host.clock.now()
    count, last = shard.reads_failed.get(partition.id, (0, 0))
    if now - last > _FORGET_MS:
        count = 0
    shard.reads_failed[partition.id] = (count + 1, now)
    return min(_RETRY_MS * 2**count, _RETRY_MS_MAX) if count else 0


def read_again(shard: Shard, host: Host, partition: ShardPartition) -> None:
    """Open the store of a partition again whose reads failed."""
    if partition.core is None and shard.loop is not None:
        _read_failed(shard, host, shard.loop, StoreFailed(partition.offline))


def _read_failed(shard: Shard, host: Host, loop: CommitLoop, error: BaseException) -> None:
    if shard.loop is loop:
        loop.abandon(error)
        host.went_down(shard.name, loop, error)
