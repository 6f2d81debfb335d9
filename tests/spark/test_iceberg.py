"""Iceberg tables of a lake: the rows of the Delta tables, once, whatever happens in between."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.types import LongType

from onibus import Message
from onibus.client import Client
from onibus.core.errors import InvalidArgument, InvalidOperation
from onibus.spark import delta_log, lake_capture, lake_iceberg
from onibus.spark.decoding.formats import body_format
from onibus.spark.delta_log import DeltaLog
from onibus.spark.jobs.register import register
from onibus.spark.lake import KEEP_MS, MESSAGES, OUTCOMES, TABLES, tables_of
from onibus.spark.lake_capture import has_news
from onibus.spark.lake_files import LakeFailed
from onibus.spark.lake_iceberg import VERSION, IcebergTables
from onibus.spark.lake_manifest import TYPED, WITH_ICEBERG
from onibus.spark.lake_writer import LakeWriter
from tests.client.server_helpers import ServerThread
from tests.spark.iceberg_helpers import (
    contents,
    listed,
    own_catalog,
    properties_of,
    rows_of,
    same,
    table_of,
)
from tests.spark.lake_helpers import Captures, Crash, consume, make_old, send
from tests.spark.test_lake_steps import is_bad

ICEBERG: dict[str, Any] = {"table_format": "iceberg"}


def die_at_messages(self: object, transaction: object, table: str, *given: object) -> Any:
    if table == MESSAGES:
        raise Crash
    return {}


def number_of(place: Path, captures: Captures, table: str = MESSAGES) -> list[int]:
    rows = rows_of(place, captures.entity, table)
    name = "number" if table == OUTCOMES else "sequence_number"
    return sorted(rows.column(name).to_pylist())


@pytest.mark.promise("R9")
def test_iceberg_tables_have_the_rows_of_delta_tables(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    lake, entity = captures.lake(tmp_path), captures.entity
    bus.delete_queue(entity)
    bus.create_queue(entity, enable_partitioning=True)
    send(bus, entity, 1, 6)
    captures.run(tmp_path, most=2, bad=is_bad, **ICEBERG)
    send(bus, entity, 7, 20)
    consume(bus, entity)
    # The lake records it.
    captures.run(tmp_path, most=3, bad=is_bad)
    for table in TABLES:
        assert same(lake, tmp_path, table), table
    rows = rows_of(tmp_path, entity, MESSAGES)
    assert sorted(int(body) for body in rows.column("body").to_pylist() if body != b"\xff") == [
        at for at in range(1, 21) if not is_bad(rows_number(rows, at))
    ]
    found = table_of(tmp_path, entity, MESSAGES)
    assert [str(one.transform) for one in found.spec().fields] == ["day"]
    versions = [int(one.summary[VERSION] or 0) for one in found.snapshots() if one.summary]
    assert versions == sorted(set(versions))
    assert versions[-1] == lake.log(MESSAGES).version
    # Metadata is not where the data is: Delta's vacuum deletes what it does not know there.
    assert not list(Path(lake.address(MESSAGES)).rglob("*metadata*"))
    assert f"{entity}/_iceberg/messages/metadata/" in found.metadata_location


def rows_number(rows: pa.Table, body: int) -> int:
    """The sequence number of a message that was sent with a body; 5 if that cannot be known."""
    bodies = rows.column("body").to_pylist()
    at = b"%d" % body
    return rows.column("sequence_number")[bodies.index(at)].as_py() if at in bodies else 5


def test_filters_skip_files_by_their_statistics(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    for first in (1, 11, 21):
        send(bus, captures.entity, first, first + 9)
        captures.run(tmp_path, **ICEBERG)
    found = table_of(tmp_path, captures.entity, MESSAGES)
    numbers = sorted(found.scan().to_arrow().column("sequence_number").to_pylist())
    late = found.scan(row_filter=f"sequence_number = {numbers[-1]}")
    assert len(list(late.plan_files())) < len(listed(found))
    assert late.to_arrow().num_rows == 1
    assert not list(
        found.scan(row_filter="enqueued_time < '2020-01-01T00:00:00+00:00'").plan_files()
    )


@pytest.mark.promise("R9")
def test_merged_files_are_replaced_in_one_snapshot(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    for at in range(9):
        send(bus, captures.entity, 10 * at, 10 * at + 9)
        captures.run(tmp_path, file_size=1, **ICEBERG)
    before = table_of(tmp_path, captures.entity, MESSAGES)
    done = captures.run(tmp_path)
    assert done.merged
    found = table_of(tmp_path, captures.entity, MESSAGES)
    assert len(listed(found)) < len(listed(before))
    assert same(captures.lake(tmp_path), tmp_path, MESSAGES)
    # A reader that began earlier reads the files that it saw.
    assert before.scan().to_arrow().num_rows == 90


def test_columns_that_are_added(captures: Captures, bus: Client, tmp_path: Path) -> None:
    lake, entity = captures.lake(tmp_path), captures.entity
    bus.send_batch(entity, [Message(body=b'{"a": 1}', properties={"k": 1})])
    captures.run(tmp_path, **ICEBERG)
    schema = (
        "a SMALLINT, b STRUCT<c: ARRAY<DECIMAL(9,2)>, d: DATE>, e MAP<STRING, BIGINT>, "
        "f BOOLEAN, g FLOAT, h TIMESTAMP, i BINARY, j TINYINT"
    )
    body = b'{"a": 2, "b": {"c": [1.25], "d": "2026-05-01"}, "e": {"x": 7}, "f": true}'
    bus.send_batch(entity, [Message(body=body)])
    captures.run(tmp_path, body=body_format("json", schema, None))
    bus.send_batch(entity, [Message(body=b'{"k l": 3, "b": {"x.y": [{"z": 1}]}}')])
    captures.run(
        tmp_path,
        body=body_format(
            "json", schema.replace("d: DATE", "d: DATE, `x.y`: ARRAY<STRUCT<z: INT>>"), None
        ),
    )
    assert same(lake, tmp_path, MESSAGES)
    rows = rows_of(tmp_path, entity, MESSAGES).sort_by("enqueued_time")
    found = rows.column("decoded").to_pylist(maps_as_pydicts="strict")
    assert [None if one is None else one["a"] for one in sorted(found, key=repr)]
    assert {"x": 7} in [one["e"] for one in found if one]
    assert [{"z": 1}] in [one["b"]["x.y"] for one in found if one and one["b"]]


@pytest.mark.promise("R9")
def test_a_table_that_lags_catches_up(
    captures: Captures, bus: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, entity = captures.lake(tmp_path), captures.entity
    send(bus, entity, 1, 4)
    captures.run(tmp_path, **ICEBERG)
    with monkeypatch.context() as patch:
        # The capture dies after the commit of Delta, and before that of Iceberg.
        patch.setattr(IcebergTables, "_replace", die_at_messages)
        send(bus, entity, 5, 8)
        with pytest.raises(Crash):
            captures.run(tmp_path)
    assert len(number_of(tmp_path, captures)) == 4
    assert len(captures.numbers(tmp_path)) == 8
    shutil.rmtree(next(tmp_path.glob("*/_lease")))
    # Nothing is new in the broker's log, and a round captures it all the same.
    assert has_news(bus, lake, tables_of(entity))
    captures.run(tmp_path)
    assert same(lake, tmp_path, MESSAGES)
    assert not has_news(bus, lake, tables_of(entity))


def test_a_round_sees_that_other_tables_are_wanted(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    lake, tables = captures.lake(tmp_path), tables_of(captures.entity)
    captures.run(tmp_path)
    assert not has_news(bus, lake, tables, table_format="delta")
    assert has_news(bus, lake, tables, table_format="iceberg")
    captures.run(tmp_path, **ICEBERG)
    assert not has_news(bus, lake, tables, table_format="iceberg")
    assert has_news(bus, lake, tables, None, "iceberg", f"sqlite:///{tmp_path}/other.db")
    assert has_news(bus, lake, tables, table_format="delta")


def test_an_existing_lake_gets_iceberg_tables_and_loses_them(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    lake, entity = captures.lake(tmp_path), captures.entity
    for first in (1, 5):
        send(bus, entity, first, first + 3)
        captures.run(tmp_path)
    assert not (tmp_path / "iceberg.db").exists()
    captures.run(tmp_path, **ICEBERG)
    assert same(lake, tmp_path, MESSAGES)
    assert lake.manifest().layout == WITH_ICEBERG
    captures.run(tmp_path, table_format="delta")
    assert lake.manifest().layout == TYPED
    assert not (tmp_path / entity / "_iceberg").exists()
    with pytest.raises(NoSuchTableError):
        table_of(tmp_path, entity, MESSAGES)
    assert len(captures.numbers(tmp_path)) == 8


def test_a_subscription_has_a_table_of_outcomes(
    own_server: ServerThread, bus: Client, tmp_path: Path
) -> None:
    bus.create_topic("news.eu")
    bus.create_subscription("news.eu", "billing")
    for entity in ("news.eu", "news.eu/subscriptions/billing"):
        Captures(own_server.connection_string, entity).run(tmp_path, **ICEBERG)
    bus.send_batch("news.eu", [Message(body=b"1")])
    consume(bus, "news.eu/subscriptions/billing")
    for entity in ("news.eu", "news.eu/subscriptions/billing"):
        Captures(own_server.connection_string, entity).run(tmp_path)
    assert rows_of(tmp_path, "news.eu", MESSAGES).num_rows == 1
    assert rows_of(tmp_path, "news.eu/subscriptions/billing", OUTCOMES).num_rows == 1
    bus.delete_topic("news.eu")


@pytest.mark.promise("R9")
def test_files_stay_while_a_snapshot_of_the_last_hour_needs_them(
    captures: Captures, bus: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, entity = captures.lake(tmp_path), captures.entity
    for at in range(9):
        send(bus, entity, 10 * at, 10 * at + 9)
        captures.run(tmp_path, file_size=1, **ICEBERG)
    before = table_of(tmp_path, entity, MESSAGES)
    files = listed(before)
    with monkeypatch.context() as patch:
        # Delta has merged the files, and Iceberg has not.
        patch.setattr(IcebergTables, "_replace", die_at_messages)
        with pytest.raises(Crash):
            captures.run(tmp_path)
    shutil.rmtree(tmp_path / entity / "_lease")
    later = KEEP_MS / 1_000 + 60
    move_time(monkeypatch, later)
    make_old(tmp_path / entity / "messages")
    # Delta's files are an hour old; the snapshot was the current one until now.
    captures.run(tmp_path)
    assert before.scan().to_arrow().num_rows == 90
    assert listed(table_of(tmp_path, entity, MESSAGES)) != files
    move_time(monkeypatch, 2 * later)
    captures.run(tmp_path)
    captures.run(tmp_path)
    left = {path.name for path in (tmp_path / entity / "messages").glob("*.parquet")}
    assert not left & set(files)
    assert same(lake, tmp_path, MESSAGES)


def move_time(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the clock of captures, and of what they write."""

    class Clock:
        @staticmethod
        def time() -> float:
            return time.time() + seconds

    patch.setattr(lake_capture, "_now_ms", lambda: Clock.time() * 1_000)
    patch.setattr(delta_log, "time", Clock)
    patch.setattr("pyiceberg.table.snapshots.time", Clock)


