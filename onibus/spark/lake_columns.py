"""The columns of a lake's tables, and the rows of earlier lakes in these columns.

    messages  the log (schema.py), with properties as maps; `body` as it was sent; `decoded` if
              bodies are decoded
    errors    one row for each field, or whole body, that could not be decoded
    outcomes  the outcomes (schema.py)

In earlier lakes properties are JSON, and a decoded body is in the place of the body. Messages whose
body could not be decoded are in `errors` there, and not in `messages`.
"""

from __future__ import annotations

import json

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from onibus.api.messages import rich_values
from onibus.spark.decoding.formats import BodyFormat, json_format
from onibus.spark.delta_schema import arrow_schema
from onibus.spark.property_maps import maps_of_values

DECODED = "decoded"
ERROR_COLUMNS = pa.schema(
    {
        "sequence_number": pa.int64(),
        "partition": pa.int32(),
        "enqueued_time": pa.timestamp("us", "UTC"),
        "message_id": pa.string(),
        "field": pa.string(),
        "problem": pa.string(),
        "value": pa.string(),
    }
)
_PLACE = ERROR_COLUMNS.names[:4]
#: What an earlier version could not decode, without saying more.
_UNKNOWN = "was not decoded by an earlier version"


def columns_of(table: str) -> pa.Schema:
    """Return the columns of a table, without `decoded`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from onibus.spark.schema import LOG, OUTCOMES, spark_schema, with_property_maps

    if table == "errors":
        return ERROR_COLUMNS
    columns = OUTCOMES if table == "outcomes" else with_property_maps(LOG)
    return to_arrow_schema(spark_schema(columns), timezone="UTC")


def is_current(schema: str) -> bool:
    """Return whether a table, given its columns as Delta writes them, has those of today."""
    kinds_of = {one["name"]: one["type"] for one in json.loads(schema)["fields"]}
    return not isinstance(kinds_of.get("properties"), str)


def body_of(schema: str) -> BodyFormat | None:
    """Return how an earlier version decoded the bodies of a table of messages."""
    columns = arrow_schema(schema)
    kind = columns.field(DECODED if DECODED in columns.names else "body").type
    if kinds.is_string(kind):
        return BodyFormat(format="text")
    return json_format("json", kind) if kinds.is_struct(kind) else None


def messages_of(rows: pa.Table) -> pa.Table:
    """Return messages of an earlier lake in the columns of today."""
    encoded = rows.column("properties").to_pylist()
    told = [None if one is None else rich_values(msgspec.json.decode(one)) for one in encoded]
    values, types = maps_of_values(told)
    at = rows.column_names.index("properties")
    rows = rows.set_column(at, "properties", values).add_column(at + 1, "property_types", types)
    body = rows.column("body")
    if kinds.is_binary(body.type):
        return rows
    # Text gives the bytes that were sent; the fields of JSON do not.
    raw = body.cast(pa.binary()) if kinds.is_string(body.type) else pa.nulls(len(body), pa.binary())
    at = rows.column_names.index("body")
    return rows.set_column(at, "body", raw).append_column(DECODED, body)


def with_set_aside(rows: pa.Table, aside: pa.Table) -> pa.Table:
    """Return messages of an earlier lake with those that it has in `errors`, in order."""
    if not aside.num_rows:
        return rows
    both = pa.concat_tables([rows, messages_of(aside)], promote_options="default")
    return both.sort_by("sequence_number")


def errors_of(aside: pa.Table) -> pa.Table:
    """Return the table `errors` of an earlier lake in the columns of today."""
    missing = pa.nulls(aside.num_rows, pa.string())
    found = aside.select(_PLACE).append_column("field", missing)
    problem = pc.fill_null(missing, _UNKNOWN)
    found = found.append_column("problem", problem).append_column("value", missing)
    return found.cast(ERROR_COLUMNS)
