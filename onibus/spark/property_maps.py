"""Properties of messages as maps of strings, with a second map of their types.

    properties      {"priority": "3", "seen": "true"}
    property_types  {"priority": "long", "seen": "boolean"}

Every value comes back exactly as its sender gave it:

    string     the string itself
    long       decimal digits
    double     the shortest digits that give the same number; Infinity, -Infinity, NaN
    boolean    true or false
    binary     base64
    timestamp  ISO 8601 in UTC, such as 2026-05-01T12:30:00.250000Z
    duration   microseconds
    null       null
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from onibus.api.messages import plain_values
from onibus.core.message import decode_properties

MAP = pa.map_(pa.string(), pa.string())

_MICROSECOND = timedelta(microseconds=1)
_READ: dict[str, Callable[[str], Any]] = {
    "string": str,
    "long": int,
    "double": float,
    "boolean": lambda text: text == "true",
    "binary": b64decode,
    "timestamp": datetime.fromisoformat,
    "duration": lambda text: int(text) * _MICROSECOND,
}


def text_of(value: Any) -> tuple[str | None, str]:
    """Return a property value as a string, and its type."""
    match value:
        case str():
            return value, "string"
        case bool():
            return ("true" if value else "false"), "boolean"
        case int():
            return str(value), "long"
        case float():
            if math.isfinite(value):
                return repr(value), "double"
            return ("NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"), "double"
        case bytes():
            return b64encode(value).decode(), "binary"
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z"), "timestamp"
        case timedelta():
            return str(value // _MICROSECOND), "duration"
    return None, "null"


def value_of(text: str | None, kind: str) -> Any:
    """Return the property value that a string of a type stands for."""
    return None if text is None else _READ[kind](text)


def maps_of(packed: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return packed properties as two columns: their values, and their types."""
    told = [None if one is None else decode_properties(one) for one in packed.to_pylist()]
    return maps_of_values(told)


def maps_of_values(rows: Iterable[dict[str, Any] | None]) -> tuple[pa.Array, pa.Array]:
    """Return properties as two columns: their values, and their types."""
    offsets: list[int | None] = []
    names: list[str] = []
    values: list[str | None] = []
    kinds: list[str] = []
    for row in rows:
        offsets.append(None if row is None else len(names))
        for name, value in (row or {}).items():
            text, kind = text_of(value)
            names.append(name)
            values.append(text)
            kinds.append(kind)
    offsets.append(len(names))
    places, keys = pa.array(offsets, pa.int32()), pa.array(names, pa.string())
    texts, types = pa.array(values, pa.string()), pa.array(kinds, pa.string())
    return pa.MapArray.from_arrays(places, keys, texts), pa.MapArray.from_arrays(
        places, keys, types
    )


def json_of(values: pa.Array, types: pa.Array) -> pa.Array:
    """Return two columns of maps as JSON, as the format `onibus` writes properties."""
    encode = msgspec.json.Encoder().encode
    told = [
        None
        if row is None
        else encode(
            plain_values({name: value_of(text, kinds[name]) for name, text in row})
        ).decode()
        for row, kinds in zip(
            values.to_pylist(), (dict(one or ()) for one in types.to_pylist()), strict=True
        )
    ]
    return pa.array(told, pa.string())
