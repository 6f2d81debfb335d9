"""Batches of the server made into batches for Spark, column by column and without copies of bodies.

Names and types of columns are in onibus/spark/schema.py.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, MapType, StructType

from onibus.api.messages import plain_values
from onibus.core.message import decode_properties
from onibus.spark.bodies import Bodies
from onibus.spark.property_maps import maps_of
from onibus.spark.schema import PROPERTY_MAPS, SERVER_NAMES


class Converter:
    """Makes batches for Spark out of batches of the server."""

    def __init__(self, schema: StructType, fail_on_bad_body: bool = True) -> None:
        self._names = schema.fieldNames()
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._bodies: Bodies | None = None
        if "body" in self._names and not isinstance(schema["body"].dataType, BinaryType):
            self._bodies = Bodies(schema["body"].dataType, fail_on_bad_body)
        self._maps = any(
            name in PROPERTY_MAPS and isinstance(schema[name].dataType, MapType)
            for name in self._names
        )
        #: columns to request from the server
        wanted = ["properties" if name in PROPERTY_MAPS else name for name in self._names]
        self.wanted = list(dict.fromkeys(SERVER_NAMES.get(name, name) for name in wanted))
        if self._bodies is not None and "sequence_number" not in self.wanted:
            # A body that cannot be read is named by its number.
            self.wanted.append("sequence_number")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        maps = dict(zip(PROPERTY_MAPS, self._property_maps(batch), strict=False))
        for name in self._names:
            if name in maps:
                arrays.append(maps[name])
                continue
            array = batch.column(SERVER_NAMES.get(name, name))
            if name == "body" and self._bodies is not None:
                array = self._bodies(array, batch.column("sequence_number"))
            elif name in _CONVERSIONS:
                array = _CONVERSIONS[name](array)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _property_maps(self, batch: pa.RecordBatch) -> tuple[pa.Array, ...]:
        return maps_of(batch.column("properties")) if self._maps else ()


def _time(array: pa.Array) -> pa.Array:
    return array.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _json(array: pa.Array) -> pa.Array:
    """Return properties as JSON text."""
    if array.null_count == len(array):
        return pa.nulls(len(array), pa.string())
    encode = msgspec.json.Encoder().encode
    told = [
        None if packed is None else encode(plain_values(decode_properties(packed))).decode()
        for packed in array.to_pylist()
    ]
    return pa.array(told, pa.string())


_CONVERSIONS: dict[str, Callable[[pa.Array], pa.Array]] = {
    **dict.fromkeys(SERVER_NAMES, _time),
    "properties": _json,
}
