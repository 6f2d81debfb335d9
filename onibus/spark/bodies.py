"""Bodies as text, or as the fields of a JSON object, for reads by Spark."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from onibus.core.errors import Refused
from onibus.spark.decoding.formats import Decoder, TextBodies
from onibus.spark.decoding.json_bodies import JsonBodies


class BadBody(Refused):
    """A body that cannot be decoded as requested."""

    code = "bad-body"


class Bodies:
    """Decodes a column of bodies. One that does not fit is an error, or null."""

    def __init__(self, kind: types.DataType, fail: bool) -> None:
        self._fail = fail
        self._arrow = to_arrow_type(kind, timezone="UTC")
        is_text = not isinstance(kind, types.StructType)
        self._wanted = "UTF-8 text" if is_text else f"JSON of {self._arrow}"
        self._decode: Decoder = TextBodies() if is_text else JsonBodies(self._arrow)

    def __call__(self, bodies: pa.Array, numbers: pa.Array | None) -> pa.Array:
        """Return the bodies decoded; `numbers` are those of the rows, to name a bad one."""
        values, problems = self._decode(pa.table({"body": bodies}))
        if not problems:
            return values
        at, field, problem, _ = problems[0]
        if self._fail:
            which = "a message" if numbers is None else f"message {numbers[at].as_py()}"
            raise BadBody(
                f"the body of {which} is not {self._wanted}: {field or 'it'} {problem}. "
                "Set failOnBadBody=false to read such bodies as null"
            )
        bad = {one.row for one in problems}
        return pc.if_else(
            pa.array([row not in bad for row in range(len(values))]),
            values,
            pa.nulls(len(values), self._arrow),
        )
