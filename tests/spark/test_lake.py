"""Files of the lake: their names, what a repeated or unfinished write leaves, and merging."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onibus.core.errors import EntityReplaced
from onibus.spark.lake import MESSAGES, Lake, by_date

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def rows(first: int, last: int, *, partition: int = 0, step: timedelta = timedelta()) -> pa.Table:
    """Rows of a partition, the first at noon and each some time after the one before."""
    numbers = range(first, last + 1)
    return pa.table(
        {
            "sequence_number": pa.array(numbers, pa.int64()),
            "partition": pa.array([partition] * len(numbers), pa.int32()),
            "enqueued_time": pa.array(
                [NOON + (number - first) * step for number in numbers], pa.timestamp("us", "UTC")
            ),
        }
    )


def put(lake: Lake, table: pa.Table, attempt: str = "0") -> None:
    for covered, part in by_date(MESSAGES, table):
        lake.write(MESSAGES, part, covered, attempt)


def numbers_in(lake: Lake) -> list[int]:
    return [
        number
        for one in sorted(lake.files(MESSAGES), key=lambda one: one.first)
        for number in pq.ParquetFile(one.path).read().column("sequence_number").to_pylist()
    ]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path), "orders/eu")


def test_names_show_entity_date_partition_and_numbers(lake: Lake, tmp_path: Path) -> None:
    put(lake, rows(5, 9, partition=3))
    found = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.parquet")]
    name = "0000000000000000005-0000000000000000009.parquet"
    assert found == [Path("orders%2Feu/messages/date=2026-05-01/partition=03") / name]


def test_a_day_has_files_of_its_own(lake: Lake) -> None:
    put(lake, rows(1, 4, step=timedelta(hours=8)))
    assert [(one.date, one.first, one.last) for one in lake.files(MESSAGES)] == [
        ("2026-05-01", 1, 2),
        ("2026-05-02", 3, 4),
    ]


def test_a_range_written_again_is_there_once(lake: Lake) -> None:
    put(lake, rows(1, 3), attempt="1")
    put(lake, rows(1, 3), attempt="2")
    assert numbers_in(lake) == [1, 2, 3]


def test_what_an_unfinished_batch_left_behind_a_hole_goes(lake: Lake) -> None:
    put(lake, rows(1, 3))
    put(lake, rows(4, 6))
    put(lake, rows(9, 12))
    put(lake, rows(2, 3, partition=1))
    assert lake.resume_at(MESSAGES) == {0: 7, 1: 4}
    assert sorted(numbers_in(lake)) == [1, 2, 2, 3, 3, 4, 5, 6]


def test_small_files_become_larger_ones_with_the_same_rows(lake: Lake) -> None:
    for first in range(1, 41, 4):
        put(lake, rows(first, first + 3))
    before, after = lake.compact(MESSAGES, 1 << 20)
    assert (before, after) == (10, 1)
    assert [(one.first, one.last) for one in lake.files(MESSAGES)] == [(1, 40)]
    assert numbers_in(lake) == list(range(1, 41))


def test_few_files_of_the_newest_day_wait_for_more(lake: Lake) -> None:
    put(lake, rows(1, 2))
    put(lake, rows(3, 4))
    assert lake.compact(MESSAGES, 1 << 20) == (0, 0)
    put(lake, rows(5, 6, step=timedelta(days=1)))
    assert lake.compact(MESSAGES, 1 << 20) == (3, 1)


def test_a_merge_that_was_cut_off_shows_no_row_twice(lake: Lake) -> None:
    for first in range(1, 41, 4):
        put(lake, rows(first, first + 3))
    put(lake, rows(1, 40))
    assert numbers_in(lake) == list(range(1, 41))
    # A batch that is repeated after the merge adds nothing either.
    lake.tidy(MESSAGES)
    put(lake, rows(37, 40))
    assert numbers_in(lake) == list(range(1, 41))


def test_nothing_is_merged_over_a_hole(lake: Lake) -> None:
    for first in (*range(1, 41, 4), *range(45, 85, 4)):
        put(lake, rows(first, first + 3))
    assert lake.compact(MESSAGES, 1 << 20) == (20, 2)
    # What was missing is written at last, and stays.
    put(lake, rows(41, 44))
    lake.tidy(MESSAGES)
    assert numbers_in(lake) == list(range(1, 85))


def test_files_are_no_larger_than_asked(lake: Lake) -> None:
    for first in range(1, 41, 4):
        put(lake, rows(first, first + 3))
    five = sum(one.size for one in lake.files(MESSAGES)[:5])
    # The five that are left may still get company, that day being the newest.
    assert lake.compact(MESSAGES, five) == (5, 1)
    assert [(one.first, one.last) for one in lake.files(MESSAGES)][:2] == [(1, 20), (21, 24)]


def test_a_lake_belongs_to_one_entity(lake: Lake) -> None:
    lake.belong(7)
    lake.belong(7)
    with pytest.raises(EntityReplaced, match="incarnation 7, now 8"):
        lake.belong(8)
