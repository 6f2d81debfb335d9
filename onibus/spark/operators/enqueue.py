"""Enqueue: all that a queue makes of what is sent to it, in one pass over the rows.

admit → route → deduplicate → stamp → schedule → expire, by the settings of a queue or topic, with
the same outcomes, numbers and times as the broker gives (core/timeline/enqueue.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, LongType, StringType, TimestampType

from onibus.core.limits import PARTITION_COUNT
from onibus.core.settings import LogSettings
from onibus.core.timeline.chunks import Chunks
from onibus.core.timeline.enqueue import Enqueuing
from onibus.core.timeline.timeline import Timeline
from onibus.spark.operators.arrivals import Arrival, check_free, milliseconds
from onibus.spark.operators.messages import check_messages, messages_of
from onibus.spark.operators.partitions import key_column, partition_column
from onibus.spark.operators.running import Keeper, Numbers, Work, added, carried, run

#: What events have besides the columns of rows, and what the core calls it.
EVENT: dict[str, Any] = {
    "outcome": StringType(),
    "partition": IntegerType(),
    "sequence_number": LongType(),
    "enqueued_time": TimestampType(),
    "expires_at": TimestampType(),
    "duplicate_of": LongType(),
    "scheduled_number": LongType(),
    "reason": StringType(),
    "description": StringType(),
}
_NAMES = {"enqueued_time_ms": "enqueued_time", "expires_at_ms": "expires_at"}

#: Without a state nobody can have learnt what would make two hashes equal.
_NO_SECRET = bytes(32)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of rows.

    In a stream write `events` once, in foreachBatch, and split it there: each query does the work.
    """

    #: a row for everything that happened (core/timeline/enqueue.py); rows never change
    events: DataFrame

    def _of(self, outcome: str) -> DataFrame:
        return self.events.where(sf.col("outcome") == outcome)

    @property
    def accepted(self) -> DataFrame:
        """Messages that are in the queue, scheduled ones from their time on."""
        return self._of("accepted")

    @property
    def duplicates(self) -> DataFrame:
        return self._of("duplicate")

    @property
    def scheduled(self) -> DataFrame:
        """Messages that waited for their time, or still do."""
        return self._of("scheduled")

    @property
    def expired(self) -> DataFrame:
        return self._of("expired")

    @property
    def dead_lettered(self) -> DataFrame:
        """What a sender would have been refused, and what expired where that is dead-lettered."""
        return self._of("dead-lettered")


def enqueue(
    rows: DataFrame,
    settings: LogSettings,
    *,
    arrival: Arrival | None = None,
    as_of: datetime | int | None = None,
    partitions: int = PARTITION_COUNT,
) -> Enqueued:
    """Return what a queue with these settings makes of rows sent at their times.

    Columns of messages have the names of the format `onibus`; all may be missing, and further ones
    are kept. `as_of` is how far time goes in a batch, by default until the last row came; in a
    stream it goes with the rows. `partitions` counts where the entity is partitioned.
    """
    arrival = arrival or Arrival()
    check_messages(rows.schema)
    check_free(rows.schema, EVENT)
    group, groups = sf.lit(0), 1
    if settings.enable_partitioning:
        names = ["session_id", "partition_key"]
        names += ["message_id"] if settings.requires_duplicate_detection else []
        groups = partitions
        group = partition_column(rows.schema, key_column(rows.schema, names), groups, arrival)
    timed = _waits(rows, settings)
    until = milliseconds(as_of) or 0
    if timed and as_of is None and not rows.isStreaming:
        until = arrival.latest(rows)
    work = _Enqueue(settings)
    work.schema = added(rows.schema, **EVENT)
    return Enqueued(run(rows, work, group, groups, arrival, until=until, timed=timed))


def _waits(rows: DataFrame, settings: LogSettings) -> bool:
    """Tell whether something may happen by itself when time passes."""
    timed = {"scheduled_enqueue_time", "time_to_live_ms"} & set(rows.columns)
    return bool(timed) or settings.default_time_to_live_ms is not None


class _Enqueue(Work):
    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings

    def open(self, group: int, chunks: Chunks, secret: bytes | None) -> Keeper:
        return _Keeper(Enqueuing(self._settings, group, chunks, secret or _NO_SECRET), group)


class _Keeper:
    def __init__(self, enqueuing: Enqueuing, group: int) -> None:
        self._enqueuing = enqueuing
        self._group = group

    @property
    def state(self) -> Timeline:
        return self._enqueuing.timeline

    def take(self, rows: pa.Table, times: Numbers, until: int) -> pa.Table:
        rows = carried(rows)
        messages, refused = messages_of(rows)
        events = self._enqueuing.take(rows, messages, times, until, refused)
        index = pa.repeat(pa.scalar(self._group, pa.int32()), events.num_rows)
        events = events.append_column("partition", index)
        return events.rename_columns([_NAMES.get(name, name) for name in events.column_names])
