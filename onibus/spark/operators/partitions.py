"""Assign partitions: where the broker would store each row (P3, P4).

No row leaves the JVM for this: Spark's crc32 is the function that the broker uses.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructType

from onibus.core.errors import InvalidArgument
from onibus.core.limits import PARTITION_COUNT
from onibus.spark.operators.arrivals import Arrival, check_free, kind_of, quoted

#: Their ids are below 0x8000, since clients read signed numbers (S2).
_COUNT_MAX = 0x8000


def assign_partitions(
    rows: DataFrame,
    count: int = PARTITION_COUNT,
    *,
    duplicate_detection: bool = True,
    arrival: Arrival | None = None,
    session_id: str = "session_id",
    partition_key: str = "partition_key",
    message_id: str = "message_id",
    column: str = "partition",
) -> DataFrame:
    """Return rows with the partition of each, from 0 on.

    The key is the SessionId, the PartitionKey, or with duplicate detection the MessageId, whichever
    is set first; columns that are not there count as not set. Rows without any go in turn by their
    order of arrival.
    """
    check_free(rows.schema, [column])
    keys = [session_id, partition_key, *([message_id] if duplicate_detection else [])]
    key = key_column(rows.schema, keys)
    return rows.withColumn(column, partition_column(rows.schema, key, count, arrival or Arrival()))


def key_column(schema: StructType, names: list[str]) -> Column | None:
    """Return the first of the named columns that is set; None where the rows have none of them."""
    present = [name for name in names if name in schema.fieldNames()]
    for name in present:
        kind_of(schema, name, (StringType,), "a key")
    return sf.coalesce(*[sf.col(quoted(name)) for name in present]) if present else None


def partition_column(
    schema: StructType, key: Column | None, count: int, arrival: Arrival
) -> Column:
    """Return the partition of a key; without a key, partitions in turn."""
    if not 0 < count <= _COUNT_MAX:
        raise InvalidArgument(f"count is {count}: use 1 to {_COUNT_MAX} partitions")
    arrival.check(schema)
    in_turn = sf.pmod(sf.col(quoted(arrival.order)), sf.lit(count))
    if key is None:
        return in_turn.cast("int")
    keyed = sf.pmod(sf.crc32(key.cast("binary")), sf.lit(count))
    return sf.coalesce(keyed, in_turn).cast("int")
