"""The jobs process and deduplicate: their tables, bad rows, restarts, and whose tables they are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from onibus.core.errors import InvalidArgument, InvalidOperation
from onibus.core.settings import QueueSettings, make
from onibus.spark.jobs.deduplicate import deduplicate
from onibus.spark.jobs.process import process
from onibus.spark.operators import Arrival, PartnerRule
from tests.spark.operator_helpers import (
    events,
    forget_commit,
    read_stream,
    table_of,
    write_pieces,
)
from tests.timeline.test_partners import START
from tests.timeline.workloads import compare, make_workload, tell

AT = Arrival("at", "row")
OUTCOMES = {"duplicates": "duplicate", "dead_lettered": "dead-lettered"}


def table(spark: SparkSession, out: Path, name: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.read.parquet(f"{out}/table={name}").collect()]


def all_events(spark: SparkSession, out: Path) -> list[dict[str, Any]]:
    found = []
    for name in ("accepted", "duplicates", "scheduled", "expired", "dead_lettered"):
        found += [{**row, "outcome": OUTCOMES.get(name, name)} for row in table(spark, out, name)]
    return events(found)


def test_a_stream_killed_and_started_again_equals_the_broker(
    spark: SparkSession, tmp_path: Path
) -> None:
    workload = make_workload(3, count=80, kind=8)
    workload.until = workload.times[-1]
    told = asyncio.run(tell(workload))
    source, out = tmp_path / "in", tmp_path / "out"
    rows = table_of(workload)
    write_pieces(rows.slice(0, 50), source, [30])
    schema = spark.read.parquet(str(source)).schema

    def run() -> Any:
        return process(read_stream(spark, source, schema), str(out), workload.settings)

    run()
    forget_commit(out / "_checkpoint")
    write_pieces(rows.slice(50), source / "later", [])
    (source / "later" / "0000.parquet").replace(source / "0009.parquet")
    (source / "later").rmdir()
    done = run()
    compare(workload, told, all_events(spark, out))
    found = all_events(spark, out)
    came = {row["scheduled_number"] for row in found}
    waiting = {row["sequence_number"] for row in found if row["outcome"] == "scheduled"} - came
    assert {row["sequence_number"] for row in table(spark, out, "waiting")} == waiting
    assert done.waiting == len(waiting)
    assert done.accepted > 0


def test_rows_that_no_queue_takes_are_dead_letters_with_a_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = pa.table(
        {
            "row": list(range(7)),
            "at": [START] * 7,
            "message_id": ["good", "x" * 129, "", "d", "e", "f", "good"],
            "session_id": ["s", "s", "s", "s" * 129, "s", "s", "s"],
            "partition_key": ["s", None, None, None, "other", None, None],
            "properties": ['{"a": 1}', None, None, None, None, "[]", None],
            "body": pa.array([b"1", b"2", b"3", b"4", b"5", b"6", b"7"]),
        }
    )
    no_body = (
        rows.slice(0, 1)
        .set_column(0, "row", [[7]])
        .set_column(6, "body", [pa.array([None], pa.binary())])
    )
    frame = spark.createDataFrame(pa.concat_tables([rows, no_body]))
    settings = make({"requires_duplicate_detection": True}, QueueSettings)
    done = process(frame, str(tmp_path / "out"), settings, arrival=AT)
    reasons = {
        row["row"]: (row["reason"], row["description"])
        for row in table(spark, tmp_path / "out", "dead_lettered")
    }
    assert set(reasons) == {1, 2, 3, 4, 5, 7}
    assert "at most 128" in reasons[1][1]
    assert "is empty" in reasons[2][1]
    assert "session_id must be" in reasons[3][1]
    assert reasons[4] == ("invalid-operation", reasons[4][1])
    assert "differ" in reasons[4][1]
    assert "properties must be a JSON" in reasons[5][1]
    assert "body" in reasons[7][1]
    assert (done.accepted, done.duplicates, done.dead_lettered) == (1, 1, 6)


@pytest.mark.promise("L1", "L2")
def test_messages_that_wait_for_each_other(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame(
        pa.table(
            {
                "row": [0, 1, 2, 3],
                "at": [START, START + 1, START + 2, START + 3],
                "session_id": ["a", "b", "a", "c"],
                "needs": ["order", "order", None, "order"],
                "gives": ["payment", "payment", "order", "payment"],
                "time_to_live_ms": [None, None, None, 5],
                "body": [b"payment"] * 4,
            }
        )
    )
    out = tmp_path / "out"
    done = process(
        rows,
        str(out),
        make({"requires_session": True, "enable_partitioning": True}, QueueSettings),
        arrival=AT,
        as_of=START + 1_001,
        partners=PartnerRule("needs", "gives", 1_001),
    )
    ready = sorted((row["release_order"], row["row"], row["partner"], row["session_id"])
                   for row in table(spark, out, "ready"))  # fmt: skip
    assert [one[1:] for one in ready if one[3] == "a"] == [(2, "alone", "a"), (0, "met", "a")]
    assert (done.ready, done.expired) == (2, 1)
    waiting = table(spark, out, "waiting")
    assert [(row["row"], row["waits_for"]) for row in waiting] == [(1, "partner")]


def test_a_batch_is_done_anew_and_tables_of_others_are_left_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.createDataFrame(
        pa.table({"row": [0, 1, 2], "at": [START] * 3, "message_id": ["a", "b", "a"]})
    )
    out = str(tmp_path / "out")
    for _ in range(2):
        done = deduplicate(rows, out, arrival=AT)
        assert (done.clean, done.duplicates) == (2, 1)
    clean = table(spark, tmp_path / "out", "clean")
    assert sorted(row["row"] for row in clean) == [0, 1]
    with pytest.raises(InvalidOperation, match="another window_ms"):
        deduplicate(rows, out, arrival=AT, window_ms=5)
    with pytest.raises(InvalidOperation, match="the job deduplicate"):
        process(rows, out, QueueSettings(), arrival=AT)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(InvalidOperation, match="is not empty"):
        deduplicate(rows, str(tmp_path / "mine"), arrival=AT)
    with pytest.raises(InvalidArgument, match="no columns colour to keep"):
        process(rows, out, QueueSettings(), arrival=AT, keep=["colour"])
    with pytest.raises(InvalidArgument, match="unknown columns: colour"):
        process(rows.withColumnRenamed("message_id", "colour"), out, QueueSettings(), arrival=AT)
