"""Ticking: the actions of the broker's timers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onibus.broker import readers
from onibus.broker.failing import read_again
from onibus.broker.idling import delete_if_idle
from onibus.broker.namespace import NAME
from onibus.broker.receiving import give_up
from onibus.broker.timekeeping import keep_time
from onibus.core.errors import PartitionOffline
from onibus.core.path.compact import compact, forget_retained
from onibus.core.records import WriteBatch
from onibus.shard.opening import delete_orphans
from onibus.shard.shard import TIDY_AFTER_MS

if TYPE_CHECKING:
    from onibus.broker.broker import Broker
    from onibus.shard.seat import Seat
    from onibus.shard.shard import Shard

#: Time between two slices of tidying a partition.
TIDY_AGAIN_MS = 5
TIDY_RARELY_MS = 60_000
#: With this many blocks a partition is merged even while clients use it.
MANY_BLOCKS = 1_024


def ring(broker: Broker, kind: str, subject: Any) -> bool:
    """Do a slice of what is due; return whether more is left."""
    if kind == "waiter":
        give_up(broker, subject)
    elif kind == "timeout":
        subject.time_out()
    elif kind == "clock":
        keep_time(broker)
    elif kind == "forward":
        broker.forwarding.retry(subject)
    elif kind == "lease":
        broker.producers.lease_over(subject)
    elif kind == "claim":
        broker.claims.lease_over(subject)
    elif kind == "reader":
        readers.remove_if_idle(broker, subject)
    elif kind == "idle":
        delete_if_idle(broker, subject)
    elif kind == "reopen" and subject == NAME:
        broker.namespace.reopen()
    elif kind == "probe":
        broker.probing.rang(subject)
    elif kind == "house":
        owner = broker.namespace if subject == NAME else broker.stores[subject]
        if owner.loop is not None:
            broker.houses[subject].rang(owner.loop)
    elif kind in ("flush", "reopen", "orphans"):
        _tick_store(broker, kind, broker.stores[subject])
    elif subject in broker.seats:
        return _tick_seat(broker, kind, broker.seats[subject])
    return False


def _tick_store(broker: Broker, kind: str, store: Shard) -> None:
    if kind == "reopen":
        if not store.online:
            broker.reopen(store)
    elif kind == "orphans":
        delete_orphans(store)
    elif store.loop is not None:
        store.commit_all()
        if store.loop.waiting:
            store.flush_later()


def _tick_seat(broker: Broker, kind: str, seat: Seat) -> bool:
    if kind == "reread":
        read_again(broker, seat)
        return False
    if seat.partition is None or seat.store.loop is None:
        return False
    if kind == "partition":
        now = broker.clock.now()
        try:
            broker.advance(seat, now)
        except PartitionOffline:
            return False
        # The rest of a slice continues when others have had their turn.
        due = seat.online().next_wake()
        broker.timers.set(("partition", seat.id), max(due, now + 1))
        return due <= now
    now, rested = broker.clock.now(), seat.partition.accessed + TIDY_AFTER_MS
    unused = now >= rested or len(seat.partition.log.places) > MANY_BLOCKS
    eager = unused and not seat.store.loop.busy
    if tidy(broker, seat, eager):
        broker.timers.set(("tidy", seat.id), now + TIDY_AGAIN_MS)
        return True
    if not eager:
        broker.timers.set(("tidy", seat.id), max(rested, now + TIDY_AGAIN_MS))
    elif seat.partition is not None and seat.partition.keeps_for_a_time():
        # Expired ids and rows must be deleted even if no client uses the partition again.
        broker.timers.set(("retidy", seat.id), broker.clock.now() + TIDY_RARELY_MS)
    return False


def tidy(broker: Broker, seat: Seat, eager: bool = True) -> bool:
    """Do a slice of compaction and of sealing ids; return whether more is waiting.

    `eager` also does work that can wait while clients use the partition.
    """
    partition = seat.online()
    assert seat.store.loop is not None
    out = WriteBatch()
    try:
        more = partition.ids.maintain(partition.forget_before(broker.clock.now()), out)
        forget_retained(partition, broker.clock.now(), out)
        more |= partition.trim_outcomes(broker.clock.now(), out)
        more |= compact(partition, out, eager)
    except Exception as error:
        broker.partition_failed(seat, error)
        return False
    if out:
        partition.finish(broker.clock.now(), out, by_itself=True)
        seat.store.loop.touch(partition)
        seat.store.loop.write(out)
        seat.store.flush_later()
    return more
