"""The columns of rows in Spark, and how they come out of the rows that the server gives.

Names are those of the log (core/log_batch.py) and of messages (core/arrow_block.py), except that
points in time are timestamps here and have no `_ms` at their end:

    enqueued_time, expires_at, scheduled_enqueue_time, and the `time` of an outcome

`properties` are JSON text, as the HTTP API has them: {"binary": base64} and {"time": ISO 8601}
stand for what JSON has no word for. A row that is written has the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from onibus.core.errors import InvalidArgument
from onibus.core.message import decode_properties
from onibus.protocols.http.schema import plain_values

if TYPE_CHECKING:
    from onibus.spark.options import ReadOptions

_TIME = pa.timestamp("us", tz="UTC")

#: Columns of a message as its sender gives them; these can be written too.
SENT: dict[str, DataType] = {
    "message_id": StringType(),
    "session_id": StringType(),
    "partition_key": StringType(),
    "subject": StringType(),
    "correlation_id": StringType(),
    "content_type": StringType(),
    "to": StringType(),
    "reply_to": StringType(),
    "reply_to_session_id": StringType(),
    "time_to_live_ms": LongType(),
    "scheduled_enqueue_time": TimestampType(),
    "format": StringType(),
    "enqueued_sequence_number": LongType(),
    "hop_count": LongType(),
    "properties": StringType(),
    "body": BinaryType(),
}
#: Columns of a row's place, which the broker gives.
PLACE: dict[str, DataType] = {
    "sequence_number": LongType(),
    "partition": IntegerType(),
    "enqueued_time": TimestampType(),
}
#: Rows of the log (R3).
LOG: dict[str, DataType] = {**PLACE, "expires_at": TimestampType(), "kind": StringType(), **SENT}
#: What became of messages (R4).
OUTCOMES: dict[str, DataType] = {
    "number": LongType(),
    "partition": IntegerType(),
    "sequence_number": LongType(),
    "outcome": StringType(),
    "time": TimestampType(),
    "reason": StringType(),
    "description": StringType(),
}
#: Messages that were claimed (R5).
CLAIMED: dict[str, DataType] = {**PLACE, "delivery_count": LongType(), **SENT}

#: Columns that the server calls otherwise.
SERVER_NAMES = {
    "enqueued_time": "enqueued_time_ms",
    "expires_at": "expires_at_ms",
    "scheduled_enqueue_time": "scheduled_enqueue_time_ms",
    "time": "time_ms",
}


def spark_schema(columns: dict[str, DataType]) -> StructType:
    """Return columns as Spark has them. All may be null, as in tables that are read from files."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def chosen(columns: dict[str, DataType], names: Sequence[str] | None) -> dict[str, DataType]:
    """Return the named columns, in that order; all where none are named."""
    if names is None:
        return columns
    for name in names:
        if name not in columns or names.count(name) > 1:
            raise InvalidArgument(
                f"option columns: {name!r} is not there, or there twice; "
                f"columns are {', '.join(columns)}"
            )
    return {name: columns[name] for name in names}


def columns_of(options: ReadOptions) -> dict[str, DataType]:
    """Return the columns that a read gives, with their types."""
    if options.table == "outcomes":
        return chosen(OUTCOMES, options.columns)
    return chosen(CLAIMED if options.mode == "queue" else LOG, options.columns)


def server_columns(columns: Sequence[str]) -> list[str]:
    """Return what the server is asked for."""
    return [SERVER_NAMES.get(name, name) for name in columns]


class Converter:
    """Makes batches for Spark out of batches of the server."""

    def __init__(self, columns: dict[str, DataType]) -> None:
        self._columns = columns
        self._schema = to_arrow_schema(spark_schema(columns), timezone="UTC")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for name in self._columns:
            array = batch.column(SERVER_NAMES.get(name, name))
            convert = _CONVERSIONS.get(name)
            arrays.append(array if convert is None else convert(array))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _time(array: pa.Array) -> pa.Array:
    return array.cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)


def _json(array: pa.Array) -> pa.Array:
    """Return properties as JSON text."""
    if array.null_count == len(array):
        return pa.nulls(len(array), pa.string())
    encode = msgspec.json.Encoder().encode
    told = [
        None if packed is None else encode(plain_values(decode_properties(packed))).decode()
        for packed in array.to_pylist()
    ]
    return pa.array(told, pa.string())


_CONVERSIONS: dict[str, Callable[[pa.Array], pa.Array]] = {
    **dict.fromkeys(SERVER_NAMES, _time),
    "properties": _json,
}
