"""What a DataFrame is given before it is written: MessageIds, and the order of partitions.

rows = with_message_ids(rows, "order_number")
rows = by_partition(rows, connection=…, entity="orders")
rows.write.format("onibus").option(…).mode("append").save()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onibus.core.errors import EntityNotFound, InvalidArgument
from onibus.core.limits import PARTITION_COUNT
from onibus.spark.options import write_options
from onibus.spark.writing_rows import SENDABLE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PARTITION = "__onibus_partition"


def with_message_ids(rows: DataFrame, *columns: str) -> DataFrame:
    """Return rows that have a MessageId where they had none: the same for the same row, always.

    It is the SHA-256 of the named columns, or of everything that is sent. So a job that is done
    again sends the same ids, and a queue that detects duplicates takes each row once. Rows that
    are equal in these columns are one message: name columns that tell them apart.
    """
    from pyspark.sql import functions as sql

    named = columns or tuple(
        name for name in rows.columns if name in SENDABLE and name != "message_id"
    )
    missing = [name for name in named if name not in rows.columns]
    if missing or not named:
        raise InvalidArgument(f"no columns {', '.join(missing)} for MessageIds")
    content = sql.to_json(sql.struct(*named), {"ignoreNullFields": "false"})
    made = sql.sha2(content, 256)
    own = sql.col("message_id") if "message_id" in rows.columns else sql.lit(None)
    return rows.withColumn("message_id", sql.coalesce(own, made))


def by_partition(
    rows: DataFrame,
    target: Mapping[str, str] | None = None,
    *,
    order_by: Sequence[str] = (),
    partitions: int | None = None,
    by_message_id: bool | None = None,
) -> DataFrame:
    """Return rows shuffled so that each task has those of one partition of their entity (P3, P4).

    Then what a task stages goes to one place, and rows of one key stay in order: those of
    `order_by` where it is given (not in a stream, which cannot be sorted). `target` are the options
    of the write: its entity is asked how many partitions it has and whether MessageIds are keys. A
    program without the right to ask says `partitions` and `by_message_id` itself.
    """
    if partitions is None or by_message_id is None:
        if target is None:
            raise InvalidArgument("pass the options of the write, or partitions and by_message_id")
        partitions, by_message_id = shape_of(target)
    if partitions == 1:
        # Any task may stage for it; sorted rows are numbered in the order of tasks.
        return rows.orderBy(*order_by) if order_by else rows
    placed = rows.withColumn(_PARTITION, partition_column(rows, partitions, by_message_id))
    shuffled = placed.repartitionById(partitions, _PARTITION).drop(_PARTITION)
    return shuffled.sortWithinPartitions(*order_by) if order_by else shuffled


def partition_column(rows: DataFrame, partitions: int, by_message_id: bool) -> Column:
    """Return in which partition the bus will store each row: CRC-32 of its key, modulo the count.

    Rows without a key, which any partition takes, are spread by their content.
    """
    from pyspark.sql import functions as sql

    names = ["session_id", "partition_key", *(["message_id"] if by_message_id else []), "body"]
    keys = [sql.col(name).cast("binary") for name in names if name in rows.columns]
    return sql.pmod(sql.crc32(sql.coalesce(*keys)), sql.lit(partitions)).cast("int")


def shape_of(target: Mapping[str, str]) -> tuple[int, bool]:
    """Ask how many partitions an entity has, and whether MessageIds are keys there."""
    options = write_options(target)
    settings: Any
    with options.client() as client:
        try:
            settings = client.queue(options.entity).settings
        except EntityNotFound:
            settings = client.topic(options.entity).settings
    count = PARTITION_COUNT if settings.enable_partitioning else 1
    return count, settings.requires_duplicate_detection
