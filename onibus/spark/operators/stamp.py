"""Stamp: gapless sequence numbers and times that never run backwards (S2, S4)."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, LongType, TimestampType

from onibus.core.errors import InvalidArgument
from onibus.core.numbering import Numbering
from onibus.core.timeline.chunks import Chunks
from onibus.core.timeline.timeline import Arrivals, Timeline
from onibus.spark.operators.arrivals import Arrival, check_free, kind_of, quoted
from onibus.spark.operators.running import Keeper, Numbers, Operator, added, carried, run

_PARTITIONS_MAX = 0x8000


def stamp(
    rows: DataFrame, *, partition: str | None = "partition", arrival: Arrival | None = None
) -> DataFrame:
    """Return rows with `sequence_number` and `enqueued_time`.

    `partition` is the column with the partition of each row, whose numbers have it in their top
    16 bits; None where there is one partition only: then all rows go through one task.
    """
    arrival = arrival or Arrival()
    check_free(rows.schema, ["sequence_number", "enqueued_time"])
    group = sf.lit(0)
    if partition is not None:
        kind_of(rows.schema, partition, (IntegerType, LongType), "the partition")
        group = sf.coalesce(sf.col(quoted(partition)).cast("int"), sf.lit(-1))
    work = _Stamping(partition is not None)
    work.schema = added(rows.schema, sequence_number=LongType(), enqueued_time=TimestampType())
    return run(rows, work, group, _PARTITIONS_MAX, arrival)


class _Stamping(Operator):
    def __init__(self, partitioned: bool) -> None:
        self._partitioned = partitioned

    def open(self, group: int, chunks: Chunks, secret: bytes | None) -> Keeper:
        if not 0 <= group < _PARTITIONS_MAX:
            raise InvalidArgument(f"partition is {group}: use 0 to {_PARTITIONS_MAX - 1}")
        return _Keeper(Timeline(Numbering(group, self._partitioned), chunks))


class _Keeper:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.states = (timeline,)

    def take(self, rows: pa.Table, times: Numbers, until: int) -> pa.Table:
        rows = carried(rows)
        passed = self._timeline.take(Arrivals(rows, times))
        rows = rows.append_column("sequence_number", pa.array(passed.numbers))
        return rows.append_column("enqueued_time", pa.array(passed.stamps))
