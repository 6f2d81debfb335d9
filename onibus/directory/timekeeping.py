"""Timekeeping: the clock over restarts, the alarm when it is in doubt, and an operator's word.

What bus time continues from after a restart is a row of the namespace's own store. Once a second
the broker looks at the wall clock; it writes the row when that was set, and every ten minutes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from onibus.api.log import StampsSetBack
from onibus.api.operation import ClockInfo, StampsAhead
from onibus.core.commands import ListStamps, SetStampsBack
from onibus.core.errors import ClockInDoubt, Damaged, PartitionOffline
from onibus.core.log import Repair
from onibus.core.records import META, WriteBatch
from onibus.shard.clock import DAY_MS, SLACK_MS, ClockRecord
from onibus.shard.replies import KeptReply, Reply
from onibus.shard.runner import Steps, durable, run
from onibus.store.interface import Store

if TYPE_CHECKING:
    from onibus.directory.host import Host
    from onibus.shard.partition import ShardPartition
    from onibus.shard.shard import Shard

#: The name of the row.
CLOCK_ROW = "clock"
LOOK_EVERY_MS = 1_000
_ALARM = "clock"


def resume(broker: Host, store: Store) -> None:
    """Continue bus time from what the store kept; earlier versions kept the time of files only."""
    row, written_ms = store.read(META, (CLOCK_ROW,)), broker.written_ms
    if row is not None:
        try:
            record = msgspec.json.decode(str(row[1]), type=ClockRecord)
        except msgspec.DecodeError as error:
            raise Damaged(f"the namespace's row {CLOCK_ROW!r} is damaged: {error}") from error
        broker.clock.resume(record)
    elif written_ms is not None:
        broker.clock.resume(ClockRecord(bus=written_ms, proven=written_ms, monotonic=0, boot=""))


def keep_time(broker: Host) -> None:
    """Check the wall clock, report when it is in doubt, and keep the record for a restart."""
    clock = broker.clock
    clock.observe()
    doubt = _doubt(broker)
    if doubt:
        broker.alarms.raise_once(_ALARM, ClockInDoubt(doubt))
    else:
        broker.alarms.over(_ALARM)
    if broker.namespace.online and (record := clock.record()) is not None:
        broker.namespace.commit(_row(record), KeptReply())
    broker.timers.set(("clock", ""), clock.now() + LOOK_EVERY_MS)


def clock_info(broker: Host) -> ClockInfo:
    """Return what the bus takes the time for."""
    clock = broker.clock
    return ClockInfo(clock.machine.wall(), clock.proven(), clock.sure, _stamps_ahead(broker))


def accept_clock(broker: Host, reply: Reply) -> None:
    """Trust the wall clock, because an operator says so; reply with the stamps that were set back.

    The time in doubt counts from now on, so messages expire and ids are forgotten that it makes
    old. Stamps that a wrong clock put into the future are set back, and that is kept.
    """
    clock, namespace = broker.clock, broker.namespace
    if not namespace.online:
        raise PartitionOffline("the namespace's store is down: try again when it is available")
    clock.accept()
    wall = clock.wall()
    repaired: list[StampsSetBack] = []
    stores: dict[Shard, None] = {}
    for partition, ahead_ms in _ahead(broker, wall):
        if ahead_ms > SLACK_MS:
            # Before time passes: messages that are due now get a stamp of the right clock.
            repair = broker.apply(partition, SetStampsBack(), clock.now())
            repaired.append(stamps_set_back(partition, repair))
            stores[partition.store] = None

    def steps() -> Steps[list[StampsSetBack]]:
        yield durable(stores)
        yield partial(namespace.commit, _row(clock.record_now()))
        return repaired

    run(steps(), reply)


def _row(record: ClockRecord) -> WriteBatch:
    batch = WriteBatch()
    batch.put(META, (CLOCK_ROW, msgspec.json.encode(record).decode()))
    return batch


def stamps_set_back(partition: ShardPartition, repair: Repair) -> StampsSetBack:
    """Return where the timestamps of a partition were set back."""
    number = partition.numbering.number(repair.ordinal)
    return StampsSetBack(
        entity=partition.entity.name,
        partition=partition.index,
        sequence_number=number,
        before_ms=repair.before,
        after_ms=repair.after,
    )


def _ahead(broker: Host, wall: int) -> list[tuple[ShardPartition, int]]:
    """Return how far the last timestamp of each partition is ahead of the wall clock."""
    return [
        (partition, partition.store.look(partition, ListStamps()).last_ms - wall)
        for partition in list(broker.partitions.values())
        if partition.is_online
    ]


def _stamps_ahead(broker: Host) -> list[StampsAhead]:
    return [
        StampsAhead(partition.entity.name, partition.index, ahead_ms)
        for partition, ahead_ms in _ahead(broker, broker.clock.wall())
        if ahead_ms > SLACK_MS
    ]


def _doubt(broker: Host) -> str:
    """Return what is doubtful about the clock, and what to do; empty if nothing is."""
    clock = broker.clock
    doubt_ms = clock.in_doubt_ms
    if doubt_ms:
        said, known = _moment(clock.machine.wall()), _moment(clock.proven())
        return (
            f"the system clock says {said}, {_days(doubt_ms)} the confirmed time, {known}: "
            "no message expires or is enqueued because of the difference. Set the clock, or "
            "confirm it with `onibus clock accept`"
        )
    ahead = _stamps_ahead(broker)
    if ahead:
        worst = max(ahead, key=lambda one: one.ahead_ms)
        return (
            f"the newest enqueued time in partition {worst.partition} of {worst.entity} "
            f"is {_days(worst.ahead_ms)} the system clock, as in {len(ahead) - 1} other "
            "partitions: new messages get the same time until the clock reaches it. Set the "
            "clock, or set the times back with `onibus clock accept`"
        )
    return ""


def _moment(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms since 1970"


def _days(ms: int) -> str:
    size = abs(ms)
    length = f"{size / DAY_MS:,.1f} days" if size >= DAY_MS else f"{size // 1_000:,} seconds"
    return f"{length} {'ahead of' if ms > 0 else 'behind'}"
