"""The Delta log of a lake: what other programs see, what they may do, and what is refused (R9)."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from onibus import Message
from onibus.client import Client
from onibus.core.errors import InvalidOperation
from onibus.spark import delta_log
from onibus.spark.delta_log import DeltaLog
from onibus.spark.delta_schema import evolved, schema_string, statistics
from onibus.spark.jobs.audit import FAILED, audit
from onibus.spark.lake import KEEP_MS, MESSAGES, OUTCOMES, Lake
from onibus.spark.lake_files import LakeBusy, LakeFailed, LakeFiles
from tests.spark.lake_helpers import Captures, consume, make_old, send


def seen(lake: Lake, table: str = MESSAGES) -> list[int]:
    """The numbers that another program reads."""
    column = "sequence_number" if table == MESSAGES else "number"
    return DeltaTable(lake.address(table)).to_pyarrow_table(columns=[column])[column].to_pylist()


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.promise("R9")
def test_another_program_sees_each_row_once_after_every_step(
    captures: Captures, bus: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits, checkpoints, merges and vacuum: deltalake and we list the same files."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_EACH", 3)
    lake, entity = captures.lake(tmp_path), captures.entity
    table = lake.address(MESSAGES)
    for first in range(1, 60, 6):
        send(bus, entity, first, first + 5)
        captures.run(tmp_path, most=2)
        other = DeltaTable(table)
        listed = {one.name.rpartition("/")[2] for one in lake.files(MESSAGES)}
        assert {Path(one).name for one in other.file_uris()} == listed
        assert other.version() == lake.log(MESSAGES).version
        assert sorted(seen(lake)) == list(range(1, first + 6))
        identity = lake.identity()
        assert other.transaction_version(f"{identity}-0") == first + 5
        if first % 12 == 1:
            make_old(tmp_path)
    consume(bus, entity)
    captures.run(tmp_path)
    assert sorted(seen(lake, OUTCOMES)) == list(range(1, 61))
    names = {path.name for path in Path(table, "_delta_log").iterdir()}
    assert any(name.endswith(".checkpoint.parquet") for name in names)
    assert f"{0:020}.json" not in names, "a checkpoint has it"
    # The checkpoint alone leads to the same files.
    newest = lake.log(MESSAGES)
    newest.checkpoint()
    assert lake.log(MESSAGES).files() == newest.files()
    assert sorted(seen(lake)) == list(range(1, 61))


@pytest.mark.promise("R9")
def test_files_that_were_merged_stay_for_readers_that_began_before(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, captures.entity, 1, 7)
    captures.run(tmp_path, most=1)
    lake = captures.lake(tmp_path)
    before = DeltaTable(lake.address(MESSAGES))
    send(bus, captures.entity, 8, 8)
    done = captures.run(tmp_path, most=1)
    assert (done.merged, len(lake.files(MESSAGES))) == (8, 1)
    make_old(tmp_path)
    # The files are old, but were removed just now.
    captures.run(tmp_path)
    numbers = before.to_pyarrow_table(columns=["sequence_number"])["sequence_number"]
    assert sorted(numbers.to_pylist()) == list(range(1, 8))


@pytest.mark.promise("R9")
def test_statistics_let_readers_skip_files(captures: Captures, bus: Client, tmp_path: Path) -> None:
    send(bus, captures.entity, 1, 6)
    captures.run(tmp_path, most=2)
    table = captures.lake(tmp_path).address(MESSAGES)
    adds = pa.table(DeltaTable(table).get_add_actions(flatten=True)).sort_by("path")
    assert adds["min.sequence_number"].to_pylist() == [1, 3, 5]
    assert adds["max.sequence_number"].to_pylist() == [2, 4, 6]
    assert adds["num_records"].to_pylist() == [2, 2, 2]
    rows = DeltaTable(table).to_pyarrow_table()
    times = rows.sort_by("sequence_number")["enqueued_time"].to_pylist()
    assert adds["min.enqueued_time"].to_pylist() == times[::2]
    assert adds["max.enqueued_time"].to_pylist() == times[1::2]


@pytest.mark.promise("R9")
def test_columns_without_statistics_do_not_hide_rows(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    """Even if an earlier version did not say which columns have them."""
    bus.send(captures.entity, Message(body=b"x", message_id="one", subject="a"))
    captures.run(tmp_path)
    table = captures.lake(tmp_path).address(MESSAGES)
    wanted = pads.field("message_id") == "one"
    assert DeltaTable(table).to_pyarrow_dataset().to_table(filter=wanted).num_rows == 1
    for commit in Path(table, "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in commit.read_text().splitlines()]
        for line in lines:
            line.get("commitInfo", {}).pop("onibusDigest", None)
            if "metaData" in line:
                line["metaData"]["configuration"] = {}
        commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert DeltaTable(table).to_pyarrow_dataset().to_table(filter=wanted).num_rows == 0
    captures.run(tmp_path)
    assert DeltaTable(table).to_pyarrow_dataset().to_table(filter=wanted).num_rows == 1


@pytest.mark.promise("R9")
@pytest.mark.parametrize("change", ["append", "delete", "column", "overwrite"])
def test_a_table_that_another_program_changed_is_refused_and_nothing_is_written(
    captures: Captures, bus: Client, tmp_path: Path, change: str
) -> None:
    send(bus, captures.entity, 1, 4)
    captures.run(tmp_path, most=2)
    lake = captures.lake(tmp_path)
    table = DeltaTable(lake.address(MESSAGES))
    if change == "delete":
        table.delete("sequence_number <= 2")
    elif change == "column":
        table.alter.add_columns(schema_field("extra"))
    elif change == "append":
        write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append")
    else:
        write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="overwrite")
    send(bus, captures.entity, 5, 5)
    before = content(tmp_path)
    with pytest.raises(LakeFailed, match=r"another program has changed the table .*messages"):
        captures.run(tmp_path)
    assert content(tmp_path) == before
    source = {"connection": captures.options.server, "entity": captures.entity}
    verdict = audit(no_spark, source, str(tmp_path), with_broker=False)
    assert verdict.verdict == FAILED
    assert any("another program" in word for one in verdict.findings for word in one.examples)


def schema_field(name: str) -> list:
    """A new column, as deltalake takes it."""
    from deltalake import Field
    from deltalake.schema import PrimitiveType

    return [Field(name, PrimitiveType("string"))]


def no_spark() -> Any:
    raise AssertionError("a small lake needs no Spark")


@pytest.mark.promise("R9")
def test_upkeep_by_another_program_is_harmless(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, captures.entity, 1, 4)
    captures.run(tmp_path, most=1)
    lake = captures.lake(tmp_path)
    table = DeltaTable(lake.address(MESSAGES))
    table.create_checkpoint()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    send(bus, captures.entity, 5, 6)
    captures.run(tmp_path)
    assert sorted(seen(lake)) == captures.numbers(tmp_path) == [1, 2, 3, 4, 5, 6]
    # And while a capture has the log open.
    log = lake.log(MESSAGES)
    Path(lake.address(MESSAGES), "stray.parquet").write_bytes(b"")
    table = DeltaTable(lake.address(MESSAGES))
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert table.version() > log.version
    log.commit("WRITE", reached={"x-0": 6})
    assert log.version == lake.log(MESSAGES).version == table.version() + 1
    assert sorted(seen(lake)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.promise("R9")
def test_one_of_two_commits_from_one_version_counts(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, captures.entity, 1, 4)
    captures.run(tmp_path)
    lake = captures.lake(tmp_path)
    one, other = lake.log(MESSAGES), lake.log(MESSAGES)
    one.commit("WRITE", reached={"x-0": 4})
    with pytest.raises(LakeBusy, match="another process has committed version 2"):
        other.commit("WRITE", reached={"x-0": 4})
    [row] = one.files()
    with pytest.raises(LakeFailed, match="is registered"):
        one.commit("WRITE", [row], reached={"x-0": 4})


@pytest.mark.promise("R9")
@pytest.mark.parametrize("damage", ["empty", "torn", "gap", "log", "earlier"])
def test_a_damaged_log_is_named_and_nothing_is_written(
    captures: Captures, bus: Client, tmp_path: Path, damage: str
) -> None:
    send(bus, captures.entity, 1, 4)
    captures.run(tmp_path, most=1)
    log = tmp_path / captures.entity / MESSAGES / "_delta_log"
    newest, older = log / f"{3:020}.json", log / f"{1:020}.json"
    if damage == "empty":
        newest.write_bytes(b"")
    elif damage == "torn":
        newest.write_bytes(newest.read_bytes()[:-20])
    elif damage == "log":
        shutil.rmtree(log)
    else:
        (older if damage == "gap" else newest).unlink()
    send(bus, captures.entity, 5, 5)
    before = content(tmp_path)
    with pytest.raises(LakeFailed, match=r"(?i)_delta_log.*restore"):
        captures.run(tmp_path)
    with pytest.raises(LakeFailed, match=r"(?i)_delta_log.*restore"):
        captures.lake(tmp_path).files(MESSAGES)
    assert content(tmp_path) == before


@pytest.mark.promise("R9")
def test_a_log_that_is_cleaned_while_it_is_read(
    captures: Captures, bus: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture deletes commits that a reader has just listed: it begins with the checkpoint."""
    send(bus, captures.entity, 1, 4)
    captures.run(tmp_path, most=1)
    lake, sizes = captures.lake(tmp_path), LakeFiles.sizes
    cleaned: list[bool] = []

    def sizes_and_clean(self: LakeFiles, folder: str) -> dict[str, int]:
        found = sizes(self, folder)
        if folder.endswith("_delta_log") and not cleaned:
            cleaned.append(True)
            log = DeltaLog(self, MESSAGES)
            log.checkpoint()
            log.clean(time.time() * 1_000 + KEEP_MS)
        return found

    monkeypatch.setattr(LakeFiles, "sizes", sizes_and_clean)
    assert len(lake.files(MESSAGES)) == 4
    assert len(list((tmp_path / captures.entity / MESSAGES / "_delta_log").iterdir())) == 3


