"""The columns of a lake: typed properties, decoded bodies, errors, conversion; without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from onibus import Message
from onibus.client import Client
from onibus.core.errors import InvalidOperation, NewerFormat
from onibus.spark.bodies import BadBody
from onibus.spark.decoding.formats import BodyFormat, body_format
from onibus.spark.jobs.audit import audit
from onibus.spark.lake import ERRORS, MESSAGES
from tests.client.server_helpers import ServerThread
from tests.server.processes import served
from tests.spark.lake_helpers import Captures
from tests.spark.test_delta_log import content, no_spark
from tests.upgrades.contents import STORES
from tests.upgrades.earlier import unpack

MOMENT = datetime(2026, 5, 1, 12, 30, 0, 250_000, UTC)
#: One of each type, and what they are as strings.
TYPED = {"text": "é", "whole": 2**60, "real": 0.1, "yes": True, "bytes": b"\0\xff", "at": MOMENT,
         "nothing": None}  # fmt: skip
STRINGS = {"text": "é", "whole": str(2**60), "real": "0.1", "yes": "true", "bytes": "AP8=",
           "at": "2026-05-01T12:30:00.250000Z", "nothing": None}  # fmt: skip


@pytest.fixture(scope="module")
def own_server() -> Iterator[ServerThread]:
    with ServerThread() as server:
        yield server


@pytest.fixture
def bus(own_server: ServerThread, entity: str) -> Iterator[Client]:
    with own_server.client() as client:
        client.create_queue(entity)
        yield client


@pytest.fixture
def captures(own_server: ServerThread, bus: Client, entity: str) -> Captures:
    return Captures(own_server.connection_string, entity)


def table(captures: Captures, place: Path, name: str = MESSAGES) -> list[dict[str, Any]]:
    """The rows that another program reads."""
    read = DeltaTable(captures.lake(place).address(name)).to_pyarrow_table()
    by = "sequence_number" if name != ERRORS else "field"
    return read.sort_by(by).to_pylist(maps_as_pydicts="strict")


def send(bus: Client, entity: str, *bodies: bytes, **fields: Any) -> None:
    bus.send_batch(entity, [Message(body=body, **fields) for body in bodies])


@pytest.mark.promise("R9")
def test_properties_are_maps_that_each_program_reads(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, captures.entity, b"one", properties=TYPED)
    send(bus, captures.entity, b"two")
    captures.run(tmp_path)
    one, two = table(captures, tmp_path)
    assert one["properties"] == STRINGS
    assert one["property_types"]["whole"] == "long"
    assert two["properties"] is None
    messages = DeltaTable(captures.lake(tmp_path).address(MESSAGES)).to_pyarrow_dataset()
    query = "SELECT properties['whole'] FROM messages WHERE properties IS NOT NULL"
    assert duckdb.execute(query).fetchall() == [(str(2**60),)]
    lazy = polars.scan_delta(captures.lake(tmp_path).address(MESSAGES))
    assert lazy.select("properties").collect().height == messages.count_rows() == 2


@pytest.mark.promise("R9")
def test_fields_are_rescued_one_by_one(captures: Captures, bus: Client, tmp_path: Path) -> None:
    send(bus, captures.entity, b'{"id": 1, "total": 2.5}', b'{"id": "x", "total": 3}', b"no JSON")
    body = body_format("json", "id INT, total DOUBLE", None)
    done = captures.run(tmp_path, body=body)
    assert (done.messages, done.errors) == (3, 2)
    rows = table(captures, tmp_path)
    assert [row["decoded"] for row in rows] == [
        {"id": 1, "total": 2.5}, {"id": None, "total": 3.0}, None,
    ]  # fmt: skip
    assert rows[2]["body"] == b"no JSON", "the body stays as it was sent"
    errors = table(captures, tmp_path, ERRORS)
    assert [(one["sequence_number"], one["field"], one["value"]) for one in errors] == [
        (2, "id", '"x"'), (3, None, None),
    ]  # fmt: skip
    # The lake records how bodies are decoded.
    send(bus, captures.entity, b'{"id": 4}')
    captures.run(tmp_path)
    assert table(captures, tmp_path)[3]["decoded"] == {"id": 4, "total": None}
    source = {"connection": captures.options.server, "entity": captures.entity}
    assert audit(no_spark, source, str(tmp_path)).passed
    captures.run(tmp_path, body=BodyFormat())
    send(bus, captures.entity, b'{"id": 5}')
    captures.run(tmp_path)
    assert table(captures, tmp_path)[4]["decoded"] is None


@pytest.mark.promise("R9")
def test_a_capture_is_suspended_before_it_writes(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, captures.entity, b"1", b"x")
    body = body_format("json", "id INT", None)
    with pytest.raises(BadBody, match=r"the body of message 1 of .*: it is not an object"):
        captures.run(tmp_path, body=body, on_error="suspend")
    assert captures.numbers(tmp_path) == []


@pytest.mark.promise("R9")
def test_inferred_fields_are_recorded_and_grow(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    body = body_format("json", None, None)
    captures.run(tmp_path, body=body)
    send(bus, captures.entity, b'{"id": 1, "inner": {"a": 1}}')
    captures.run(tmp_path, body=body)
    send(bus, captures.entity, b'{"id": "x", "inner": {"b": [1.5]}, "more": true}')
    captures.run(tmp_path)
    one, two = table(captures, tmp_path)
    assert one["decoded"] == {"id": 1, "inner": {"a": 1, "b": None}, "more": None}
    assert two["decoded"] == {"id": None, "inner": {"a": None, "b": [1.5]}, "more": True}
    recorded = captures.lake(tmp_path).manifest().body
    assert recorded.inferred
    assert [field["name"] for field in json.loads(recorded.schema)["fields"]] == [
        "id", "inner", "more",
    ]  # fmt: skip
    for each in range(10):
        send(bus, captures.entity, b'{"id": %d}' % each)
        captures.run(tmp_path)
    assert len(captures.lake(tmp_path).files(MESSAGES)) < 12, "files with fewer fields are merged"
    assert table(captures, tmp_path)[:2] == [one, two]
    frame = polars.scan_delta(captures.lake(tmp_path).address(MESSAGES))
    query = frame.select(polars.col("decoded").struct.field("inner").struct.field("b")).collect()
    assert query.height == 12


def test_fields_that_the_table_has_are_not_inferred_again(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    """Neither with another type, nor with another case."""
    send(bus, captures.entity, b'{"id": 1, "total": 1.5}')
    captures.run(tmp_path, body=body_format("json", "id BIGINT", None))
    send(bus, captures.entity, b'{"id": 2, "total": 2.5}')
    captures.run(tmp_path, body=body_format("json", "total DOUBLE", None))
    send(bus, captures.entity, b'{"id": "x", "ID": 3, "total": 3.5, "more": 1}')
    captures.run(tmp_path, body=body_format("json", None, None))
    assert [row["decoded"] for row in table(captures, tmp_path)] == [
        {"id": 1, "total": None, "more": None},
        {"id": None, "total": 2.5, "more": None},
        {"id": None, "total": 3.5, "more": 1},
    ]


@pytest.mark.promise("R9")
def test_fields_that_contradict_the_lake_change_nothing(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, captures.entity, b'{"id": 1}')
    captures.run(tmp_path, body=body_format("json", "id INT", None))
    send(bus, captures.entity, b'{"id": 2}')
    before = content(tmp_path)
    others = ("id STRING", "id STRUCT<x: INT>", "ID INT")
    for how, fields in (("text", None), *(("json", one) for one in others)):
        with pytest.raises(InvalidOperation, match=r"column 'decoded.*nothing was captured"):
            captures.run(tmp_path, body=body_format(how, fields, None))
        assert content(tmp_path) == before
    captures.run(tmp_path, body=body_format("json", "total DOUBLE", None))
    assert [row["decoded"] for row in table(captures, tmp_path)] == [
        {"id": 1, "total": None}, {"id": None, "total": None},
    ]  # fmt: skip


@pytest.mark.promise("R9")
def test_a_lake_of_a_later_version_is_left_alone(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, captures.entity, b"1")
    captures.run(tmp_path)
    [manifest] = (tmp_path / captures.entity / "_manifest").iterdir()
    manifest.write_text(manifest.read_text().replace('"layout":3', '"layout":99'))
    before = content(tmp_path)
    with pytest.raises(NewerFormat, match="later version of Onibus: use that version"):
        captures.run(tmp_path)
    assert content(tmp_path) == before


@pytest.mark.promise("R9")
def test_a_lake_of_delta_tables_gets_todays_columns(tmp_path: Path) -> None:
    """Properties become maps, bodies their own column, and errors messages."""
    data, lake = unpack("0.2.0-delta", "data", tmp_path), unpack("0.2.0-delta", "lake", tmp_path)
    config = tmp_path / "onibus.toml"
    config.write_text("[stores]\n" + "".join(f"{name} = {str(data)!r}\n" for name in STORES))
    with served("--data", data, "--config", config):
        connection = (data / "connection-string").read_text().strip()
        documents, plain = Captures(connection, "documents"), Captures(connection, "plain")
        source = {"connection": connection, "entity": "documents"}
        before = audit(no_spark, source, str(lake))
        assert (before.messages, before.passed) == (12, True), "an earlier lake can be read"
        old = DeltaTable(documents.lake(lake).address(MESSAGES))
        assert old.to_pyarrow_table().num_rows == 8
        with Client.connect(connection) as client:
            send(client, "documents", b'{"id": 99, "total": 1}', properties={"n": 1})
            documents.run(lake)
            plain.run(lake)
        after = audit(no_spark, source, str(lake))
        assert (after.messages, after.passed) == (13, True), after
    rows = table(documents, lake)
    assert [row["sequence_number"] for row in rows] == list(range(1, 14))
    assert [row["decoded"] for row in rows] == [
        *({"id": at, "total": at + 0.5} for at in range(8)), None, None, None, None,
        {"id": 99, "total": 1.0},
    ]  # fmt: skip
    # The bodies that were decoded were not kept; those that could not be were.
    bodies = [b"not JSON", b"\xff\xfe", b'{"id": "no number", "total": 1.0}', b""]
    assert [row["body"] for row in rows[:12]] == [*[None] * 8, *bodies]
    assert rows[1]["properties"] == STRINGS
    assert (rows[0]["properties"], rows[12]["property_types"]) == (None, {"n": "long"})
    errors = table(documents, lake, ERRORS)
    assert [one["sequence_number"] for one in errors] == [9, 10, 11, 12]
    assert {one["problem"] for one in errors} == {"was not decoded by an earlier version"}
    texts = table(plain, lake)
    assert [row["decoded"].encode() for row in texts] == [row["body"] for row in texts]
    assert plain.lake(lake).manifest().body == BodyFormat(format="text")
    assert pa.types.is_map(
        pa.schema(DeltaTable(plain.lake(lake).address(MESSAGES)).schema().to_arrow())
        .field("properties").type
    )  # fmt: skip
    # A reader that began before sees the earlier files.
    assert old.to_pyarrow_table().num_rows == 8
