"""Enqueue: all that a queue makes of what is sent to it, in one pass over the rows.

admit → route → deduplicate → stamp → schedule → expire, by the settings of a queue or topic, with
the same outcomes, numbers and times as the broker gives (core/timeline/enqueue.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

from onibus.core.errors import InvalidArgument
from onibus.core.limits import PARTITION_COUNT
from onibus.core.settings import LogSettings
from onibus.core.timeline.chunks import Chunks
from onibus.core.timeline.enqueue import Enqueuing
from onibus.core.timeline.partners import Partners, Released, Steps
from onibus.core.timeline.state import State
from onibus.spark.operators.arrivals import Arrival, check_free, kind_of, milliseconds
from onibus.spark.operators.messages import check_messages, messages_of
from onibus.spark.operators.partitions import key_column, partition_column
from onibus.spark.operators.running import Keeper, Numbers, Operator, added, carried, run

#: Further columns of events, and their names in the core.
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

#: Further columns of a `ready` event.
READY: dict[str, Any] = {"release_order": LongType(), "partner": StringType()}


@dataclass(frozen=True, slots=True)
class PartnerRule:
    """Which messages wait for which, inside one session or partition key: see hold_for_partner."""

    #: columns with the name of what a message needs and gives; null for nothing
    needs: str
    gives: str
    #: how long a message waits for what it needs, and how long what was given is remembered
    limit_ms: int
    remember_ms: int | None = None

    def check(self, schema: StructType) -> None:
        """Refuse rows without these columns."""
        if self.limit_ms < 1 or (self.remember_ms is not None and self.remember_ms < 1):
            raise InvalidArgument("limit_ms and remember_ms must be whole milliseconds above 0")
        check_free(schema, READY)
        kind_of(schema, self.needs, (StringType,), "the need")
        kind_of(schema, self.gives, (StringType,), "the gift")
        if not {"session_id", "partition_key"} & set(schema.fieldNames()):
            raise InvalidArgument("partners wait within a session_id or partition_key: add one")


@dataclass(frozen=True, slots=True)
class Enqueued:
    """Outcomes of rows.

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
    def ready(self) -> DataFrame:
        """Accepted messages in an order in which they can be processed; with `partners` only."""
        return self._of("ready")

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
    partners: PartnerRule | None = None,
) -> Enqueued:
    """Return what a queue with these settings makes of rows sent at their times.

    Columns of messages have the names of the format `onibus`; all may be missing, and further ones
    are kept. `as_of` is how far time goes in a batch, by default until the last row came; in a
    stream it goes with the rows. `partitions` counts where the entity is partitioned. With
    `partners` there are also `ready` events: accepted messages in the order to process them.
    """
    arrival = arrival or Arrival()
    check_messages(rows.schema)
    check_free(rows.schema, EVENT)
    if partners is not None:
        partners.check(rows.schema)
    group, groups = sf.lit(0), 1
    if settings.enable_partitioning:
        names = ["session_id", "partition_key"]
        names += ["message_id"] if settings.requires_duplicate_detection else []
        groups = partitions
        group = partition_column(rows.schema, key_column(rows.schema, names), groups, arrival)
    timed = partners is not None or _waits(rows, settings)
    until = milliseconds(as_of) or 0
    if timed and as_of is None and not rows.isStreaming:
        until = arrival.latest(rows)
    work = _Enqueue(settings, partners)
    work.schema = added(rows.schema, **EVENT, **(READY if partners else {}))
    return Enqueued(run(rows, work, group, groups, arrival, until=until, timed=timed))


def _waits(rows: DataFrame, settings: LogSettings) -> bool:
    """Return whether time alone can cause events."""
    timed = {"scheduled_enqueue_time", "time_to_live_ms"} & set(rows.columns)
    return bool(timed) or settings.default_time_to_live_ms is not None


class _Enqueue(Operator):
    def __init__(self, settings: LogSettings, partners: PartnerRule | None) -> None:
        self._settings = settings
        self._partners = partners

    def open(self, group: int, chunks: Chunks, secret: bytes | None) -> Keeper:
        enqueuing = Enqueuing(self._settings, group, chunks, secret)
        if self._partners is None:
            return _Keeper(enqueuing, group)
        rule = self._partners
        remember_ms = rule.remember_ms or rule.limit_ms
        return _DeferringKeeper(
            _Keeper(enqueuing, group), Partners(chunks, rule.limit_ms, remember_ms), rule
        )


class _Keeper:
    def __init__(self, enqueuing: Enqueuing, group: int) -> None:
        self._enqueuing = enqueuing
        self._group = group
        self.states: tuple[State, ...] = (enqueuing.timeline,)

    def take(self, rows: pa.Table, times: Numbers, until: int) -> pa.Table:
        rows = carried(rows)
        messages, refused = messages_of(rows)
        events = self._enqueuing.take(rows, messages, times, until, refused)
        index = pa.repeat(pa.scalar(self._group, pa.int32()), events.num_rows)
        events = events.append_column("partition", index)
        return events.rename_columns([_NAMES.get(name, name) for name in events.column_names])


class _DeferringKeeper:
    """A partition whose accepted messages wait for each other (L1, L2)."""

    def __init__(self, keeper: _Keeper, partners: Partners, rule: PartnerRule) -> None:
        self._keeper = keeper
        self._partners = partners
        self._rule = rule
        self.states: tuple[State, ...] = (*keeper.states, partners)

    def take(self, rows: pa.Table, times: Numbers, until: int) -> pa.Table:
        events = self._keeper.take(rows, times, until)
        accepted = events.filter(pc.equal(events.column("outcome"), "accepted"))
        accepted = accepted.sort_by("sequence_number")
        keys = [accepted.column(name) for name in ("session_id", "partition_key")
                if name in accepted.column_names]  # fmt: skip
        steps = Steps(
            accepted,
            accepted.column("enqueued_time").to_numpy(),
            pc.coalesce(*keys).to_pylist(),
            accepted.column(self._rule.needs).to_pylist(),
            accepted.column(self._rule.gives).to_pylist(),
        )
        released = self._partners.take(steps, max(until, int(times[-1]) if len(times) else 0))
        tables = [_plainly(events)]
        if released.rows is not None:
            tables.append(_ready(released.rows, released))
        return pa.concat_tables(tables)


def _ready(rows: pa.Table, released: Released) -> pa.Table:
    """Return the events of messages that came out, but for those that expired first (L4)."""
    times = pa.array(released.times, pa.int64())
    outcome = rows.schema.get_field_index("outcome")
    stamped = rows.schema.get_field_index("enqueued_time")
    ready = rows.set_column(outcome, "outcome", pa.repeat("ready", rows.num_rows))
    ready = ready.set_column(stamped, "enqueued_time", times)
    ready = ready.append_column("release_order", pa.array(released.numbers, pa.int64()))
    ready = ready.append_column("partner", pa.array(released.outcomes, pa.string()))
    alive = pc.greater(rows.column("expires_at"), times)
    return ready.filter(pc.fill_null(alive, True))


def _plainly(events: pa.Table) -> pa.Table:
    events = events.append_column("release_order", pa.nulls(events.num_rows, pa.int64()))
    return events.append_column("partner", pa.nulls(events.num_rows, pa.string()))
