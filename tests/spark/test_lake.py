"""Files of the lake: their names, what a repeated write leaves, and merging."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from onibus.api.log import LogPositions
from onibus.core.errors import EntityReplaced, InvalidOperation
from onibus.spark.lake import MESSAGES, Lake, LakeFile, by_date, folder_of, name_of
from onibus.spark.lake_files import LakeFailed
from onibus.spark.lake_manifest import FileRow

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


def put(lake: Lake, table: pa.Table) -> list[FileRow]:
    return [lake.write(MESSAGES, part, covered).row for covered, part in by_date(MESSAGES, table)]


def ranges(files: list[FileRow]) -> list[tuple[int, int]]:
    return [(row.first, row.last) for row in files]


def merge(lake: Lake, files: list[FileRow], size: int = 1 << 20) -> list[FileRow]:
    """Merge; return the files that there are then."""
    added, removed = lake.merged(MESSAGES, files, size)
    return sorted([*(row for row in files if row not in removed), *added])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path), "orders/eu")


def test_a_file_has_rows_of_one_partition(lake: Lake) -> None:
    # A task of Spark reads small ranges of several partitions.
    several = pa.concat_tables([rows(5, 9, partition=3), rows(7, 7), rows(2, 4, partition=1)])
    files = put(lake, several)
    found = [(row.partition, row.first, row.last, row.rows) for row in files]
    assert found == [(3, 5, 9, 5), (0, 7, 7, 1), (1, 2, 4, 3)]


def test_names_show_entity_date_partition_and_numbers(lake: Lake, tmp_path: Path) -> None:
    [row] = put(lake, rows(5, 9, partition=3))
    [found] = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.parquet")]
    name = f"2026-05-01-p03-0000000000000000005-0000000000000000009-{row.attempt}.parquet"
    assert found == Path("orders@eu/messages") / name
    assert sha256((tmp_path / found).read_bytes()).hexdigest()[:32] == row.attempt[:32]


def test_entities_have_folders_of_their_own() -> None:
    names = ["a/b", "a@b", "a%2Fb", "a%40b", "a/subscriptions/b", "a.b", "a~b", "a"]
    long = "a" * 250
    names += [long, f"{long}b", f"{long}/b", f"{long}/subscriptions/b"]
    folders = {folder_of(name) for name in names}
    assert len(folders) == len(names)
    assert max(map(len, folders)) <= 255
    assert not any("/" in folder or "%2F" in folder for folder in map(folder_of, ["a/b", "a@b"]))


def test_a_day_has_files_of_its_own(lake: Lake) -> None:
    found = put(lake, rows(1, 4, step=timedelta(hours=8)))
    assert [(row.date, row.first, row.last, row.rows) for row in found] == [
        ("2026-05-01", 1, 2, 2),
        ("2026-05-02", 3, 4, 2),
    ]


def test_a_range_written_again_is_another_file_with_the_same_bytes(lake: Lake) -> None:
    table = rows(1, 3)
    [first] = put(lake, table)
    # Cut into other chunks, as by another attempt.
    [again] = put(lake, pa.concat_tables([table.slice(0, 1), table.slice(1)]))
    assert (first.digest, first.stats) == (again.digest, again.stats)
    assert first.attempt != again.attempt
    assert lake.files(MESSAGES) == [], "no file counts before the Delta log lists it"
    [other] = put(lake, rows(1, 3, step=timedelta(seconds=1)))
    assert other.digest != first.digest


def test_small_files_become_larger_ones_with_the_same_rows(lake: Lake) -> None:
    files = [row for first in range(1, 41, 4) for row in put(lake, rows(first, first + 3))]
    [whole] = merge(lake, files)
    assert (whole.first, whole.last, whole.rows) == (1, 40, 40)
    read = lake.read(LakeFile(name_of(MESSAGES, whole), whole))[1]
    assert read.column("sequence_number").to_pylist() == list(range(1, 41))


def test_few_files_of_the_newest_day_wait_for_more(lake: Lake) -> None:
    files = put(lake, rows(1, 2)) + put(lake, rows(3, 4))
    assert merge(lake, files) == files
    files += put(lake, rows(5, 6, step=timedelta(days=1)))
    assert ranges(merge(lake, files)) == [(1, 5), (6, 6)]


def test_nothing_is_merged_over_a_gap(lake: Lake) -> None:
    firsts = (*range(1, 41, 4), *range(45, 85, 4))
    files = [row for first in firsts for row in put(lake, rows(first, first + 3))]
    assert ranges(merge(lake, files)) == [(1, 40), (45, 84)]


def test_files_are_no_larger_than_asked(lake: Lake) -> None:
    files = [row for first in range(1, 41, 4) for row in put(lake, rows(first, first + 3))]
    five = sum(row.size for row in files[:5])
    # The five that are left may still get company, that day being the newest.
    assert ranges(merge(lake, files, five))[:2] == [(1, 20), (21, 24)]


def test_a_lake_belongs_to_one_entity(lake: Lake) -> None:
    mine = LogPositions(entity="q", incarnation=7, log="messages", earliest=(1,), latest=(1,))
    mine = replace(mine, created_ms=5)
    lake.check_entity(mine)
    assert lake.identity() is None
    assert lake.set_identity(mine) == lake.identity()
    lake.check_entity(mine)
    # A recreated entity; one of another server; and a server that does not say when.
    for other in (replace(mine, incarnation=8), replace(mine, created_ms=6)):
        with pytest.raises(EntityReplaced, match="recreated, or is on another server"):
            lake.check_entity(other)
    lake.check_entity(replace(mine, created_ms=0))


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file can grow beyond a few bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("full_disk")
def test_a_file_that_cannot_be_written_leaves_nothing(lake: Lake, tmp_path: Path) -> None:
    for put in (lake.store.put, lake.store.put_new):
        with pytest.raises(LakeFailed, match=r"cannot write .*: .*Check the lake's address"):
            put("_lease/one.json", b"x" * 100, "new")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_lake_that_cannot_be_opened_or_written_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidOperation, match=r"open the lake 'nowhere://x': .*Use a folder"):
        Lake("nowhere://x", "q").about()
    (tmp_path / "file").write_text("")
    with pytest.raises(LakeFailed, match=r"cannot read .*/file: .*Check the lake's address"):
        Lake(str(tmp_path / "file"), "q")
    ends = LogPositions(entity="q", incarnation=1, log="messages", earliest=(), latest=())
    lake = Lake(str(tmp_path / "lake"), "q")
    (tmp_path / "lake").write_text("")
    with pytest.raises(LakeFailed, match=r"cannot write .*/lake/q/entity.json: .*Check the lake"):
        lake.set_identity(ends)