@pytest.mark.promise("R9")
def test_a_lake_of_another_entity_is_refused_and_nothing_is_written(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, captures.entity, 1, 2)
    captures.run(tmp_path)
    other = f"{captures.entity}-other"
    bus.create_queue(other)
    (tmp_path / captures.entity).rename(tmp_path / other)
    before = content(tmp_path)
    with pytest.raises(LakeFailed, match=f"is a lake of '{captures.entity}', not of '{other}'"):
        Captures(captures.options.server, other).run(tmp_path)
    assert content(tmp_path) == before


def test_columns_are_added_and_never_changed() -> None:
    first = schema_string(pa.schema({"n": pa.int64(), "body": pa.binary()}))
    more = schema_string(pa.schema({"body": pa.binary(), "x": pa.map_(pa.string(), pa.string())}))
    both = json.loads(evolved(first, more, "t"))["fields"]
    assert [one["name"] for one in both] == ["n", "body", "x"]
    fewer = schema_string(pa.schema({"n": pa.int64()}))
    assert evolved(first, fewer, "t") == first
    decoded = schema_string(pa.schema({"body": pa.struct({"total": pa.float64()})}))
    with pytest.raises(InvalidOperation, match=r"'body' of t is binary, not struct<total double>"):
        evolved(first, decoded, "t")
    with pytest.raises(InvalidOperation, match="which a lake cannot have"):
        schema_string(pa.schema({"n": pa.uint64()}))


def test_statistics_of_columns_with_and_without_values() -> None:
    rows = pa.table({"a": pa.array([3, None, 5], pa.int64()), "b": pa.nulls(3, pa.int64()),
                     "c": ["x", "y", None]})  # fmt: skip
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=2)
    told = json.loads(statistics(pq.read_metadata(pa.BufferReader(sink.getvalue())), "abc"))
    assert told == {
        "numRecords": 3,
        "minValues": {"a": 3},
        "maxValues": {"a": 5},
        "nullCount": {"a": 1, "b": 3},
    }
