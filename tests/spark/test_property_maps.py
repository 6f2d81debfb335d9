"""Properties as maps of strings with a map of types: every value comes back as it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from onibus.core.message import encode_properties
from onibus.spark.property_maps import json_of, maps_of, maps_of_values, text_of, value_of

VALUES = some.one_of(
    some.none(), some.booleans(), some.integers(-(2**63), 2**63 - 1), some.text(), some.binary(),
    some.floats(allow_nan=False), some.datetimes(timezones=some.just(UTC)), some.timedeltas(),
)  # fmt: skip


@pytest.mark.promise("R9")
@given(VALUES)
def test_every_value_comes_back(value: Any) -> None:
    text, kind = text_of(value)
    found = value_of(text, kind)
    assert found == value
    assert type(found) is type(value)


def test_words_for_values() -> None:
    moment = datetime(2026, 5, 1, 12, tzinfo=UTC)
    row = {"s": "é", "n": 3, "f": 0.1, "nan": float("nan"), "inf": float("-inf"), "yes": True,
           "raw": b"\x00", "at": moment, "for": timedelta(seconds=1), "none": None}  # fmt: skip
    values, types = maps_of_values([row, None, {}])
    assert values.to_pylist()[1:] == types.to_pylist()[1:] == [None, []]
    assert dict(values[0].as_py()) == {
        "s": "é", "n": "3", "f": "0.1", "nan": "NaN", "inf": "-Infinity", "yes": "true",
        "raw": "AA==", "at": "2026-05-01T12:00:00Z", "for": "1000000", "none": None,
    }  # fmt: skip
    kinds = [
        "string",
        "long",
        *["double"] * 3,
        "boolean",
        "binary",
        "timestamp",
        "duration",
        "null",
    ]
    assert [kind for _, kind in types[0].as_py()] == kinds


@given(some.lists(some.none() | some.dictionaries(some.text(), VALUES, max_size=4), max_size=5))
def test_maps_are_the_json_that_is_written(rows: list[dict[str, Any] | None]) -> None:
    from onibus.spark.converting import _json

    # A duration has no packed form.
    sent = [
        None
        if row is None
        else {name: one for name, one in row.items() if not isinstance(one, timedelta)}
        for row in rows
    ]
    encoded = [None if row is None else encode_properties(row) for row in sent]
    packed = pa.array(encoded, pa.binary())
    assert json_of(*maps_of(packed)).to_pylist() == _json(packed).to_pylist()
