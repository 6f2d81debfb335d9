"""When rows came: the columns that stand for the clock of the broker, and what is checked first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    ShortType,
    TimestampType,
)

from onibus.core.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: What operators add to rows while they work on them.
ARRIVAL, ORDER, GROUP = "_onibus_arrival", "_onibus_order", "_onibus_group"

WHOLE = (LongType, IntegerType, ShortType)


@dataclass(frozen=True, slots=True)
class Arrival:
    """The columns with the arrival of rows.

    `time` is a timestamp, or whole milliseconds since 1970. `order` is a whole number of at least 0
    that orders rows of the same time: an offset, a sequence number, a line number.
    """

    time: str = "arrival_time"
    order: str = "arrival_order"

    def check(self, schema: StructType) -> None:
        """Refuse rows without these columns."""
        kind_of(schema, self.time, (TimestampType, *WHOLE), "the time of arrival")
        kind_of(schema, self.order, WHOLE, "the order of arrival")

    def times(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the time of each row in milliseconds."""
        column = rows.column(self.time)
        if not pa.types.is_timestamp(column.type):
            return column.cast(pa.int64())
        # Arrow's own cast rejects microseconds.
        micros = column.cast(pa.int64()).fill_null(0).to_numpy()
        missing = column.is_null().to_numpy() if column.null_count else None
        return pa.chunked_array([pa.array(micros // 1_000, mask=missing)])

    def placed(self, rows: pa.Table) -> pa.Table:
        """Return rows with the time in milliseconds and the order as further columns."""
        orders = rows.column(self.order).cast(pa.int64())
        return rows.append_column(ARRIVAL, self.times(rows)).append_column(ORDER, orders)

    def latest(self, rows: DataFrame) -> int:
        """Return the last time of all rows. Reads them."""
        found = rows.agg(sf.max(millis(rows.schema, self.time)).alias("latest")).head()
        return 0 if found is None or found["latest"] is None else int(found["latest"])


def quoted(name: str) -> str:
    """Return a column's name so that Spark takes it as it is."""
    return "`" + name.replace("`", "``") + "`"


def millis(schema: StructType, name: str) -> Column:
    """Return a time as milliseconds since 1970."""
    column = sf.col(quoted(name))
    if isinstance(schema[name].dataType, TimestampType):
        return sf.unix_millis(column)
    return column.cast("long")


def kind_of(
    schema: StructType, name: str, kinds: tuple[type[DataType], ...], what: str
) -> DataType:
    """Return a column's type, or refuse rows that lack it or have it otherwise."""
    if name not in schema.fieldNames():
        raise InvalidArgument(
            f"no column {name!r} for {what}: columns are {', '.join(schema.fieldNames())}"
        )
    kind = schema[name].dataType
    if not isinstance(kind, kinds):
        wanted = " or ".join(one.typeName() for one in kinds)
        raise InvalidArgument(f"column {name!r} is {kind.simpleString()}: {what} must be {wanted}")
    return kind


def check_free(schema: StructType, names: Iterable[str]) -> None:
    """Refuse rows that have a column which the operator makes."""
    taken = [name for name in names if name in schema.fieldNames()]
    if taken:
        raise InvalidArgument(
            f"the rows already have {', '.join(taken)}, which this operator adds: rename them"
        )


def milliseconds(moment: datetime | int | None) -> int | None:
    """Return a moment in milliseconds since 1970; a datetime without a zone is UTC."""
    if not isinstance(moment, datetime):
        return moment
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