def test_metadata_of_earlier_snapshots_is_deleted(
    captures: Captures, bus: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entity = captures.entity
    for at in range(5):
        send(bus, entity, at, at)
        captures.run(tmp_path, **ICEBERG)
    folder = tmp_path / entity / "_iceberg" / MESSAGES / "metadata"
    stray = folder / "left-m0.avro"
    stray.write_bytes(b"of a commit that was cut off")
    before = {path.name for path in folder.iterdir()}
    make_old(folder)
    move_time(monkeypatch, KEEP_MS / 1_000 + 60)
    captures.run(tmp_path)
    found = table_of(tmp_path, entity, MESSAGES)
    assert len(found.snapshots()) == 1
    assert not stray.exists()
    assert len(before & {path.name for path in folder.iterdir()}) < len(before)
    assert found.scan().to_arrow().num_rows == 5


def test_damaged_metadata_is_made_again(captures: Captures, bus: Client, tmp_path: Path) -> None:
    entity = captures.entity
    send(bus, entity, 1, 4)
    captures.run(tmp_path, **ICEBERG)
    found = table_of(tmp_path, entity, MESSAGES)
    Path(found.metadata_location.removeprefix("file://")).write_bytes(b"")
    send(bus, entity, 5, 6)
    captures.run(tmp_path)
    assert same(captures.lake(tmp_path), tmp_path, MESSAGES)


# Tables that do not fit


def test_formats_that_do_not_exist(captures: Captures, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="'orc': use delta or iceberg"):
        captures.run(tmp_path / "lake", table_format="orc")
    with pytest.raises(InvalidArgument, match="add --table iceberg"):
        captures.run(tmp_path / "lake", catalog="shop")
    with pytest.raises(InvalidArgument, match="cannot have"):
        captures.run(tmp_path / "la#ke", **ICEBERG)
    assert not list(tmp_path.iterdir())


def append(place: Path, entity: str) -> None:
    found = own_catalog(place)
    file = next((place / entity / MESSAGES).glob("*.parquet"))
    shutil.copy(file, place.parent / "mine.parquet")
    found.load_table((entity, MESSAGES)).add_files([f"file://{place.parent}/mine.parquet"])
    found.close()


def delete(place: Path, entity: str) -> None:
    found = own_catalog(place)
    found.load_table((entity, MESSAGES)).delete("sequence_number > 0")
    found.close()


def add_column(place: Path, entity: str) -> None:
    found = own_catalog(place)
    with found.load_table((entity, MESSAGES)).update_schema() as update:
        update.add_column("extra", LongType())
    found.close()


def change_partitions(place: Path, entity: str) -> None:
    found = own_catalog(place)
    with found.load_table((entity, MESSAGES)).update_spec() as update:
        update.remove_field("enqueued_time_day")
    found.close()


def remove_names(place: Path, entity: str) -> None:
    found = own_catalog(place)
    with found.load_table((entity, MESSAGES)).transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    found.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (append, "is append"),
        (delete, "is delete"),
        (add_column, "column 'extra'"),
        (change_partitions, "partitions are different"),
        (remove_names, "lacks the property schema.name-mapping.default"),
    ],
)
def test_a_table_that_another_program_wrote_to(
    captures: Captures, bus: Client, tmp_path: Path, change: Any, words: str
) -> None:
    entity = captures.entity
    send(bus, entity, 1, 4)
    captures.run(tmp_path, **ICEBERG)
    send(bus, entity, 5, 8)
    change(tmp_path, entity)
    before = contents(tmp_path)
    with pytest.raises(LakeFailed, match=words):
        captures.run(tmp_path)
    assert contents(tmp_path) == before
    register(captures.lake(tmp_path))
    captures.run(tmp_path)
    assert same(captures.lake(tmp_path), tmp_path, MESSAGES)
    assert len(number_of(tmp_path, captures)) == 8


