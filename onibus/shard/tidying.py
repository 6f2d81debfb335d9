"""The timers of a partition: changes that time brings, and the deletion of what is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.errors import PartitionOffline
from onibus.core.path.compact import compact, forget_retained
from onibus.core.records import WriteBatch
from onibus.shard.failing import read_again
from onibus.shard.shard import TIDY_AFTER_MS

if TYPE_CHECKING:
    from onibus.shard.partition import ShardPartition
    from onibus.shard.shard import Host

#: Time between two slices of tidying a partition.
TIDY_AGAIN_MS = 5
TIDY_RARELY_MS = 60_000
#: With this many blocks a partition is merged even while clients use it.
MANY_BLOCKS = 1_024


def ring(host: Host, kind: str, partition: ShardPartition) -> bool:
    """Do a slice of what is due in a partition; return whether more is left."""
    if kind == "reread":
        read_again(partition.store, host, partition)
        return False
    if partition.core is None or partition.store.loop is None:
        return False
    if kind == "partition":
        return _pass_time(host, partition)
    return _tidy_in_turn(host, partition)


def _pass_time(host: Host, partition: ShardPartition) -> bool:
    now = host.clock.now()
    try:
        partition.store.advance(partition, now)
    except PartitionOffline:
        return False
    # The rest of a slice continues when others have had their turn.
    due = partition.online().next_wake()
    host.timers.set(("partition", partition.id), max(due, now + 1))
    return due <= now


def _tidy_in_turn(host: Host, partition: ShardPartition) -> bool:
    core, store = partition.online(), partition.store
    now, rested = host.clock.now(), core.accessed + TIDY_AFTER_MS
    unused = now >= rested or len(core.log.places) > MANY_BLOCKS
    eager = unused and store.loop is not None and not store.loop.busy
    if tidy(partition, eager=eager):
        host.timers.set(("tidy", partition.id), now + TIDY_AGAIN_MS)
        return True
    if not eager:
        # Those that find their store busy come back one after another: thousands of idle partitions
        # would otherwise keep the loop from the commit they wait for.
        again = max(now, store.tidies_next) + TIDY_AGAIN_MS
        if unused:
            store.tidies_next = again
        host.timers.set(("tidy", partition.id), max(rested, again))
    elif partition.core is not None and partition.core.keeps_for_a_time():
        # Expired ids and rows must be deleted even if no client uses the partition again.
        host.timers.set(("retidy", partition.id), host.clock.now() + TIDY_RARELY_MS)
    return False


def tidy(partition: ShardPartition, *, eager: bool = True) -> bool:
    """Do a slice of compaction and of sealing ids; return whether more is waiting.

    `eager` also does work that can wait while clients use the partition.
    """
    core, store = partition.online(), partition.store
    now, out = store.host.clock.now(), WriteBatch()
    try:
        more = core.ids.maintain(core.forget_before(now), out)
        forget_retained(core, now, out)
        more |= core.trim_outcomes(now, out)
        more |= compact(core, out, eager)
    except Exception as error:
        store.partition_failed(partition, error)
        return False
    if out:
        core.finish(now, out, by_itself=True)
        store.write(out, core)
    return more
