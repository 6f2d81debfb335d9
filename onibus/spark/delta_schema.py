"""Columns and statistics as Delta's log has them, made from those of Arrow and Parquet.

A table's columns change by one rule: columns, and fields of structs, may be added, which are null
in earlier files. No column changes its type or goes away. Files may lack columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
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


_ARROW = {
    "string": pa.string(), "binary": pa.binary(), "long": pa.int64(), "integer": pa.int32(),
    "short": pa.int16(), "byte": pa.int8(), "boolean": pa.bool_(), "double": pa.float64(),
    "float": pa.float32(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


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
        f"column {name!r} has the type {kind}, which a lake cannot have: use another --schema"
    )


def arrow_type(kind: Any) -> pa.DataType:
    """Return the Arrow type of a type as Delta writes it."""
    if isinstance(kind, str):
        if decimal := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        return _ARROW[kind]
    if kind["type"] == "struct":
        return pa.struct([(one["name"], arrow_type(one["type"])) for one in kind["fields"]])
    if kind["type"] == "map":
        return pa.map_(arrow_type(kind["keyType"]), arrow_type(kind["valueType"]))
    return pa.list_(arrow_type(kind["elementType"]))


def arrow_schema(schema: str) -> pa.Schema:
    """Return the columns of a table as Arrow has them."""
    return pa.schema(list(arrow_type(json.loads(schema)))) if schema else pa.schema([])


def evolved(schema: str, other: str, address: str) -> str:
    """Return the columns of a table that gets a file with other columns; raise if they differ."""
    if not schema or schema == other:
        return other
    table = json.loads(schema)
    _add_fields(table, json.loads(other), "", address)
    return json.dumps(table)


def _add_fields(table: dict[str, Any], other: dict[str, Any], path: str, address: str) -> None:
    """Add the fields of another struct to those of a table, or of a struct in it."""
    known = {one["name"]: one["type"] for one in table["fields"]}
    lower = {name.lower(): name for name in known}
    for field in other["fields"]:
        name, kind = field["name"], field["type"]
        if name not in known and name.lower() in lower:
            raise InvalidOperation(
                f"column {path + name!r} differs only in case from "
                f"{path + lower[name.lower()]!r} of {address}, which tables do not allow: nothing "
                "was captured. Use the same name, or another lake"
            )
        if name not in known:
            table["fields"].append(field)
        elif _is_struct(known[name]) and _is_struct(kind):
            _add_fields(known[name], kind, f"{path}{name}.", address)
        elif known[name] != kind:
            raise InvalidOperation(
                f"column {path + name!r} of {address} is {words_of(known[name])}, not "
                f"{words_of(kind)}: nothing was captured. Use the same --body and --schema as "
                "before, or another lake"
            )


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, dict) and kind["type"] == "struct"


def words_of(kind: Any) -> str:
    """Return a type in the words of SQL."""
    if not isinstance(kind, dict):
        return str(kind)
    if kind["type"] == "struct":
        fields = ", ".join(f"{one['name']} {words_of(one['type'])}" for one in kind["fields"])
        return f"struct<{fields}>"
    if kind["type"] == "map":
        return f"map<{words_of(kind['keyType'])}, {words_of(kind['valueType'])}>"
    return f"array<{words_of(kind['elementType'])}>"


def statistics(content: pq.FileMetaData, columns: Collection[str]) -> str:
    """Return how many rows a file has, and the least and greatest values of some columns."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for group in map(content.row_group, range(content.num_row_groups)):
        for column in map(group.column, range(content.num_columns)):
            name, told = column.path_in_schema, column.statistics
            if name not in columns:
                continue
            if told is None or not told.has_null_count:
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
    told = _decoded(stats)
    kinds = ("minValues", "maxValues", "nullCount")
    named = {name for kind in kinds for name in told.get(kind, {})}
    found = _decoded(statistics(content, named | set(needed)))
    if told.get("numRecords") != found["numRecords"]:
        return True
    for kind in kinds:
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


def greatest(stats: str | None, column: str) -> Any:
    """Return the greatest value of a column from a file's statistics; None if they lack it."""
    values = _decoded(stats).get("maxValues")
    return values.get(column) if isinstance(values, dict) else None


def latest_ms(stats: str | None, column: str) -> int | None:
    """Return the greatest time of a column, in milliseconds, from a file's statistics."""
    try:
        return int(datetime.fromisoformat(greatest(stats, column)).timestamp() * 1_000)
    except (TypeError, ValueError):
        return None


def _value(value: int | datetime) -> int | str:
    if isinstance(value, int):
        return value
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
