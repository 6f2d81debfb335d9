"""Bodies as text, or as the fields of a JSON object."""

from __future__ import annotations

import datetime
import decimal
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from onibus.core.errors import InvalidArgument, Refused


class BadBody(Refused):
    """A body that cannot be decoded as requested."""

    code = "bad-body"


class Bodies:
    """Decodes a column of bodies."""

    def __init__(self, kind: types.DataType, fail: bool) -> None:
        self._fail = fail
        self._arrow = to_arrow_type(kind, timezone="UTC")
        self._decode = None
        if isinstance(kind, types.StructType):
            self._decode = msgspec.json.Decoder(_python_type(kind)).decode

    def __call__(self, bodies: pa.Array, numbers: pa.Array | None) -> pa.Array:
        """Return the bodies decoded; `numbers` are those of the rows, to name a bad one."""
        try:
            return self._all(bodies)
        except (msgspec.DecodeError, pa.ArrowException, ValueError, TypeError, OverflowError):
            decoded = [self._one(bodies, at, numbers) for at in range(len(bodies))]
            return pa.concat_arrays(decoded)

    def _all(self, bodies: pa.Array) -> pa.Array:
        if self._decode is None:
            return bodies.cast(pa.string())
        decode = self._decode
        told = [None if body is None else decode(body) for body in bodies.to_pylist()]
        return pa.array(told, self._arrow)

    def _one(self, bodies: pa.Array, at: int, numbers: pa.Array | None) -> pa.Array:
        try:
            return self._all(bodies.slice(at, 1))
        except (msgspec.DecodeError, pa.ArrowException, ValueError, TypeError, OverflowError) as e:
            if not self._fail:
                return pa.nulls(1, self._arrow)
            which = "a message" if numbers is None else f"message {numbers[at].as_py()}"
            wanted = "UTF-8 text" if self._decode is None else f"JSON of {self._arrow}"
            raise BadBody(
                f"the body of {which} is not {wanted}: {e}. "
                "Set failOnBadBody=false to read such bodies as null"
            ) from None


#: Called with fields that are known only now, which type checkers do not follow.
_typed_dict: Any = TypedDict
_PLAIN: dict[type[types.DataType], Any] = {
    types.StringType: str,
    types.BooleanType: bool,
    types.ByteType: int,
    types.ShortType: int,
    types.IntegerType: int,
    types.LongType: int,
    types.FloatType: float,
    types.DoubleType: float,
    types.DecimalType: decimal.Decimal,
    types.TimestampType: datetime.datetime,
    types.TimestampNTZType: datetime.datetime,
    types.DateType: datetime.date,
}


def _python_type(kind: types.DataType) -> Any:
    """Return the type as which a value in JSON is read; any value may be null or missing."""
    if isinstance(kind, types.StructType):
        fields = {field.name: _python_type(field.dataType) | None for field in kind.fields}
        return _typed_dict("Fields", fields, total=False)
    if isinstance(kind, types.ArrayType):
        return list[_python_type(kind.elementType) | None]  # type: ignore[misc]
    if isinstance(kind, types.MapType):
        return dict[str, _python_type(kind.valueType) | None]  # type: ignore[misc]
    if type(kind) not in _PLAIN:
        raise InvalidArgument(f"option bodySchema: cannot read {kind.simpleString()} from JSON")
    return _PLAIN[type(kind)]
