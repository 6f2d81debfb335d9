"""Hold: rows that wait for their time (S5, S6), or for the row that they need (L1, L2)."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    BooleanType,
    LongType,
    StringType,
    TimestampType,
)

from onibus.core.errors import InvalidArgument
from onibus.core.numbering import Numbering
from onibus.core.timeline.chunks import Chunks
from onibus.core.timeline.partners import Partners, Steps
from onibus.core.timeline.timeline import Arrivals, Timeline
from onibus.spark.operators.arrivals import (
    WHOLE,
    Arrival,
    check_free,
    kind_of,
    millis,
    milliseconds,
    quoted,
)
from onibus.spark.operators.partitions import partition_column
from onibus.spark.operators.running import (
    GROUPS_DEFAULT,
    Keeper,
    Numbers,
    Operator,
    added,
    carried,
    run,
)

_DUE, _WORKFLOW = "_onibus_due", "_onibus_workflow"


def hold_until_due(
    rows: DataFrame,
    due: str = "scheduled_enqueue_time",
    *,
    as_of: datetime | int | None = None,
    arrival: Arrival | None = None,
    groups: int = GROUPS_DEFAULT,
) -> DataFrame:
    """Return rows with `available_time`, each when it is due; a past time releases it at once.

    A stream releases a row once rows of its time or later have arrived. A batch returns all rows:
    those still waiting at `as_of`, by default the arrival of the last row, have `waiting` true.
    """
    arrival = arrival or Arrival()
    check_free(rows.schema, ["available_time", "waiting", _DUE])
    kind_of(rows.schema, due, (TimestampType, *WHOLE), "the time to wait for")
    ready = rows.withColumn(_DUE, millis(rows.schema, due))
    schema = added(rows.schema, available_time=TimestampType())
    if not rows.isStreaming:
        until = milliseconds(as_of)
        until = arrival.latest(rows) if until is None else until
        available = sf.greatest(millis(rows.schema, arrival.time), sf.col(_DUE))
        return ready.select(
            *[sf.col(quoted(name)) for name in rows.columns],
            sf.timestamp_millis(available).alias("available_time"),
            (available > until).alias("waiting"),
        )
    group = partition_column(ready.schema, None, groups, arrival)
    work = _UntilDue()
    work.schema = added(schema, waiting=BooleanType())
    return run(ready, work, group, groups, arrival, timed=True)


class _UntilDue(Operator):
    def open(self, group: int, chunks: Chunks, secret: bytes | None) -> Keeper:
        return _DueKeeper(Timeline(Numbering(0, False), chunks))


class _DueKeeper:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.states = (timeline,)

    def take(self, rows: pa.Table, times: Numbers, until: int) -> pa.Table:
        bare, dues = carried(rows.drop_columns([_DUE])), rows.column(_DUE).combine_chunks()
        passed = self._timeline.take(Arrivals(bare, times, dues=dues), until)
        at_once = bare.filter(pa.array(~passed.scheduled))
        out = [at_once.append_column("available_time", pa.array(times[~passed.scheduled]))]
        if passed.due is not None:
            out.append(passed.due.append_column("available_time", pa.array(passed.due_stamps)))
        table = pa.concat_tables(out)
        return table.append_column("waiting", pa.repeat(False, table.num_rows))


def hold_for_partner(
    rows: DataFrame,
    *,
    workflow: str,
    needs: str,
    gives: str,
    limit_ms: int,
    remember_ms: int | None = None,
    as_of: datetime | int | None = None,
    arrival: Arrival | None = None,
    groups: int = GROUPS_DEFAULT,
) -> DataFrame:
    """Return rows in the order to process them: none before the row of its workflow that it needs.

    `needs` and `gives` are columns with names, null for none; `workflow` is the scope of the names.
    A row whose partner does not arrive within `limit_ms` is released then, with `partner` missing
    (others have met or alone). Given names are kept for `remember_ms`, by default as long.

    `released_time` says when a row came out and `release_order` in which order, inside its
    workflow. Rows that still wait at `as_of` (by default when the last row came) do not come out.
    """
    arrival = arrival or Arrival()
    if limit_ms < 1 or (remember_ms is not None and remember_ms < 1):
        raise InvalidArgument("limit_ms and remember_ms must be whole milliseconds above 0")
    check_free(rows.schema, ["released_time", "release_order", "partner"])
    for name, what in ((workflow, "the workflow"), (needs, "the need"), (gives, "the gift")):
        kind_of(rows.schema, name, (StringType,), what)
    until = 0
    if not rows.isStreaming:
        moment = milliseconds(as_of)
        until = arrival.latest(rows) if moment is None else moment
    group = partition_column(rows.schema, sf.col(quoted(workflow)), groups, arrival)
    work = _Partnering((workflow, needs, gives), limit_ms, remember_ms or limit_ms)
    work.schema = added(
        rows.schema,
        released_time=TimestampType(),
        release_order=LongType(),
        partner=StringType(),
    )
    return run(rows, work, group, groups, arrival, until=until, timed=True)


class _Partnering(Operator):
    def __init__(self, names: tuple[str, str, str], limit_ms: int, remember_ms: int) -> None:
        self._names = names
        self._limit_ms = limit_ms
        self._remember_ms = remember_ms

    def open(self, group: int, chunks: Chunks, secret: bytes | None) -> Keeper:
        return _PartnerKeeper(Partners(chunks, self._limit_ms, self._remember_ms), self._names)


class _PartnerKeeper:
    def __init__(self, partners: Partners, names: tuple[str, str, str]) -> None:
        self._partners = partners
        self.states = (partners,)
        self._names = names

    def take(self, rows: pa.Table, times: Numbers, until: int) -> pa.Table:
        rows = carried(rows)
        workflows, needs, gives = (rows.column(name).to_pylist() for name in self._names)
        out = self._partners.take(Steps(rows, times, workflows, needs, gives), until)
        released = rows.slice(0, 0) if out.rows is None else out.rows
        for name, column in (
            ("released_time", pa.array(out.times, pa.int64())),
            ("release_order", pa.array(out.numbers, pa.int64())),
            ("partner", pa.array(out.outcomes, pa.string())),
        ):
            released = released.append_column(name, column)
        return released
