"""Spark rows as rows for the server: accepted columns, and their conversion.

The columns are those that a read returns (schema.py). Columns that a sender sets are sent; `body`
may be text, `properties` JSON text or a map. Columns that only the bus sets are ignored, so that
rows that were read can be written again, as new messages. Other columns are rejected before any row
is processed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from onibus.api.messages import rich_values
from onibus.core.errors import InvalidArgument
from onibus.core.message import encode_properties
from onibus.spark.schema import CLAIMED, LOG, PRESENT, SENT, SERVER_NAMES

#: Columns that the bus gives: a message that is written gets its own.
GIVEN = (LOG.keys() | PRESENT.keys() | CLAIMED.keys()) - SENT.keys() | {
    *("enqueued_sequence_number", "hop_count")
}
#: Columns that are sent.
SENDABLE = [name for name in SENT if name not in GIVEN]

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_VALUES = (StringType, BooleanType, *_WHOLE, FloatType, DoubleType, BinaryType, TimestampType)
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "time_to_live_ms": _WHOLE,
    "scheduled_enqueue_time": (TimestampType,),
    "properties": (StringType, MapType),
    "body": (BinaryType, StringType),
}


def check_columns(schema: StructType) -> None:
    """Refuse columns that no message has, have another type, or are missing."""
    for field in schema.fields:
        if field.name in GIVEN:
            continue
        if field.name not in SENDABLE:
            near = difflib.get_close_matches(field.name, SENDABLE, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InvalidArgument(
                f"unknown column {field.name!r}: {hint}known columns are "
                f"{', '.join(SENDABLE)}; drop the others, or move them to body or properties"
            )
        wanted = _TYPES.get(field.name, (StringType,))
        if not isinstance(field.dataType, wanted):
            names = " or ".join(kind.typeName() for kind in wanted)
            raise InvalidArgument(
                f"column {field.name} is {field.dataType.simpleString()}: use {names}"
            )
        if isinstance(field.dataType, MapType):
            _check_map(field.dataType)
    if "body" not in schema.names:
        raise InvalidArgument("rows have no column body: add one, even if empty")
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        raise InvalidArgument(f"column {twice.pop()} is repeated: rename one")


def _check_map(kind: MapType) -> None:
    if not isinstance(kind.keyType, StringType) or not isinstance(kind.valueType, _VALUES):
        raise InvalidArgument(
            f"column properties is {kind.simpleString()}: use string names, and values that are "
            "strings, numbers, booleans, binary or timestamps"
        )


def sent_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns that are sent, as the server wants them; errors name the row."""
    names, arrays = [], []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if name == "kind":
            _refuse_markers(array)
        if name not in SENDABLE:
            continue
        convert = _CONVERSIONS.get(name)
        names.append(SERVER_NAMES.get(name, name))
        arrays.append(array if convert is None else convert(array))
    return pa.RecordBatch.from_arrays(arrays, names)


class BadRow(InvalidArgument):
    """A row that cannot be written; `at` is its position in the batch."""

    code = "bad-row"

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


def _refuse_markers(kinds: pa.Array) -> None:
    """Reject rows of the log that are not messages: they would be sent twice."""
    wrong = pc.fill_null(pc.not_equal(kinds, "message"), False)
    at = pc.index(wrong, True).as_py()
    if at != -1:
        raise BadRow(
            f"its kind is {kinds[at].as_py()!r}: write only log rows with kind = 'message'",
            at,
        )


def _body(array: pa.Array) -> pa.Array:
    if array.null_count:
        raise BadRow("body is null: use an empty one", _first_null(array))
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())


def _first_null(array: pa.Array) -> int:
    at: int = pc.index(array.is_null(), True).as_py()
    return at


def _due(array: pa.Array) -> pa.Array:
    """Return times as milliseconds, rounded up."""
    micros = array.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return pc.divide(pc.add(micros, 999), 1000)


def _properties(array: pa.Array) -> pa.Array:
    if array.null_count == len(array):
        return pa.nulls(len(array), pa.binary())
    pack = _pack_map if pa.types.is_map(array.type) else _pack_json
    packed: list[bytes | None] = []
    known: dict[Any, bytes | None] = {None: None}
    for at, given in enumerate(array.to_pylist()):
        key = tuple(given) if isinstance(given, list) else given
        if key not in known:
            if len(known) > 10_000:
                known = {None: None}
            try:
                known[key] = pack(key)
            except (ValueError, TypeError, RecursionError, InvalidArgument) as error:
                raise BadRow(f"properties: {error}", at) from None
        packed.append(known[key])
    return pa.array(packed, pa.binary())


def _pack_map(pairs: Any) -> bytes | None:
    return encode_properties(dict(pairs)) if pairs else None


def _pack_json(text: Any) -> bytes | None:
    values = msgspec.json.decode(text, type=dict[str, Any])
    return encode_properties(rich_values(values)) if values else None


_CONVERSIONS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "body": _body,
    "properties": _properties,
    "scheduled_enqueue_time": _due,
}
