"""The tables of a lake as Spark sees them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from onibus.core.errors import InvalidOperation
from onibus.spark.lake import ERRORS, MESSAGES, OUTCOMES, Lake
from onibus.spark.lake_reaching import address_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def open_lake(spark: SparkSession, lake: str, entity: str) -> LakeTables:
    """Return the tables of an entity's lake, or raise if it has none.

    A subscription has its own outcomes; its messages are those of its topic.
    """
    for name in (entity, log_of(entity)):
        if Lake(lake, name).about() is None:
            raise InvalidOperation(
                f"{address_of(lake)!r} has no rows of {name!r}: capture it first"
            )
    return LakeTables(spark, Lake(lake, log_of(entity)), Lake(lake, entity))


def log_of(entity: str) -> str:
    """Return whose log has an entity's messages: its own, or that of a subscription's topic."""
    at = entity.lower().find("/subscriptions/")
    return entity if at < 0 else entity[:at]


class LakeTables:
    """The tables of a lake as Spark sees them."""

    def __init__(self, spark: SparkSession, lake: Lake, ends: Lake) -> None:
        rows = _read(spark, lake, MESSAGES, _MESSAGE_COLUMNS)
        if lake.sets_aside():
            rows = rows.unionByName(_read(spark, lake, ERRORS, _MESSAGE_COLUMNS))
        # Every question reads all rows: these few columns are kept, where they fit.
        #: every row of the log
        self.rows = rows.persist()
        self.outcomes = _read(spark, ends, OUTCOMES, _OUTCOME_COLUMNS).persist()
        self.has_outcomes = bool(ends.files(OUTCOMES))

    @cached_property
    def covered(self) -> dict[int, tuple[int, int]]:
        """The first and the last number of each partition that has any."""
        from pyspark.sql import functions as F  # noqa: N812

        grouped = self.rows.groupBy("partition").agg(
            F.min("sequence_number").alias("first"), F.max("sequence_number").alias("last")
        )
        rows = grouped.orderBy("partition").collect()
        return {row.partition: (row.first, row.last) for row in rows}

    @cached_property
    def outcomes_until(self) -> dict[int, int]:
        """The last outcome's number of each partition that has any."""
        from pyspark.sql import functions as F  # noqa: N812

        grouped = self.outcomes.groupBy("partition").agg(F.max("number").alias("last"))
        return {row.partition: row.last for row in grouped.collect()}

    def close(self) -> None:
        """Forget what was kept."""
        self.rows.unpersist()
        self.outcomes.unpersist()


_MESSAGE_COLUMNS = (
    "sequence_number long, partition int, enqueued_time timestamp, kind string, "
    "message_id string, session_id string, partition_key string, scheduled_enqueue_time timestamp"
)
_OUTCOME_COLUMNS = (
    "number long, partition int, sequence_number long, outcome string, time timestamp, "
    "reason string"
)


def _read(spark: SparkSession, lake: Lake, table: str, columns: str) -> DataFrame:
    """Return the wanted columns of a table; without rows where it has no file."""
    paths = lake.paths(table)
    if not paths:
        return spark.createDataFrame([], columns)
    return spark.read.schema(columns).parquet(*paths)
