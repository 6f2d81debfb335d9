"""The columns of rows in Spark.

Names are those of the log (core/log_batch.py) and of messages (core/arrow_block.py), except that
points in time are timestamps here and have no `_ms` at their end:

    enqueued_time, expires_at, scheduled_enqueue_time, and the `time` of an outcome

`properties` are JSON text, as the HTTP API has them: {"binary": base64} and {"time": ISO 8601}
stand for what JSON has no word for. A row that is written has the same columns. Option
propertiesFormat=map gives them as a map of strings, with a map of types (property_maps.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from onibus.core.errors import InvalidArgument

if TYPE_CHECKING:
    from onibus.spark.options import ReadOptions

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
#: Outcomes of messages (R4).
OUTCOMES: dict[str, DataType] = {
    "number": LongType(),
    "partition": IntegerType(),
    "sequence_number": LongType(),
    "outcome": StringType(),
    "time": TimestampType(),
    "reason": StringType(),
    "description": StringType(),
}
#: Messages as they are now.
PRESENT: dict[str, DataType] = {
    **PLACE,
    "expires_at": TimestampType(),
    "state": StringType(),
    "delivery_count": LongType(),
    "dead_letter_reason": StringType(),
    "dead_letter_description": StringType(),
    **SENT,
}
#: Messages that were dead-lettered.
DEAD_LETTERED: dict[str, DataType] = {
    **PLACE,
    "expires_at": TimestampType(),
    "dead_letter_reason": StringType(),
    "dead_letter_description": StringType(),
    **SENT,
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


#: Properties as maps: their values, and the types of these.
PROPERTY_MAPS: dict[str, DataType] = {
    "properties": MapType(StringType(), StringType()),
    "property_types": MapType(StringType(), StringType()),
}


def spark_schema(columns: Mapping[str, DataType]) -> StructType:
    """Return columns as Spark has them. All may be null, as in tables that are read from files."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def known_columns(options: ReadOptions) -> dict[str, DataType]:
    """Return all columns that a read can give, bodies as they are."""
    tables = {"messages": LOG, "outcomes": OUTCOMES, "present": PRESENT}
    found = CLAIMED if options.mode == "queue" else tables.get(options.table, DEAD_LETTERED)
    if options.properties_format == "json" or "properties" not in found:
        return found
    return with_property_maps(found)


def with_property_maps(columns: Mapping[str, DataType]) -> dict[str, DataType]:
    """Return columns with properties as maps, in their place."""
    found: dict[str, DataType] = {}
    for name, kind in columns.items():
        found |= PROPERTY_MAPS if name == "properties" else {name: kind}
    return found


def schema_of(options: ReadOptions) -> str:
    """Return what a read gives, as the text from which Spark makes a schema."""
    kinds = {name: kind.simpleString() for name, kind in known_columns(options).items()}
    if "body" in kinds and options.body_format == "text":
        kinds["body"] = "string"
    elif "body" in kinds and options.body_format == "json":
        kinds["body"] = f"struct<{options.body_schema}>"
    names = tuple(kinds) if options.columns is None else options.columns
    for name in names:
        if name not in kinds or names.count(name) > 1:
            raise InvalidArgument(
                f"option columns: {name!r} is unknown or repeated; columns are {', '.join(kinds)}"
            )
    return ", ".join(f"`{name}` {kinds[name]}" for name in names)


def check_schema(options: ReadOptions, schema: StructType) -> None:
    """Refuse a schema, given by hand, that has other columns or types than there are."""
    known = known_columns(options)
    for field in schema.fields:
        wanted = known.get(field.name)
        if wanted is None:
            raise InvalidArgument(f"unknown column {field.name!r}: columns are {', '.join(known)}")
        if field.name == "body" and options.body_format != "binary":
            wanted = StringType() if options.body_format == "text" else field.dataType
        if field.dataType != wanted:
            raise InvalidArgument(
                f"column {field.name!r} is {wanted.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
