"""Aggregates as messages: a batch writes the rows that changed, and the newest row of a key counts.

Spark writes changed aggregates (output mode update) only through foreachBatch:

    write = upsert_into(target, ["customer"], producer="totals")
    totals.writeStream.outputMode("update").foreachBatch(write) \
        .option("checkpointLocation", "state/totals").start()

A message has the key as its PartitionKey, so all rows of a key are in one partition, in order. Its
MessageId is made of the key and the batch number. `latest` returns the current row of each key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from onibus.core.errors import InvalidArgument
from onibus.core.limits import ID_LENGTH_MAX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def upsert_into(
    target: Mapping[str, str], keys: Sequence[str], *, producer: str
) -> Callable[[DataFrame, int], None]:
    """Return the function for foreachBatch that writes the changed rows of each batch, once.

    `target` are the options of the write, `keys` the columns that tell rows apart.
    """

    def write(batch: DataFrame, number: int) -> None:
        rows = upserts(batch, keys, number)
        writer = rows.write.format("onibus").options(**target, producer=producer)
        writer.option("batch", number).mode("append").save()

    return write


def upserts(rows: DataFrame, keys: Sequence[str], number: int) -> DataFrame:
    """Return rows as messages of a batch: their JSON as body, their key as PartitionKey."""
    from pyspark.sql import functions as sql

    missing = [name for name in keys if name not in rows.columns]
    if missing or not keys:
        raise InvalidArgument(f"no key columns {', '.join(missing)}: name columns of the rows")
    key = _key(keys)
    return rows.select(
        sql.sha2(sql.concat(key, sql.lit(f" {number}")), 256).alias("message_id"),
        # The hash stands for a key that is too long for a PartitionKey.
        sql.when(sql.length(key) <= ID_LENGTH_MAX, key)
        .otherwise(sql.sha2(key, 256))
        .alias("partition_key"),
        sql.to_json(sql.struct("*"), {"ignoreNullFields": "false"}).alias("body"),
    )


def latest(rows: DataFrame) -> DataFrame:
    """Return the newest message of each key, of a batch read of what `upsert_into` wrote."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    newest = Window.partitionBy("partition_key").orderBy(sql.desc("sequence_number"))
    placed = rows.withColumn("__place", sql.row_number().over(newest))
    return placed.where(sql.col("__place") == 1).drop("__place")


def _key(keys: Sequence[str]) -> Column:
    from pyspark.sql import functions as sql

    return sql.to_json(sql.struct(*keys), {"ignoreNullFields": "false"})