def test_a_program_that_writes_during_a_capture(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    entity = captures.entity
    send(bus, entity, 1, 8)
    captures.run(tmp_path, **ICEBERG)
    send(bus, entity, 9, 16)
    told = 0

    def write(done: object) -> None:
        nonlocal told
        told += 1
        if told == 2:
            append(tmp_path, entity)

    with pytest.raises(LakeFailed, match="is append"):
        captures.run(tmp_path, most=2, on_progress=write)
    register(captures.lake(tmp_path))
    shutil.rmtree(tmp_path / entity / "_lease", ignore_errors=True)
    captures.run(tmp_path)
    assert len(number_of(tmp_path, captures)) == 16


def test_a_table_of_another_program(captures: Captures, bus: Client, tmp_path: Path) -> None:
    place = tmp_path / "lake"
    place.mkdir()
    catalog = own_catalog(place)
    catalog.create_namespace(captures.entity)
    schema = pa.schema([("id", pa.int64())])
    catalog.create_table((captures.entity, MESSAGES), schema, location=f"file://{tmp_path}/mine")
    catalog.close()
    before = contents(place)
    with pytest.raises(LakeFailed, match="is another table"):
        captures.run(place, **ICEBERG)
    assert contents(place) == before


def test_a_lake_of_an_earlier_state_is_behind_its_tables(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, captures.entity, 1, 4)
    captures.run(tmp_path, **ICEBERG)
    shutil.copytree(tmp_path / captures.entity / MESSAGES, tmp_path / "backup")
    send(bus, captures.entity, 5, 8)
    captures.run(tmp_path)
    lake = captures.lake(tmp_path)
    with LakeWriter(lake) as writer:
        shutil.rmtree(tmp_path / captures.entity / MESSAGES)
        (tmp_path / "backup").rename(tmp_path / captures.entity / MESSAGES)
        with (
            IcebergTables(lake, "") as tables,
            pytest.raises(LakeFailed, match="restored to an earlier state"),
        ):
            tables.catch_up({MESSAGES: DeltaLog(lake.store, MESSAGES)})
        assert writer.iceberg is None


# Moved lakes


@pytest.mark.promise("R9")
def test_a_moved_lake_is_registered_again(captures: Captures, bus: Client, tmp_path: Path) -> None:
    place, new = tmp_path / "lake", tmp_path / "a new lake"
    uri = f"sqlite:///{tmp_path}/shared.db"
    send(bus, captures.entity, 1, 4)
    captures.run(place, catalog=uri, **ICEBERG)
    place.rename(new)
    send(bus, captures.entity, 5, 8)
    before = contents(new)
    with pytest.raises(LakeFailed, match="run onibus pipeline register if the lake was moved"):
        captures.run(new)
    assert contents(new) == before
    names = register(captures.lake(new))
    assert names == [f"{captures.entity}.{table}" for table in TABLES]
    catalog = load_catalog("onibus", uri=uri)
    found = catalog.load_table((captures.entity, MESSAGES))
    assert found.scan().to_arrow().num_rows == 4
    captures.run(new)
    assert found.refresh().scan().to_arrow().num_rows == 8
    catalog.close()


@pytest.mark.parametrize("copied", [False, True])
def test_a_moved_lake_has_its_own_catalog_with_it(
    captures: Captures, bus: Client, tmp_path: Path, copied: bool
) -> None:
    place, new = tmp_path / "lake", tmp_path / "a new lake"
    send(bus, captures.entity, 1, 4)
    captures.run(place, **ICEBERG)
    (shutil.copytree if copied else shutil.move)(place, new)
    register(captures.lake(new))
    assert same(captures.lake(new), new, MESSAGES)
    assert str(new) in table_of(new, captures.entity, MESSAGES).metadata_location
    # A capture finds it out as well.
    (shutil.copytree if copied else shutil.move)(new, tmp_path / "newer")
    send(bus, captures.entity, 5, 8)
    captures.run(tmp_path / "newer")
    assert len(number_of(tmp_path / "newer", captures)) == 8
    assert same(captures.lake(tmp_path / "newer"), tmp_path / "newer", MESSAGES)


def test_a_copy_needs_another_catalog(captures: Captures, bus: Client, tmp_path: Path) -> None:
    place, copy, uri = tmp_path / "lake", tmp_path / "copy", f"sqlite:///{tmp_path}/shared.db"
    send(bus, captures.entity, 1, 4)
    captures.run(place, catalog=uri, **ICEBERG)
    shutil.copytree(place, copy)
    before = contents(copy)
    with pytest.raises(LakeFailed, match="use another catalog"):
        captures.run(copy, new_identity=True)
    assert contents(copy) == before
    captures.run(copy, new_identity=True, catalog=f"sqlite:///{tmp_path}/other.db", **ICEBERG)
    send(bus, captures.entity, 5, 8)
    for one in (place, copy):
        captures.run(one)
        assert len(captures.numbers(one)) == 8


def test_a_lake_is_registered_in_another_catalog(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path}/shared.db"
    send(bus, captures.entity, 1, 4)
    captures.run(tmp_path / "lake", **ICEBERG)
    register(captures.lake(tmp_path / "lake"), uri)
    catalog = load_catalog("onibus", uri=uri)
    assert catalog.load_table((captures.entity, MESSAGES)).scan().to_arrow().num_rows == 4
    catalog.close()
    # The own catalog has nothing any more, and captures go to the new one.
    with pytest.raises(NoSuchTableError):
        table_of(tmp_path / "lake", captures.entity, MESSAGES)
    with pytest.raises(LakeFailed, match="is not of"):
        captures.run(tmp_path / "other", catalog=uri, **ICEBERG)


def test_a_lake_without_iceberg_tables_is_not_registered(
    captures: Captures, tmp_path: Path
) -> None:
    with pytest.raises(InvalidOperation, match="no Iceberg tables"):
        register(captures.lake(tmp_path))
    captures.run(tmp_path)
    with pytest.raises(InvalidOperation, match="no Iceberg tables"):
        register(captures.lake(tmp_path))


@pytest.mark.promise("R9")
def test_times_after_the_year_9999(captures: Captures, bus: Client, tmp_path: Path) -> None:
    """A sender can give them: Service Bus's longest time to live is 10,675,199 days."""
    bus.send(captures.entity, Message(body=b"1", time_to_live_ms=922_337_203_685_477))
    bus.schedule(captures.entity, Message(body=b"2"), 253_402_300_800_000)
    captures.run(tmp_path, **ICEBERG)
    rows = rows_of(tmp_path, captures.entity, MESSAGES)
    assert sorted(rows.column("body").to_pylist()) == [b"1", b"2"]
    scheduled = rows.column("scheduled_enqueue_time").cast(pa.int64()).to_pylist()
    assert 253_402_300_800_000_000 in scheduled


def test_a_table_of_an_earlier_capture_gets_todays_properties(
    captures: Captures, bus: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs that drop a table or expire its snapshots leave files that Delta has."""
    with monkeypatch.context() as patched:
        patched.setattr(lake_iceberg, "_properties", lambda table: {})
        captures.run(tmp_path, **ICEBERG)
    assert "gc.enabled" not in properties_of(tmp_path, captures.entity, MESSAGES)
    send(bus, captures.entity, 1, 3)
    captures.run(tmp_path)
    assert properties_of(tmp_path, captures.entity, MESSAGES)["gc.enabled"] == "false"
    assert rows_of(tmp_path, captures.entity, MESSAGES).num_rows == 3


def test_a_queue_with_the_name_of_the_catalog(
    own_server: ServerThread, bus: Client, tmp_path: Path
) -> None:
    for name in ("iceberg.db", "Iceberg.db-journal"):
        bus.create_queue(name)
        send(bus, name, 1, 3)
        captures = Captures(own_server.connection_string, name)
        captures.run(tmp_path, **ICEBERG)
        folder = captures.lake(tmp_path).folder
        assert same(captures.lake(tmp_path), tmp_path, MESSAGES)
        assert table_of(tmp_path, folder, MESSAGES).scan().to_arrow().num_rows == 3
        bus.delete_queue(name)
    assert (tmp_path / "iceberg.db").is_file()
