"""JSON bodies: their fields as a struct, and the fields themselves inferred from a sample.

Most bodies fit, and are decoded in one step each. One that does not is read again without types and
checked field by field.

Inference has one rule. A field that has only whole numbers is a BIGINT, with other numbers a
DOUBLE, and BOOLEAN, arrays and objects are what they are. A field whose values differ in type, or
that is nested too deep or has too many fields, is a STRING with the JSON of its value. Fields
without a value, and those whose names no table can have, are left out. Names count once, whatever
their case.
"""

from __future__ import annotations

import decimal
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.types as kinds

from onibus.spark.decoding.fields import is_column_name
from onibus.spark.decoding.values import (
    UNREADABLE,
    Decoded,
    Problems,
    Unreadable,
    fitted,
    python_type,
    reader_of,
)

#: Levels of structs and arrays that are inferred, and fields of one struct.
LEVELS_MAX, FIELDS_MAX = 8, 200
#: Digits of whole numbers that are read as numbers.
DIGITS_MAX = 40
_INT64 = range(-(2**63), 2**63)

#: Called with fields that are known only now, which type checkers do not follow.
_typed_dict: Any = TypedDict


def typed_decoder(kind: pa.DataType) -> Callable[[bytes], Any]:
    """Return what decodes JSON that fits a type, and raises for any other."""
    return msgspec.json.Decoder(_typed(kind)).decode


def _typed(kind: pa.DataType) -> Any:
    if kinds.is_struct(kind):
        fields = {one.name: _typed(one.type) | None for one in kind}
        return _typed_dict("Fields", fields, total=False)
    if kinds.is_map(kind):
        return dict[str, _typed(kind.item_type) | None]  # type: ignore[misc]
    if kinds.is_list(kind):
        return list[_typed(kind.value_type) | None]  # type: ignore[misc]
    return python_type(kind)


def untyped(body: bytes, decimals: bool = False) -> Any:
    """Return any JSON; raise Unreadable if it is none. Decimals keep all digits of fractions."""
    try:
        return (_EXACT if decimals else _PLAIN)(body)
    except RecursionError:
        raise Unreadable("is nested too deep") from None
    except (msgspec.MsgspecError, ValueError) as error:
        try:
            # It takes numbers and escapes that the other rejects with the whole body.
            return _LENIENT(body.decode())
        except RecursionError:
            raise Unreadable("is nested too deep") from None
        except ValueError:
            raise Unreadable(f"is not JSON: {str(error)[:200]}") from None


_PLAIN = msgspec.json.Decoder().decode
_EXACT = msgspec.json.Decoder(float_hook=decimal.Decimal).decode


def _whole(text: str) -> int | str:
    # Longer ones take quadratic time, and fit no column.
    return int(text) if len(text) <= DIGITS_MAX else text


def _fraction(text: str) -> float | str:
    return value if math.isfinite(value := float(text)) else text


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


_LENIENT = json.JSONDecoder(
    parse_int=_whole, parse_float=_fraction, parse_constant=_no_number
).decode


class JsonBodies:
    """Decodes JSON objects."""

    def __init__(self, kind: pa.StructType) -> None:
        self.kind = kind
        self._decode = typed_decoder(kind)
        self._read = reader_of(kind)
        self._decimals = _has_decimals(kind)

    def __call__(self, rows: pa.Table) -> Decoded:
        problems = Problems()
        bodies = rows.column("body").to_pylist()
        if self._decimals:
            # Arrow takes very long over decimals with large exponents, which are checked here.
            return self._checked(bodies)
        values = []
        for at, body in enumerate(bodies):
            try:
                values.append(None if body is None else self._decode(body))
            except UNREADABLE:
                problems.begin(at)
                values.append(self.rescued(body, problems))
        # A value may have the right type in JSON, and not fit the column.
        return fitted(values, self.kind, self._read, problems)

    def _checked(self, bodies: list[bytes | None]) -> Decoded:
        problems, values = Problems(), []
        for at, body in enumerate(bodies):
            problems.begin(at)
            values.append(None if body is None else self.rescued(body, problems))
        return Decoded(pa.array(values, self.kind), problems.found)

    def rescued(self, body: bytes, problems: Problems) -> Any:
        """Return the fields that fit; the others are problems."""
        try:
            value = untyped(body, self._decimals)
        except Unreadable as error:
            return problems.null(None, str(error))
        return self._read(value, "", problems)


def _has_decimals(kind: pa.DataType) -> bool:
    if kinds.is_decimal(kind):
        return True
    return any(_has_decimals(kind.field(at).type) for at in range(kind.num_fields))


# --- inference ------------------------------------------------------------------------------------


def inferred(bodies: Iterable[bytes | None], known: pa.StructType) -> pa.StructType:
    """Return known fields, and the other fields of a sample of bodies."""
    seen = _Seen()
    for body in bodies:
        try:
            value = None if body is None else untyped(body)
        except Unreadable:
            continue
        if isinstance(value, dict):
            seen.add(value, 0)
    return _more(known, seen)


class _Seen:
    """The values that were seen in one place."""

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.fields: dict[str, _Seen] = {}
        self.items: _Seen | None = None

    def add(self, value: Any, level: int) -> None:
        word = _word(value)
        if word == "object" and level < LEVELS_MAX:
            for name, one in value.items():
                # One too many shows that these names are not fields.
                if len(self.fields) <= FIELDS_MAX or name in self.fields:
                    self.fields.setdefault(name, _Seen()).add(one, level + 1)
        elif word == "array" and level < LEVELS_MAX:
            self.items = self.items or _Seen()
            for one in value:
                self.items.add(one, level + 1)
        elif word in ("object", "array"):
            word = "string"
        if word:
            self.words.add(word)

    def kind(self) -> pa.DataType | None:
        """Return the type for these values; None without a value."""
        if not self.words:
            return None
        if self.words <= {"long", "double"}:
            return pa.float64() if "double" in self.words else pa.int64()
        if self.words == {"boolean"}:
            return pa.bool_()
        if self.words == {"array"} and self.items is not None:
            items = self.items.kind()
            return None if items is None else pa.list_(items)
        if self.words == {"object"}:
            if len(self.fields) > FIELDS_MAX:
                return pa.string()
            found = _more(pa.struct([]), self)
            return found if found.num_fields else None
        return pa.string()


def _word(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "boolean"
        case int():
            return "long" if value in _INT64 else "string"
        case float():
            return "double"
        case dict():
            return "object"
        case list():
            return "array"
    return "string"


def _more(known: pa.StructType, seen: _Seen) -> pa.StructType:
    """Return a struct with the fields that it lacks; those that it has keep their types."""
    fields = []
    for one in known:
        kind, other = one.type, seen.fields.get(one.name)
        if other is not None and other.words == {"object"} and kinds.is_struct(kind):
            kind = _more(kind, other)
        fields.append((one.name, kind))
    there = {name.lower() for name, _ in fields}
    for name, other in seen.fields.items():
        kind = other.kind()
        if kind is None or name.lower() in there or not is_column_name(name):
            continue
        if len(fields) == FIELDS_MAX:
            break
        there.add(name.lower())
        fields.append((name, kind))
    return pa.struct(fields)
