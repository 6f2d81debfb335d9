"""Columns of Iceberg tables, made from those of Delta tables."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import TYPE_CHECKING, Any

from onibus.extras import explained

with explained():
    from pyiceberg.schema import Schema
    from pyiceberg.types import (
        BinaryType,
        BooleanType,
        DateType,
        DecimalType,
        DoubleType,
        FloatType,
        IntegerType,
        ListType,
        LongType,
        MapType,
        NestedField,
        StringType,
        StructType,
        TimestamptzType,
    )

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

_PLAIN: dict[str, IcebergType] = {
    "string": StringType(), "binary": BinaryType(), "long": LongType(), "integer": IntegerType(),
    # Iceberg has no smaller integers.
    "short": IntegerType(), "byte": IntegerType(),
    "boolean": BooleanType(), "double": DoubleType(), "float": FloatType(), "date": DateType(),
    "timestamp": TimestamptzType(),
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def iceberg_schema(schema: str) -> Schema:
    """Return the columns of a table, given as Delta writes them."""
    numbers = count(1)
    return Schema(*_fields(json.loads(schema), numbers))


def _fields(struct: dict[str, Any], numbers: count[int]) -> list[NestedField]:
    return [
        NestedField(next(numbers), one["name"], _type(one["type"], numbers), required=False)
        for one in struct["fields"]
    ]


def _type(kind: Any, numbers: count[int]) -> IcebergType:
    if isinstance(kind, str):
        if decimal := _DECIMAL.fullmatch(kind):
            return DecimalType(int(decimal[1]), int(decimal[2]))
        return _PLAIN[kind]
    if kind["type"] == "struct":
        return StructType(*_fields(kind, numbers))
    if kind["type"] == "map":
        return MapType(
            key_id=next(numbers),
            key_type=_type(kind["keyType"], numbers),
            value_id=next(numbers),
            value_type=_type(kind["valueType"], numbers),
            value_required=False,
        )
    element, number = kind["elementType"], next(numbers)
    return ListType(number, _type(element, numbers), element_required=False)


def plain(kind: Schema | IcebergType) -> Any:
    """Return columns, or the type of one, without the numbers that a table gives its fields."""
    if isinstance(kind, Schema | StructType):
        return {one.name: plain(one.field_type) for one in kind.fields}
    if isinstance(kind, ListType):
        return ["list", plain(kind.element_type)]
    if isinstance(kind, MapType):
        return ["map", plain(kind.key_type), plain(kind.value_type)]
    return str(kind)


def fits(found: Any, wanted: Any) -> bool:
    """Return whether columns, as `plain` returns them, are those of a table or some of them."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return all(name in wanted and fits(kind, wanted[name]) for name, kind in found.items())
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(fits, found, wanted))
    return bool(found == wanted)
