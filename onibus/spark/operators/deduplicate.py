"""Deduplicate: keep the first of rows that repeat each other inside a window, exactly (D1 – D5).

Which rows are the same: those of one id (as on an entity that is not partitioned, D3), of one id
and key (as on a partitioned one), or of one content (as on a FIFO queue without ids, F6). The
window runs from the row that was kept, and a dropped one does not extend it (D5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from onibus.core.errors import InvalidArgument
from onibus.core.numbering import Numbering
from onibus.core.timeline.chunks import Chunks
from onibus.core.timeline.timeline import Arrivals, Timeline
from onibus.core.timeline.words import coded, hashed
from onibus.spark.operators.arrivals import Arrival, check_free, kind_of, quoted
from onibus.spark.operators.partitions import key_column, partition_column
from onibus.spark.operators.running import (
    GROUPS_DEFAULT,
    Keeper,
    Numbers,
    Operator,
    added,
    carried,
    name_of,
    orders_of,
    run,
)

BY_ID, BY_ID_AND_KEY, BY_CONTENT = "id", "id-and-key", "content"
#: A window that no row outlives.
FOREVER_MS = 2**61

_SCOPE = "_onibus_scope"


@dataclass(frozen=True, slots=True)
class Deduplicated:
    """Rows, and those of them that repeat others.

    In a stream write `rows` once, in foreachBatch, and split it there: two queries would each do
    the work.
    """

    #: all rows, with what each one repeats in `duplicate_of`: the order of arrival of that row
    rows: DataFrame

    @property
    def kept(self) -> DataFrame:
        return self.rows.where("duplicate_of IS NULL").drop("duplicate_of")

    @property
    def dropped(self) -> DataFrame:
        return self.rows.where("duplicate_of IS NOT NULL")


def deduplicate(
    rows: DataFrame,
    window_ms: int | None = None,
    *,
    by: str = BY_ID,
    arrival: Arrival | None = None,
    message_id: str = "message_id",
    key: list[str] | None = None,
    body: str = "body",
    groups: int = GROUPS_DEFAULT,
) -> Deduplicated:
    """Return rows with the row that each one repeats; without a window, at any distance in time.

    `by` is "id", "id-and-key" or "content". `key` names the columns that give the key, the first
    one that is set: session_id, partition_key. A row without an id is rejected. `groups` is the
    number of groups that the work and a stream's state are divided into; a checkpoint fixes it.
    """
    arrival = arrival or Arrival()
    if window_ms is not None and window_ms < 1:
        raise InvalidArgument(f"window_ms is {window_ms}: use at least 1")
    check_free(rows.schema, ["duplicate_of", _SCOPE])
    identity, scope = _columns(rows.schema, by, message_id, key, body)
    work = _Deduplication(window_ms or FOREVER_MS, identity)
    work.schema = added(rows.schema, duplicate_of=LongType())
    group = partition_column(rows.schema, sf.col(quoted(identity)), groups, arrival)
    ready = rows if scope is None else rows.withColumn(_SCOPE, scope)
    return Deduplicated(run(ready, work, group, groups, arrival))


def _columns(
    schema: StructType, by: str, message_id: str, key: list[str] | None, body: str
) -> tuple[str, Column | None]:
    """Return the column that makes rows the same, and inside what."""
    if by == BY_CONTENT:
        kind_of(schema, body, (BinaryType, StringType), "the content")
        return body, None
    if by not in (BY_ID, BY_ID_AND_KEY):
        raise InvalidArgument(f"by is {by!r}: use {BY_ID}, {BY_ID_AND_KEY} or {BY_CONTENT}")
    kind_of(schema, message_id, (StringType,), "the id")
    if by == BY_ID:
        return message_id, None
    identity = sf.col(quoted(message_id))
    scope = key_column(schema, key or ["session_id", "partition_key"])
    # A message without a key has its id as key (D3).
    return message_id, identity if scope is None else sf.coalesce(scope, identity)


class _Deduplication(Operator):
    """The first of every identity inside a window."""

    def __init__(self, window_ms: int, identity: str) -> None:
        self._window_ms = window_ms
        self._identity = identity

    def open(self, group: int, chunks: Chunks, secret: bytes | None) -> Keeper:
        timeline = Timeline(Numbering(0, False), chunks, self._window_ms)
        return _Keeper(timeline, self._identity, secret)


class _Keeper:
    """What one group remembers."""

    def __init__(self, timeline: Timeline, identity: str, secret: bytes | None) -> None:
        self._timeline = timeline
        self.states = (timeline,)
        self._identity = identity
        self._secret = secret

    def take(self, rows: pa.Table, times: Numbers, until: int) -> pa.Table:
        ids = rows.column(self._identity).combine_chunks()
        if ids.null_count:
            row = rows.filter(pc.is_null(ids))
            raise InvalidArgument(f"a row has no {self._identity}: {name_of(row, 0)}")
        bare, scope = carried(rows), None
        if _SCOPE in bare.column_names:
            bare, scope = bare.drop_columns([_SCOPE]), bare.column(_SCOPE).combine_chunks()
        if self._secret is None:
            words, owners = coded(ids, scope)
        else:
            words, owners = hashed(ids, scope, self._secret), np.arange(len(times))
        arrivals = Arrivals(bare, times, words, owners, labels=orders_of(rows))
        passed = self._timeline.take(arrivals)
        repeats = pa.array(passed.repeats, mask=~passed.dropped)
        return bare.append_column("duplicate_of", repeats)
