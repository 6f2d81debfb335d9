"""Operators on DataFrames: what each one gives, that streams give the same, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from onibus.core.errors import InvalidArgument
from onibus.core.path.route import partition_of
from onibus.core.settings import QueueSettings
from onibus.spark import operators
from onibus.spark.operators import Arrival
from tests.spark.operator_helpers import in_stream
from tests.timeline.test_partners import LIMIT, START, at_once
from tests.timeline.test_partners import Step as PartnerStep

AT = Arrival("at", "row")


def frame_of(spark: SparkSession, **columns: list[Any]) -> DataFrame:
    """Return rows that come a second apart, unless they say when."""
    count = len(next(iter(columns.values())))
    columns.setdefault("at", [START + 1_000 * at for at in range(count)])
    return spark.createDataFrame(pa.table({"row": list(range(count))} | columns))


def pairs(rows: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in rows.collect())


@pytest.mark.promise("D2", "D3", "D5")
def test_duplicates_by_id_by_id_and_key_and_by_content(spark: SparkSession) -> None:
    rows = frame_of(
        spark,
        message_id=["a", "b", "a", "a", "b", "a"],
        session_id=["s", "s", "t", None, "s", "s"],
        body=[b"1", b"1", b"2", b"1", b"2", b"3"],
    )
    by_id = operators.deduplicate(rows, 3_000, arrival=AT)
    assert pairs(by_id.dropped, "row", "duplicate_of") == [(2, 0), (5, 3)]
    assert pairs(by_id.kept, "row") == [(0,), (1,), (3,), (4,)]
    by_key = operators.deduplicate(rows, by="id-and-key", arrival=AT)
    assert pairs(by_key.dropped, "row", "duplicate_of") == [(4, 1), (5, 0)]
    by_content = operators.deduplicate(rows, by="content", arrival=AT)
    assert pairs(by_content.dropped, "row", "duplicate_of") == [(1, 0), (3, 0), (4, 2)]


@pytest.mark.promise("P4", "S2", "S4")
def test_partitions_numbers_and_times(spark: SparkSession) -> None:
    ids = [f"id-{at % 40}-ü" for at in range(200)]
    rows = frame_of(spark, message_id=ids).repartition(4)
    done = operators.stamp(operators.assign_partitions(rows, 16, arrival=AT), arrival=AT)
    counted: dict[int, int] = {}
    for row in sorted(done.collect(), key=lambda one: one["row"]):
        index = partition_of(row["message_id"], 16)
        counted[index] = counted.get(index, 0) + 1
        assert row["partition"] == index
        assert row["sequence_number"] == index << 48 | counted[index]
        assert round(row["enqueued_time"].timestamp() * 1000) == row["at"]


def test_rows_that_wait_for_their_time_and_rows_that_expire(spark: SparkSession) -> None:
    rows = frame_of(spark, due=[None, START, START + 9_000], time_to_live_ms=[1, 5_000, None])
    held = operators.hold_until_due(rows, "due", arrival=AT)
    assert pairs(held, "row", "waiting") == [(0, False), (1, False), (2, True)]
    late = operators.hold_until_due(rows, "due", arrival=AT, as_of=START + 9_000)
    available = [(row["row"], row["available_time"].timestamp()) for row in late.collect()]
    assert sorted(available) == [(0, START / 1000), (1, START / 1000 + 1), (2, START / 1000 + 9)]
    gone = operators.expire(rows, enqueued="at", as_of=START + 6_000)
    assert pairs(gone.expired, "row") == [(0,), (1,)]
    assert pairs(gone.live, "row") == [(2,)]
    soon = operators.expire(rows, enqueued="at", as_of=START, default_time_to_live_ms=1)
    assert pairs(soon.expired, "row") == []


@pytest.mark.promise("L1", "L2")
def test_partners_in_a_batch_and_in_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    steps: list[PartnerStep] = [
        ("a", "payment", "shipment"),
        ("a", "order", "payment"),
        ("b", "order", "payment"),
        ("a", None, "order"),
        ("c", None, "order"),
        ("b", "payment", None),
        ("c", "order", None),
    ]
    times = [START + at * LIMIT // 4 for at in range(len(steps))]
    expected = sorted(
        (row, time, outcome) for row, time, outcome in at_once(steps, times, times[-1])
    )
    workflows, needs, gives = (list(column) for column in zip(*steps, strict=True))
    columns = {"workflow": workflows, "needs": needs, "gives": gives, "at": times}
    table = pa.table({"row": list(range(len(steps)))} | columns)

    def held(rows: DataFrame) -> DataFrame:
        return operators.hold_for_partner(
            rows, workflow="workflow", needs="needs", gives="gives", limit_ms=LIMIT, arrival=AT
        )

    def told(rows: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
        return sorted(
            (row["row"], round(row["released_time"].timestamp() * 1000), row["partner"])
            for row in rows
        )

    batch = held(spark.createDataFrame(table)).collect()
    assert told([row.asDict() for row in batch]) == expected
    assert told(in_stream(spark, table, [3], held, tmp_path)) == expected


def test_deduplication_in_a_stream_equals_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    ids = [f"id-{at * at % 37}" for at in range(300)]
    at = [START + 100 * at for at in range(300)]
    table = pa.table({"row": list(range(300)), "message_id": ids, "at": at})

    def dropped(rows: DataFrame) -> DataFrame:
        return operators.deduplicate(rows, 2_000, arrival=AT).rows

    batch = [row.asDict() for row in dropped(spark.createDataFrame(table)).collect()]
    stream = in_stream(spark, table, [150], dropped, tmp_path)
    assert sorted(stream, key=lambda row: row["row"]) == sorted(batch, key=lambda row: row["row"])
    assert sum(row["duplicate_of"] is not None for row in batch) > 50


@pytest.mark.parametrize("nested", [False, True])
def test_values_of_all_types_leave_a_stream_as_they_came(
    spark: SparkSession, tmp_path: Path, nested: bool
) -> None:
    kinds: dict[str, tuple[pa.DataType, Any]] = {
        "row": (pa.int64(), 0),
        "at": (pa.timestamp("us", tz="UTC"), datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=UTC)),
        "message_id": (pa.string(), "ä"),
        "whole": (pa.int64(), 2**62 + 1),
        "small": (pa.int8(), -1),
        "real": (pa.float64(), 0.1),
        "exact": (pa.decimal128(38, 3), Decimal("12345678901234567890.125")),
        "truth": (pa.bool_(), True),
        "day": (pa.date32(), date(1969, 12, 31)),
        "local": (pa.timestamp("us"), datetime(2026, 1, 2, 3, 4, 5, 1)),
        "body": (pa.binary(), b"\0" * 300_000),
    }
    if nested:
        kinds["map"] = (pa.map_(pa.string(), pa.int64()), {"a": 2**62 + 1})
        kinds["list"] = (pa.list_(pa.string()), ["a", None])
    full = {name: value for name, (_, value) in kinds.items()}
    bare = dict.fromkeys(full) | {"at": full["at"]}
    given = [full, *({**bare, "row": row, "message_id": f"{row}"} for row in range(1, 40))]
    lists = [one | {"map": list(one["map"].items())} if one.get("map") else one for one in given]
    schema = pa.schema([(name, kind) for name, (kind, _) in kinds.items()])
    table = pa.Table.from_pylist(lists, schema=schema)
    rows = in_stream(
        spark, table, [20], lambda rows: operators.deduplicate(rows, arrival=AT).kept, tmp_path
    )
    for row in rows:
        # Spark gives moments in the local zone of this process.
        row["at"] = row["at"].astimezone(UTC)
        row["body"] = None if row["body"] is None else bytes(row["body"])
    assert sorted(rows, key=lambda row: row["row"]) == given


def test_columns_that_are_wrong_are_refused_before_anything_runs(spark: SparkSession) -> None:
    rows = frame_of(spark, message_id=["a"], number=[1], sequence_number=[1])
    settings = QueueSettings()
    for message, refused in {
        "no column 'arrival_time'": lambda: operators.deduplicate(rows),
        "column 'number' is bigint": lambda: operators.deduplicate(
            rows, arrival=AT, message_id="number"
        ),
        "no column 'body'": lambda: operators.deduplicate(rows, by="content", arrival=AT),
        "by is 'name'": lambda: operators.deduplicate(rows, by="name", arrival=AT),
        "already have sequence_number": lambda: operators.enqueue(rows, settings, arrival=AT),
        "use 1 to": lambda: operators.assign_partitions(rows, 0, arrival=AT),
        "no default_time_to_live_ms": lambda: operators.expire(rows, enqueued="at"),
        "no column 'who'": lambda: operators.hold_for_partner(
            rows, workflow="who", needs="n", gives="g", limit_ms=1, arrival=AT
        ),
    }.items():
        with pytest.raises(InvalidArgument, match=message):
            refused()
    wrong = frame_of(spark, message_id=[1])
    with pytest.raises(InvalidArgument, match="'message_id' is bigint: use string"):
        operators.enqueue(wrong, settings, arrival=AT)


def test_rows_that_are_wrong_are_named(spark: SparkSession) -> None:
    rows = frame_of(spark, message_id=["a", None])
    with pytest.raises(PySparkException, match="a row has no message_id: row='1'"):
        operators.deduplicate(rows, arrival=AT).rows.collect()
    timeless = frame_of(spark, message_id=["a", "b"], at=[START, None])
    with pytest.raises(PySparkException, match="no arrival time: row='1', message_id='b'"):
        operators.deduplicate(timeless, arrival=AT).rows.collect()
