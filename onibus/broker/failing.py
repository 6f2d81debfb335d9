"""Partitions that fail while their store is up: offline alone, or the store is opened again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.errors import PartitionOffline, StoreFailed

if TYPE_CHECKING:
    from onibus.broker.broker import Broker
    from onibus.shard.commits import CommitLoop
    from onibus.shard.seat import Seat
    from onibus.shard.shard import Shard

#: A partition whose reads fail again is tried again after this, doubled each time.
_RETRY_MS, _RETRY_MS_MAX = 1_000, 60_000
#: After this long without a failed read, the next one counts as the first.
_FORGET_MS = 600_000


def partition_failed(broker: Broker, seat: Seat, error: BaseException) -> PartitionOffline:
    """Take one partition offline: its stored bytes, or our own code, cannot be trusted.

    A failed read does not mean that bytes are wrong: for it the store is opened again. If it is
    the same place that fails each time, as a bad sector does, the other partitions must not suffer
    for it: only this one stays offline, and the store is opened again ever more rarely.
    """
    seat.partition = None
    seat.offline = str(error)
    store, loop = seat.store, seat.store.loop
    if not seat.deleted:
        store.failed.add(seat.id)
    if isinstance(error, StoreFailed) and loop is not None and (wait := _wait(broker, seat)) == 0:
        # Later: the caller may be in the middle of something with this store.
        broker.call_soon(lambda: _read_failed(broker, store, loop, error))
    else:
        broker.alarms.raise_one(f"partition {seat.index} of {seat.entity.name}", error)
        if isinstance(error, StoreFailed) and loop is not None:
            broker.timers.set(("reread", seat.id), broker.clock.now() + wait)
    return PartitionOffline(f"partition {seat.index} of {seat.entity.name}: {error}")


def _wait(broker: Broker, seat: Seat) -> int:
    """Count a failed read of a partition; return how long its store is left as it is."""
    now = broker.clock.now()
    count, last = seat.store.reads_failed.get(seat.id, (0, 0))
    if now - last > _FORGET_MS:
        count = 0
    seat.store.reads_failed[seat.id] = (count + 1, now)
    return min(_RETRY_MS * 2**count, _RETRY_MS_MAX) if count else 0


def read_again(broker: Broker, seat: Seat) -> None:
    """Open the store of a partition again whose reads failed."""
    loop = seat.store.loop
    if seat.partition is None and loop is not None:
        _read_failed(broker, seat.store, loop, StoreFailed(seat.offline))


def _read_failed(broker: Broker, store: Shard, loop: CommitLoop, error: BaseException) -> None:
    if store.loop is loop:
        loop.abandon(error)
        broker.store_failed(store, error)
