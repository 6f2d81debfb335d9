"""Rows as messages: the columns of the format `onibus`, as the core takes them."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructType

from onibus.api.messages import rich_values
from onibus.core.arrow_block import SCHEMA, conform
from onibus.core.errors import InvalidArgument, Refused
from onibus.core.message import encode_properties
from onibus.spark.operators.arrivals import WHOLE
from onibus.spark.schema import SENT, SERVER_NAMES


def check_messages(schema: StructType) -> None:
    """Refuse rows whose columns of messages are of other types."""
    for name, kind in SENT.items():
        if name not in schema.fieldNames():
            continue
        given = schema[name].dataType
        fits = type(given) is type(kind) or (isinstance(kind, WHOLE) and isinstance(given, WHOLE))
        if name == "body":
            fits = isinstance(given, (BinaryType, StringType))
        if not fits:
            raise InvalidArgument(
                f"column {name!r} is {given.simpleString()}: use {kind.simpleString()}"
            )


def messages_of(rows: pa.Table) -> tuple[pa.RecordBatch, dict[int, Refused]]:
    """Return rows by the schema of messages, and why some of them are none."""
    refused: dict[int, Refused] = {}
    columns: dict[str, pa.Array] = {}
    for name in SENT:
        if name in rows.column_names:
            column = rows.column(name).combine_chunks()
            if name == "properties":
                column = _packed(column, refused)
            elif name == "body":
                column = column.cast(pa.binary())
                for at in pc.indices_nonzero(pc.is_null(column)).to_pylist():
                    refused.setdefault(
                        at, InvalidArgument("body is null: use bytes, even if empty")
                    )
            elif pa.types.is_timestamp(column.type):
                # Fractions of a millisecond are cut off, as every sender does.
                column = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
            columns[SERVER_NAMES.get(name, name)] = column
    if not columns:
        columns["body"] = pa.nulls(rows.num_rows, SCHEMA.field("body").type)
    return conform(pa.RecordBatch.from_pydict(columns)), refused


def _packed(column: pa.Array, refused: dict[int, Refused]) -> pa.Array:
    """Return properties, which are JSON text, as the core has them."""
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.binary())
    known: dict[str, bytes] = {}
    packed: list[bytes | None] = []
    for at, text in enumerate(column.to_pylist()):
        if text is not None and text not in known:
            try:
                known[text] = encode_properties(_properties(text))
            except InvalidArgument as error:
                refused[at] = error
                text = None
        packed.append(None if text is None else known[text])
    return pa.array(packed, pa.binary())


def _properties(text: str) -> dict[str, Any]:
    try:
        return rich_values(msgspec.json.decode(text, type=dict[str, Any]))
    except (msgspec.DecodeError, RecursionError, TypeError, OverflowError) as error:
        raise InvalidArgument(f"properties must be a JSON object: {error}") from None
