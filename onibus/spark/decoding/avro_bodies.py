"""Avro bodies: one value of a schema, as plain binary or in the single-object encoding.

The schema is one of Avro, in JSON. Records are structs, enums strings, [null, X] is X, and other
unions are strings with the JSON of their value. decimal, date, timestamp-millis, timestamp-micros
and uuid have their meaning; other logical types have that of their base type. A value that is not a
record is the field `value`.

A schema that refers to itself has no columns, and one whose arrays have items of no bytes lets a
short body demand any amount of memory: both are rejected.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from onibus.core.errors import InvalidArgument
from onibus.extras import explained
from onibus.spark.decoding.fields import DEPTH_MAX, struct_of
from onibus.spark.decoding.values import (
    UNREADABLE,
    Decoded,
    Problems,
    fitted,
    json_text,
    reader_of,
)

#: How a body in the single-object encoding begins; the fingerprint of its schema follows.
_MARK = b"\xc3\x01"
_PLAIN = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(), "enum": pa.string(),
    "fixed": pa.binary(),
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLIS, _MICROS = "timestamp-millis", "timestamp-micros"
#: Returns a value of Avro as a column takes it.
Convert = Callable[[Any], Any]


class AvroBodies:
    """Decodes values of one Avro schema."""

    def __init__(self, schema: str) -> None:
        with explained():
            import fastavro
            from fastavro.schema import SchemaParseException, UnknownType
        try:
            told = json.loads(schema)
            plain = fastavro.parse_schema(without_logical_types(told))
            parsed = fastavro.parse_schema(told)
            self._fingerprint = _fingerprint(told)
        except (SchemaParseException, UnknownType, *UNREADABLE) as error:
            raise InvalidArgument(f"not an Avro schema: {str(error)[:300]}") from None
        self._plain = plain
        self._read_value = fastavro.schemaless_reader
        kind, self._convert = _Shape().of(parsed, 0)
        self._wrapped = not pa.types.is_struct(kind)
        self.kind = struct_of([("value", kind)]) if self._wrapped else kind
        self._read = reader_of(self.kind)

    def __call__(self, rows: pa.Table) -> Decoded:
        problems, values = Problems(), []
        for at, body in enumerate(rows.column("body").to_pylist()):
            problems.begin(at)
            values.append(None if body is None else self._one(body, problems))
        return fitted(values, self.kind, self._read, problems)

    def _one(self, body: bytes, problems: Problems) -> Any:
        start = 0
        if body.startswith(_MARK):
            if body[2:10] != self._fingerprint:
                return problems.null(None, "is of another Avro schema")
            start = 10
        stream = io.BytesIO(body)
        stream.seek(start)
        try:
            value = self._convert(self._read_value(stream, self._plain, None))
        except UNREADABLE as error:
            return problems.null(None, f"is not Avro of this schema: {str(error)[:200]}")
        if stream.tell() != len(body):
            left = len(body) - stream.tell()
            return problems.null(None, f"has {left} bytes after the value of this schema")
        return {"value": value} if self._wrapped else value


def _fingerprint(schema: Any) -> bytes:
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    canonical = to_parsing_canonical_form(schema)
    return bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))


def without_logical_types(schema: Any) -> Any:
    """Return a schema whose values are read as they are stored."""
    if isinstance(schema, list):
        return [without_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: without_logical_types(one) if name in ("type", "items", "values", "fields") else one
        for name, one in schema.items()
        if name != "logicalType"
    }


class _Shape:
    """Finds the Arrow types of a parsed schema, and how values are converted to them."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: set[str] = set()

    def of(self, schema: Any, depth: int) -> tuple[pa.DataType, Convert]:
        if depth > DEPTH_MAX:
            raise InvalidArgument(f"the Avro schema is nested more than {DEPTH_MAX} deep")
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            if schema == "null":
                return pa.string(), _same
            if schema in _PLAIN:
                return _PLAIN[schema], _same
            if schema in self._open:
                raise InvalidArgument(
                    f"the Avro schema {schema!r} refers to itself: it has no columns"
                )
            return self.of(self._named[schema], depth)
        word = schema["type"]
        if not isinstance(word, str) or word not in ("record", "error", "array", "map"):
            return self._plain_type(schema, word, depth)
        if word == "array":
            if self._is_empty(schema["items"]):
                raise InvalidArgument("the Avro schema has arrays whose items have no bytes")
            kind, convert = self.of(schema["items"], depth + 1)
            return pa.list_(kind), lambda value: [convert(one) for one in value]
        if word == "map":
            kind, convert = self.of(schema["values"], depth + 1)
            return pa.map_(pa.string(), kind), lambda value: {
                name: convert(one) for name, one in value.items()
            }
        return self._record(schema, depth)

    def _record(self, schema: Any, depth: int) -> tuple[pa.DataType, Convert]:
        name = schema["name"]
        self._named[name] = schema
        self._open.add(name)
        fields = {one["name"]: self.of(one["type"], depth + 1) for one in schema["fields"]}
        self._open.discard(name)
        if not fields:
            raise InvalidArgument(f"the Avro record {name!r} has no fields")
        converts = {one: convert for one, (_, convert) in fields.items()}
        kind = struct_of((one, kind) for one, (kind, _) in fields.items())
        return kind, lambda value: {one: convert(value[one]) for one, convert in converts.items()}

    def _plain_type(self, schema: Any, word: Any, depth: int) -> tuple[pa.DataType, Convert]:
        if "name" in schema:
            self._named[schema["name"]] = schema
        logical = schema.get("logicalType")
        if logical == "decimal" and word in ("bytes", "fixed"):
            return _decimal(schema)
        if logical == "date" and word == "int":
            return pa.date32(), _date
        if logical in (_MILLIS, _MICROS) and word == "long":
            factor = 1_000 if logical == _MILLIS else 1
            return pa.timestamp("us", "UTC"), lambda value: _moment(value * factor)
        return self.of(word, depth + 1) if word not in _PLAIN else (_PLAIN[word], _same)

    def _union(self, branches: list[Any], depth: int) -> tuple[pa.DataType, Convert]:
        others = [one for one in branches if one != "null"]
        shapes = [self.of(one, depth + 1) for one in others]
        if len(shapes) != 1:
            return pa.string(), lambda value: None if value is None else _any_text(value)
        kind, convert = shapes[0]
        return kind, lambda value: None if value is None else convert(value)

    def _is_empty(self, schema: Any) -> bool:
        """Return whether values take no bytes."""
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if not isinstance(schema, dict):
            return bool(schema == "null")
        if schema["type"] in ("record", "error"):
            return all(self._is_empty(one["type"]) for one in schema["fields"])
        if schema["type"] == "fixed":
            return not schema["size"]
        return bool(schema["type"] == "null")


def _same(value: Any) -> Any:
    return value


def _any_text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def _decimal(schema: Any) -> tuple[pa.DataType, Convert]:
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 0 <= scale <= precision <= 38 or not precision:
        raise InvalidArgument(
            f"the Avro schema has a decimal of {precision} digits, {scale} of them after the "
            "point: use at most 38"
        )

    def convert(value: bytes) -> Decimal:
        return Decimal(int.from_bytes(value[:64], "big", signed=True)).scaleb(-scale)

    return pa.decimal128(precision, scale), convert


def _date(value: int) -> Any:
    try:
        return _EPOCH.date() + timedelta(days=value)
    except OverflowError:
        # A number is not a date: the column rejects it.
        return str(value)


def _moment(value: int) -> Any:
    try:
        return _EPOCH + timedelta(microseconds=value)
    except OverflowError:
        return str(value)
