"""Bodies decoded into columns: what fits, what is rescued, and what hostile bodies cost."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as some

from onibus.core.errors import InvalidArgument
from onibus.spark.decoding.fields import parse_fields
from onibus.spark.decoding.formats import BodyFormat, Decoder, body_format, decoder_of
from onibus.spark.decoding.json_bodies import FIELDS_MAX, JsonBodies, inferred
from onibus.spark.decoding.values import PROBLEMS_MAX, Decoded

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def rows(*bodies: bytes | None, content_type: str = "", properties: Any = ()) -> pa.Table:
    count = len(bodies)
    maps = pa.array([list(properties)] * count, pa.map_(pa.string(), pa.string()))
    return pa.table(
        {
            "body": pa.array(bodies, pa.binary()),
            "content_type": pa.array([content_type or None] * count, pa.string()),
            "properties": maps,
        }
    )


def decoder(body: str, schema: str | None = None, message: str | None = None) -> Decoder:
    how = body_format(body, schema, message)
    assert how is not None
    found = decoder_of(how)
    assert found is not None
    return found


def problems(found: Decoded) -> list[tuple[int, str | None, str]]:
    return [(one.row, one.field, one.problem) for one in found.problems]


FIELDS = (
    "id INT, total DECIMAL(10,2), name STRING, at TIMESTAMP, day DATE, "
    "items ARRAY<STRUCT<price: DOUBLE>>, tags MAP<STRING, BIGINT>, raw BINARY, yes BOOLEAN"
)


@pytest.mark.parametrize("without_decimals", [False, True])
def test_fields_of_json(without_decimals: bool) -> None:
    fields = FIELDS.replace("total DECIMAL(10,2), ", "") if without_decimals else FIELDS
    decode = decoder("json", fields)
    good = b"""{"id": 1, "total": 1.25, "name": "x", "at": "2026-05-01T14:00:00+02:00", "day":
        "2026-05-01", "items": [{"price": 1}, {"price": 2.5}, {}], "tags": {"a": 1}, "raw": "AAE=",
        "yes": true, "more": [[]]}"""
    bad = b"""{"id": 2.5, "total": "12345678901.00", "name": {"z": 1}, "at": "noon", "day": 5,
        "items": [{"price": "x"}, 7], "tags": {"a": "x"}, "raw": "%", "yes": 1}"""
    found = decode(rows(good, bad, None, b"null", b"{}"))
    first, second, *others = found.values.to_pylist()
    assert first["items"] == [{"price": 1.0}, {"price": 2.5}, {"price": None}]
    assert (first["id"], first["name"], first["yes"], first["raw"]) == (1, "x", True, b"\0\1")
    assert (first["at"], first["day"], first["tags"]) == (NOON, date(2026, 5, 1), [("a", 1)])
    # What JSON a string field has is kept.
    assert second["name"] == '{"z":1}'
    assert second["items"] == [{"price": None}, None]
    named = {field for row, field, _ in problems(found) if row == 1}
    wanted = {"id", "at", "day", "items[0].price", "items[1]", 'tags["a"]', "raw", "yes"}
    assert named == (wanted if without_decimals else wanted | {"total"})
    if not without_decimals:
        assert first["total"] == Decimal("1.25")
    assert others[:2] == [None, None]
    assert set(others[2].values()) == {None}
    assert {row for row, *_ in problems(found)} == {1}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"id": 1} x', "is not JSON"),
        (b'{"id": NaN}', "is not JSON"),
        (b"[1]", "is not an object"),
        (b'"text"', "is not an object"),
        (b"[" * 1_000_000, "is nested too deep"),
        (b'{"id": ' * 50_000 + b"1" + b"}" * 50_000, "is nested too deep"),
    ],
)
def test_a_body_that_is_no_object(body: bytes, problem: str) -> None:
    for fields in ("id INT", "id DECIMAL(10,2)"):
        found = decoder("json", fields)(rows(body, b'{"id": 1}'))
        assert found.values.to_pylist()[0] is None
        assert found.values.to_pylist()[1] is not None
        [(row, field, words)] = problems(found)
        assert (row, field) == (0, None)
        assert problem in words


@pytest.mark.parametrize(
    "number", ["9" * 100_000, "1e999", "-1e999", "1e999999999", "1e-999999999", '"1e-99999999"']
)
@pytest.mark.parametrize("kind", ["INT", "BIGINT", "DOUBLE", "DECIMAL(38,10)"])
def test_huge_numbers_cost_one_field(number: str, kind: str) -> None:
    found = decoder("json", f"n {kind}, name STRING")(
        rows(b'{"n": %s, "name": "kept"}' % number.encode())
    )
    [value] = found.values.to_pylist()
    assert value["name"] == "kept"
    if value["n"] is None:
        assert [field for _, field, _ in problems(found)] == ["n"]
    else:
        # So small that the nearest double is zero.
        assert (number, value["n"]) == ("1e-999999999", 0)


def test_many_problems_of_one_message_are_counted() -> None:
    body = json.dumps({"a": ["x"] * 1_000}).encode()
    found = decoder("json", "a ARRAY<INT>")(rows(body))
    assert len(found.problems) == PROBLEMS_MAX
    assert found.problems[-1].problem == f"{1_000 - PROBLEMS_MAX + 1} more fields do not fit"
    assert found.values.to_pylist() == [{"a": [None] * 1_000}]


def test_text_that_no_column_can_have() -> None:
    found = decoder("json", "name STRING, id INT")(rows(rb'{"name": "\ud800", "id": 1}'))
    assert found.values.to_pylist() == [{"name": None, "id": 1}]
    assert problems(found) == [(0, "name", "is not valid Unicode")]
    text = decoder("text")(rows("é".encode(), b"\xff", None))
    assert text.values.to_pylist() == ["é", None, None]
    assert problems(text) == [(1, None, "is not UTF-8 at byte 0")]


JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(some.lists(some.binary() | JSON.map(lambda one: json.dumps(one).encode()), max_size=6))
def test_any_bodies_are_decoded_or_have_a_problem(bodies: list[bytes]) -> None:
    """No body raises, none changes another, and each null body has its reason."""
    for how in ("id INT, total DOUBLE, name STRING", FIELDS):
        decode = decoder("json", how)
        found = decode(rows(*bodies))
        assert len(found.values) == len(bodies)
        alone = [decode(rows(body)).values[0].as_py() for body in bodies]
        assert found.values.to_pylist() == alone
    fields = inferred(bodies, pa.struct([]))
    if fields.num_fields:
        again = JsonBodies(fields)(rows(*bodies))
        objects = [one for one in again.values.to_pylist() if one is not None]
        assert len(objects) <= len(bodies)
        assert inferred(bodies, fields) == fields


def test_inference_and_its_rule() -> None:
    first = [
        b'{"id": 1, "total": 1, "name": "x", "items": [{"a": 1}, {"b": true}], "none": null}',
        b'{"id": 2, "total": 2.5, "name": 7, "more": {"x": {"y": 1}}, "big": 99999999999999999999}',
        b"no JSON", b"[1]", b'{"ID": "again", "a b": 1, "mixed": [1, "x"], "empty": []}',
    ]  # fmt: skip
    fields = inferred(first, pa.struct([]))
    assert fields == pa.struct(
        [
            ("id", pa.int64()), ("total", pa.float64()), ("name", pa.string()),
            ("items", pa.list_(pa.struct([("a", pa.int64()), ("b", pa.bool_())]))),
            ("more", pa.struct([("x", pa.struct([("y", pa.int64())]))])),
            ("big", pa.string()), ("mixed", pa.list_(pa.string())),
        ]
    )  # fmt: skip
    later = [b'{"id": "text", "none": 1, "more": {"x": {"z": 2}}, "empty": ["x"]}']
    added = inferred(later, fields)
    assert added.field("id").type == pa.int64(), "a field keeps its type"
    assert added.field("none").type == pa.int64()
    assert added.field("empty").type == pa.list_(pa.string())
    inner = pa.struct([("y", pa.int64()), ("z", pa.int64())])
    assert added.field("more").type == pa.struct([("x", inner)])
    found = JsonBodies(added)(rows(*later))
    assert problems(found) == [(0, "id", "is not a whole number of 64 bits")]


def test_inference_of_hostile_objects_is_bounded() -> None:
    keys = [json.dumps({f"key-{at}": 1}).encode() for at in range(FIELDS_MAX * 3)]
    assert inferred(keys, pa.struct([])).num_fields == FIELDS_MAX
    inner = [json.dumps({"map": {f"key-{at}": 1}}).encode() for at in range(FIELDS_MAX * 3)]
    assert inferred(inner, pa.struct([])) == pa.struct([("map", pa.string())])
    deep = b'{"a": ' * 40 + b"1" + b"}" * 40
    kind, levels = inferred([deep], pa.struct([])), 0
    while pa.types.is_struct(kind):
        kind, levels = kind.field("a").type, levels + 1
    assert (kind, levels) == (pa.string(), 8)


# --- Avro -----------------------------------------------------------------------------------------

ORDER: dict[str, Any] = {
    "type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "total",
         "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "items", "type": {"type": "array", "items": {
            "type": "record", "name": "Item", "fields": [{"name": "price", "type": "double"}]}}},
        {"name": "first", "type": ["null", "Item"]},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "either", "type": ["null", "int", "string"]},
    ],
}  # fmt: skip
VALUE = {
    "id": 1, "name": None, "total": Decimal("12.34"), "at": NOON, "day": date(2026, 5, 1),
    "colour": "BLUE", "items": [{"price": 1.5}], "first": {"price": 2.0}, "tags": {"a": 1},
    "either": 5,
}  # fmt: skip


def avro(value: Any, schema: Any = ORDER) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), value)
    return sink.getvalue()


def test_avro_plain_and_as_single_objects(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    body = avro(VALUE)
    mark = b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(ORDER), "CRC-64-AVRO"))
    for schema in (json.dumps(ORDER), str(tmp_path / "order.avsc")):
        found = decoder("avro", schema)(
            rows(
                body, mark + body, b"\xc3\x01" + bytes(8) + body, body[:-1], body + b"x", b"", None
            )
        )
        one = VALUE | {"tags": [("a", 1)], "either": "5"}
        assert found.values.to_pylist() == [one, one, None, None, None, None, None]
        assert [row for row, *_ in problems(found)] == [2, 3, 4, 5]
    wrapped = decoder("avro", '"long"')(rows(avro(7, "long")))
    assert wrapped.values.to_pylist() == [{"value": 7}]


def test_avro_values_outside_of_their_type_cost_one_field() -> None:
    plain = json.loads(json.dumps(ORDER).replace('"logicalType": "timestamp-millis"', '"x": 1'))
    bodies = [avro({**VALUE, "at": 2**62}, plain), avro(VALUE)]
    found = decoder("avro", json.dumps(ORDER))(rows(*bodies))
    assert [one["at"] for one in found.values.to_pylist()] == [None, NOON]
    assert [one["id"] for one in found.values.to_pylist()] == [1, 1]
    assert [(row, field) for row, field, _ in problems(found)] == [(0, "at")]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]},
         "refers to itself"),
        ({"type": "array", "items": "null"}, "no bytes"),
        ({"type": "array", "items": {"type": "record", "name": "E", "fields": [
            {"name": "a", "type": "null"}]}}, "no bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "no bytes"),
        ({"type": "nothing"}, "not an Avro schema"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50}, "at most 38"),
    ],
)  # fmt: skip
def test_avro_schemas_that_are_rejected(schema: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        body_format("avro", json.dumps(schema), None)


@settings(max_examples=200, deadline=None)
@given(some.lists(some.tuples(some.integers(0, 60), some.integers(0, 255)), max_size=4))
def test_any_bytes_are_avro_or_have_a_problem(changes: list[tuple[int, int]]) -> None:
    body = bytearray(avro(VALUE))
    for at, byte in changes:
        body[at % len(body)] = byte
    [value] = (found := AVRO(rows(bytes(body)))).values.to_pylist()
    assert value is not None or found.problems


AVRO = decoder("avro", json.dumps(ORDER))

# --- Protobuf -------------------------------------------------------------------------------------


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """What protoc makes of a file with a message `shop.Order`."""
    from google.protobuf import struct_pb2, timestamp_pb2, wrappers_pb2

    found = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2, struct_pb2):
        module.DESCRIPTOR.CopyToProto(found.file.add())
    file = found.file.add(
        name="shop.proto", package="shop", syntax="proto3",
        dependency=[one.name for one in found.file],
    )  # fmt: skip
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    colour.value.add(name="BLUE", number=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=3, label=1)
    order.oneof_decl.add(name="_note")
    for number, (name, kind, label, of) in enumerate(
        [
            ("id", 5, 1, ""), ("big", 4, 1, ""), ("name", 9, 1, ""), ("raw", 12, 1, ""),
            ("colour", 14, 1, ".shop.Colour"), ("at", 11, 1, ".google.protobuf.Timestamp"),
            ("prices", 1, 3, ""), ("tags", 11, 3, ".shop.Order.TagsEntry"),
            ("parent", 11, 1, ".shop.Order"), ("extra", 11, 1, ".google.protobuf.Struct"),
            ("limit", 11, 1, ".google.protobuf.Int64Value"),
        ],
        1,
    ):  # fmt: skip
        order.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)
    order.field.add(name="note", number=20, type=9, label=1, oneof_index=0, proto3_optional=True)
    return found


@pytest.fixture
def protobuf(tmp_path: Path) -> Decoder:
    path = tmp_path / "shop.desc"
    path.write_bytes(descriptors().SerializeToString())
    return decoder("protobuf", str(path), "shop.Order")


def order_class() -> Any:
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in descriptors().file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf(protobuf: Decoder) -> None:
    order = order_class()(id=7, big=2**64 - 1, name="é", raw=b"\0", colour=1, prices=[1.5, 2.5])
    order.tags["a"] = 3
    order.at.seconds, order.at.nanos = int(NOON.timestamp()), 250_000_000
    order.parent.id = 8
    order.extra["k"] = "v"
    order.limit.value = 0
    found = protobuf(rows(order.SerializeToString(), b"", b"\xff", None))
    one, empty, bad, missing = found.values.to_pylist()
    assert (one["id"], one["big"], one["name"], one["raw"]) == (7, 2**64 - 1, "é", b"\0")
    assert (one["colour"], one["prices"], one["tags"]) == ("BLUE", [1.5, 2.5], [("a", 3)])
    assert one["at"] == NOON.replace(microsecond=250_000)
    assert (json.loads(one["parent"])["id"], json.loads(one["extra"])) == (8, {"k": "v"})
    assert (one["limit"], one["note"]) == (0, None)
    assert (empty["id"], empty["at"], empty["limit"], empty["prices"]) == (0, None, None, [])
    assert (bad, missing) == (None, None)
    assert [(row, field) for row, field, _ in problems(found)] == [(2, None)]


def test_protobuf_times_outside_of_years(protobuf: Decoder) -> None:
    order = order_class()(id=7)
    order.at.seconds = 2**60
    found = protobuf(rows(order.SerializeToString()))
    assert found.values.to_pylist()[0]["id"] == 7
    assert [(row, field) for row, field, _ in problems(found)] == [(0, "at")]


@settings(max_examples=200, deadline=None)
@given(some.binary(max_size=60))
def test_any_bytes_are_protobuf_or_have_a_problem(body: bytes) -> None:
    how = BodyFormat(
        format="protobuf",
        schema=b64encode(descriptors().SerializeToString()).decode(),
        type="shop.Order",
    )
    found = decoder_of(how)
    assert found is not None
    result = found(rows(body))
    assert result.values.to_pylist()[0] is not None or result.problems


# --- CloudEvents ----------------------------------------------------------------------------------


def test_cloud_events_in_both_modes() -> None:
    event = {
        "specversion": "1.0", "id": "a-1", "source": "/shop", "type": "order.created",
        "time": "2026-05-01T12:00:00Z", "subject": "7", "datacontenttype": "application/json",
        "data": {"id": 7}, "tenant": "anna", "attempt": 3,
    }  # fmt: skip
    decode = decoder("cloudevents")
    structured = decode(
        rows(json.dumps(event).encode(), content_type="application/cloudevents+json; charset=utf-8")
    )
    [one] = structured.values.to_pylist()
    assert (one["id"], one["time"], json.loads(one["data"])) == ("a-1", NOON, {"id": 7})
    assert dict(one["extensions"]) == {"tenant": "anna", "attempt": "3"}
    for prefix in ("cloudEvents:", "cloudEvents_", "ce-", "ce_"):
        attributes = [
            (f"{prefix}{name}", str(value))
            for name, value in event.items()
            if name not in ("data", "datacontenttype")
        ]
        given_ = rows(b'{"id": 7}', content_type="application/json", properties=attributes)
        assert decode(given_).values.to_pylist() == [{**one, "data": '{"id": 7}'}]
    assert not structured.problems
    typed = decoder("cloudevents", "id INT")(
        rows(json.dumps(event).encode(), content_type="application/cloudevents+json")
    )
    assert typed.values.to_pylist()[0]["data"] == {"id": 7}


def test_cloud_events_that_lack_something() -> None:
    decode = decoder("cloudevents", "id INT")
    bad = {"id": "a", "source": "/", "specversion": "1.0", "time": "noon", "data": {"id": "x"}}
    found = decode(rows(json.dumps(bad).encode(), content_type="application/cloudevents+json"))
    assert {field for _, field, _ in problems(found)} == {"type", "time", "data.id"}
    assert found.values.to_pylist()[0]["source"] == "/"
    other = decode(rows(b"{}", content_type="application/json"))
    assert "is not a CloudEvent" in problems(other)[0][2]
    batch = decode(rows(b"[]", content_type="application/cloudevents-batch+json"))
    assert "is a batch" in problems(batch)[0][2]
    binary = decoder("cloudevents")(
        rows(b"\xff", properties=[("ce-id", "1"), ("ce-source", "s"), ("ce-type", "t"),
                                  ("ce-specversion", "1.0")])
    )  # fmt: skip
    assert binary.values.to_pylist()[0]["data_binary"] == b"\xff"


# --- what users write -----------------------------------------------------------------------------


def test_fields_as_users_write_them() -> None:
    assert parse_fields("`order` int, B: struct<c:array<map<string,Decimal(5)>>> NOT NULL") == (
        pa.struct(
            [
                ("order", pa.int32()),
                ("B", pa.struct([("c", pa.list_(pa.map_(pa.string(), pa.decimal128(5, 0))))])),
            ]
        )
    )


@pytest.mark.parametrize(
    "text",
    [
        "id", "id NUMBER", "id INT,", "id INT total", "a ARRAY<INT", "a MAP<INT, INT>", "`a b` INT",
        "id INT, ID STRING", "d DECIMAL(50,2)", "id INT; DROP", "", "a STRUCT<>",
        "a " + "ARRAY<" * 40 + "INT" + ">" * 40,
    ],
)  # fmt: skip
def test_fields_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_fields(text)


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        (("xml", None, None), "is unknown"),
        ((None, "id INT", None), "add --body"),
        (("text", "id INT", None), "has no schema"),
        (("avro", None, None), "needs a schema"),
        (("avro", "/nowhere.avsc", None), "cannot read the schema"),
        (("protobuf", "/dev/null", None), "needs the message's name"),
        (("protobuf", "/dev/null", "shop.Order"), "no Protobuf message"),
        (("json", "id INT", "shop.Order"), "only Protobuf"),
    ],
)
def test_formats_that_are_rejected(given_: tuple[Any, ...], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        body_format(*given_)
