"""Which rows can be written, looked at without Spark and without a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from onibus.core.errors import InvalidArgument, InvalidOperation
from onibus.core.message import decode_properties
from onibus.spark.options import write_options
from onibus.spark.writing import PIECE_BYTES_MAX, BatchWriter, StreamWriter, _cut
from onibus.spark.writing_rows import BadRow, check_columns, sent_rows

TEXT, BYTES = StringType(), BinaryType()
SERVER = {"url": "http://localhost:5300", "entity": "q"}


def struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (struct(mesage_id=TEXT, body=BYTES), "did you mean message_id"),
        (struct(message_id=LongType(), body=BYTES), "message_id is bigint: use string"),
        (struct(message_id=TEXT), "no column body"),
        (struct(properties=MapType(LongType(), TEXT), body=BYTES), "use string names"),
        (struct(properties=MapType(TEXT, ArrayType(TEXT)), body=BYTES), "properties is map"),
        (struct(time_to_live_ms=TEXT, body=BYTES), "time_to_live_ms is string"),
        (struct(scheduled_enqueue_time=LongType(), body=BYTES), "use timestamp"),
        (
            StructType([StructField("body", BYTES), StructField("body", BYTES)]),
            "column body is repeated",
        ),
    ],
)
def test_columns_that_are_refused(schema: StructType, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        check_columns(schema)


def test_columns_that_the_bus_gives_are_passed_over() -> None:
    check_columns(struct(sequence_number=LongType(), partition=TEXT, state=TEXT, body=TEXT))
    rows = sent_rows(batch(sequence_number=[1], hop_count=[2], body=["x"], message_id=["a"]))
    assert rows.to_pydict() == {"body": [b"x"], "message_id": ["a"]}


@pytest.mark.parametrize(
    ("given", "at", "says"),
    [
        ({"body": [b"x", None]}, 1, "body is null"),
        ({"body": [b"x"], "kind": ["scheduled"]}, 0, "kind is 'scheduled'"),
        ({"body": [b"x", b"y"], "properties": [None, "{"]}, 1, "properties: "),
        ({"body": [b"x"], "properties": ['{"a": {"time": "noon"}}']}, 0, "ISO 8601"),
        ({"body": [b"x"], "properties": ["[]"]}, 0, "properties: "),
    ],
)
def test_rows_that_are_refused(given: dict[str, Any], at: int, says: str) -> None:
    with pytest.raises(BadRow, match=says) as caught:
        sent_rows(batch(**given))
    assert caught.value.at == at


def test_properties_come_as_text_or_as_a_map() -> None:
    texts = ['{"n": 1, "b": {"binary": "AA=="}}', None, "{}"]
    rows = sent_rows(batch(body=[b""] * 3, properties=texts))
    packed, *others = rows["properties"].to_pylist()
    assert decode_properties(packed) == {"n": 1, "b": b"\x00"}
    assert others == [None, None]
    kind = pa.map_(pa.string(), pa.float64())
    maps = pa.array([[("a", 1.5)], None, []], kind)
    rows = sent_rows(
        pa.RecordBatch.from_arrays([maps, pa.array([b""] * 3)], ["properties", "body"])
    )
    packed, *others = rows["properties"].to_pylist()
    assert decode_properties(packed) == {"a": 1.5}
    assert others == [None, None]


def test_pieces_are_what_a_request_may_have() -> None:
    many = batch(body=[b""] * 25_001)
    assert sum(piece.num_rows for piece in _cut(many)) == 25_001
    assert max(piece.num_rows for piece in _cut(many)) <= 10_000
    # One row is large: it goes alone, or nearly.
    uneven = batch(body=[b"x" * 100] * 9_000 + [b"x" * (3 * PIECE_BYTES_MAX)] + [b"y"] * 50)
    pieces = list(_cut(uneven))
    assert pa.concat_batches(pieces).equals(uneven)
    assert all(one.nbytes <= 2 * PIECE_BYTES_MAX or one.num_rows == 1 for one in pieces)
    assert list(_cut(uneven.slice(0, 0))) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"producer": "p"}, "producer and batch belong together"),
        ({"producr": "p"}, "did you mean producer"),
        ({"leaseMs": "soon"}, "leaseMs is 'soon': use a whole number"),
        ({"producer": "p", "batch": "-1"}, "batch is '-1': use a whole number"),
    ],
)
def test_bad_options_of_a_batch_write(given: Mapping[str, str], says: str) -> None:
    with pytest.raises((InvalidArgument, InvalidOperation), match=says):
        BatchWriter({**SERVER, **given}, struct(body=BYTES), False)


def test_entities_are_not_written_over() -> None:
    with pytest.raises(InvalidOperation, match="mode append"):
        BatchWriter(SERVER, struct(body=BYTES), True)
    with pytest.raises(InvalidOperation, match="upsert_into"):
        StreamWriter(SERVER, struct(body=BYTES), True)
    with pytest.raises(InvalidOperation, match="numbers its own batches"):
        StreamWriter({**SERVER, "batch": "1"}, struct(body=BYTES), False)


def test_keys_are_not_shown() -> None:
    secret = "c2VjcmV0IGtleQ=="
    shown = repr(write_options({**SERVER, "keyName": "k", "key": secret}))
    assert secret not in shown
