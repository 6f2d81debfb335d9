"""Columns and statistics as Delta's log has them, made from those of Arrow and Parquet.

A table's columns change by one rule: columns may be added, which are null in earlier files, and no
column changes its type or goes away. Files may lack columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from onibus.core.errors import InvalidOperation

_PLAIN = (
    (kinds.is_string, "string"),
    (kinds.is_large_string, "string"),
    (kinds.is_binary, "binary"),
    (kinds.is_large_binary, "binary"),
    (kinds.is_int64, "long"),
    (kinds.is_int32, "integer"),
    (kinds.is_int16, "short"),
    (kinds.is_int8, "byte"),
    (kinds.is_boolean, "boolean"),
    (kinds.is_float64, "double"),
    (kinds.is_float32, "float"),
    (kinds.is_date32, "date"),
)


def schema_string(schema: pa.Schema) -> str:
    """Return the columns of a file as Delta writes them."""
    return json.dumps(_struct(schema))


def _struct(fields: pa.Schema | pa.StructType) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": one.name, "type": _kind(one.name, one.type), "nullable": True, "metadata": {}}
            for one in fields
        ],
    }


def _kind(name: str, kind: pa.DataType) -> Any:
    for is_kind, word in _PLAIN:
        if is_kind(kind):
            return word
    if kinds.is_timestamp(kind) and kind.tz is not None:
        return "timestamp"
    if kinds.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if kinds.is_struct(kind):
        return _struct(kind)
    if kinds.is_map(kind):
        return {
            "type": "map",
            "keyType": _kind(name, kind.key_type),
            "valueType": _kind(name, kind.item_type),
            "valueContainsNull": True,
        }
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return {
            "type": "array",
            "elementType": _kind(name, kind.value_type),
            "containsNull": True,
        }
    raise InvalidOperation(
        f"column {name!r} has the type {kind}, which a lake cannot have: use another body schema"
    )


def evolved(schema: str, other: str, address: str) -> str:
    """Return the columns of a table that gets a file with other columns; raise if they differ."""
    if not schema or schema == other:
        return other
    table = json.loads(schema)
    known = {one["name"]: one["type"] for one in table["fields"]}
    for field in json.loads(other)["fields"]:
        name, kind = field["name"], field["type"]
        if name not in known:
            table["fields"].append(field)
        elif known[name] != kind:
            raise InvalidOperation(
                f"column {name!r} of {address} is {_words(known[name])}, not {_words(kind)}: "
                "nothing was captured. Use the same --body as before, or another lake"
            )
    return json.dumps(table)


def _words(kind: Any) -> str:
    if not isinstance(kind, dict):
        return str(kind)
    if kind["type"] == "struct":
        fields = ", ".join(f"{one['name']} {_words(one['type'])}" for one in kind["fields"])
        return f"struct<{fields}>"
    return str(kind["type"])


def statistics(content: pq.FileMetaData) -> str:
    """Return how many rows a file has, and the least and greatest of its numbers and times."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for group in map(content.row_group, range(content.num_row_groups)):
        for column in map(group.column, range(content.num_columns)):
            name, told = column.path_in_schema, column.statistics
            if told is None or not told.has_null_count or "." in name:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + told.null_count
            if told.null_count == group.num_rows:
                continue
            low: Any = told.min if told.has_min_max else None
            high: Any = told.max if told.has_min_max else None
            if isinstance(low, bool) or not isinstance(low, int | datetime):
                unknown.add(name)
                continue
            least[name] = min(least.get(name, low), low)
            greatest[name] = max(greatest.get(name, high), high)
    for name in unknown:
        for known in (least, greatest, nulls):
            known.pop(name, None)
    return json.dumps(
        {
            "numRecords": content.num_rows,
            "minValues": {name: _value(value) for name, value in least.items()},
            "maxValues": {name: _value(value) for name, value in greatest.items()},
            "nullCount": nulls,
        }
    )


def is_schema(schema: str) -> bool:
    """Return whether a string describes columns."""
    try:
        return isinstance(json.loads(schema)["fields"], list)
    except (ValueError, KeyError, TypeError):
        return False


def rows_of(stats: str) -> int:
    """Return how many rows a file's statistics say; -1 if they say nothing."""
    return int(_decoded(stats).get("numRecords", -1))


def differ(stats: str, content: pq.FileMetaData, needed: Sequence[str]) -> bool:
    """Return whether statistics contradict those of a file, or lack a needed column."""
    told, found = _decoded(stats), _decoded(statistics(content))
    if told.get("numRecords") != found["numRecords"]:
        return True
    for kind in ("minValues", "maxValues", "nullCount"):
        values = told.get(kind, {})
        if any(values.get(name, value) != value for name, value in found[kind].items()):
            return True
        if any(name in found[kind] and name not in values for name in needed):
            return True
    return False


def _decoded(stats: str | None) -> dict[str, Any]:
    try:
        told = json.loads(stats or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def latest_ms(stats: str | None, column: str) -> int | None:
    """Return the greatest time of a column, in milliseconds, from a file's statistics."""
    try:
        told = _decoded(stats)["maxValues"][column]
        return int(datetime.fromisoformat(told).timestamp() * 1_000)
    except (KeyError, TypeError, ValueError):
        return None


def _value(value: int | datetime) -> int | str:
    if isinstance(value, int):
        return value
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
