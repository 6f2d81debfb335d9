"""The checks of the audit on Arrow tables: the same code for a small lake and for each task.

Checks of files look at one file. Checks of rows look at all rows of a lake, or at those of one
bucket: equal keys are always in one bucket, so that counts of buckets add up. They return tables
with `PROBLEMS`, a few of each kind with an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onibus.spark.delta_schema import differ
from onibus.spark.lake import NUMBERS, OUTCOMES, TIMES, Lake, digest_of, name_of
from onibus.spark.lake_manifest import FileRow

#: How many contradictions of a kind are named.
EXAMPLES = 5
#: What ends a message; dead-lettering only moves it to where it can end once more.
ENDS = ("completed", "expired", "cancelled", "activated", "forwarded", "purged")

PROBLEMS = pa.schema({"check": pa.string(), "count": pa.int64(), "example": pa.string()})
PROBLEMS_DDL = "check string, count long, example string"

SESSIONS = "sessions spread over several partitions, so without one order (P4)"
DUPLICATES = "messages accepted twice inside the window (D1)"
MANY_ENDS = "messages with more than one outcome"
UNKNOWN_ENDS = "outcomes of unknown messages"
#: no finding: how many messages have no end
ENDLESS = "messages without an outcome"

#: The columns that checks of rows read.
MESSAGE_COLUMNS = {
    "sequence_number": pa.int64(),
    "partition": pa.int32(),
    "enqueued_time": pa.timestamp("us", "UTC"),
    "kind": pa.string(),
    "message_id": pa.string(),
    "session_id": pa.string(),
    "partition_key": pa.string(),
    "scheduled_enqueue_time": pa.timestamp("us", "UTC"),
}
OUTCOME_COLUMNS = {
    "partition": pa.int32(),
    "sequence_number": pa.int64(),
    "outcome": pa.string(),
}


class Step(msgspec.Struct, frozen=True, array_like=True):
    """A time that falls from one row to the next: the two numbers and the two times."""

    before: int
    number: int
    time_before_ms: int
    time_ms: int


class Looked(msgspec.Struct, frozen=True):
    """What one file is like."""

    #: empty, or what is wrong with it as a file
    wrong: str = ""
    rows: int = 0
    #: numbers of its range that it does not have, as first and last
    missing: list[tuple[int, int]] = []
    #: numbers that it has twice, or that are not of its range or not in their order
    misplaced: list[int] = []
    back: list[Step] = []
    #: numbers and times of its first and last row
    ends: tuple[int, int, int, int] | None = None


def look(lake: Lake, table: str, row: FileRow) -> Looked:
    """Return what a file that the manifest lists is like."""
    content = lake.store.read(name_of(table, row))
    if content is None:
        return Looked("is missing")
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        wrong = _contradiction(table, row, content, file)
        if wrong:
            # Other checks read the file too: see whether they can.
            wanted = OUTCOME_COLUMNS if table == OUTCOMES else MESSAGE_COLUMNS
            file.read(list(wanted)).select(list(wanted)).cast(pa.schema(wanted))
        rows = file.read([NUMBERS[table], TIMES[table]])
        numbers = rows.column(NUMBERS[table]).to_numpy()
        times = pc.cast(rows.column(TIMES[table]), pa.timestamp("ms", "UTC")).cast(pa.int64())
        return _looked(wrong, row, numbers, times.to_numpy())
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError):
        return Looked("is not valid Parquet")


def _contradiction(table: str, row: FileRow, content: bytes, file: pq.ParquetFile) -> str:
    """Return how a file differs from what its table says of it, in words."""
    if not digest_of(content).startswith(row.digest):
        return "differs from the captured bytes"
    if row.attempt and len(content) != row.size:
        return f"has {len(content):,} bytes, and its table says {row.size:,}"
    if row.attempt and differ(row.stats, file.metadata, (NUMBERS[table], TIMES[table])):
        return "has other statistics than its table says"
    return ""


def _looked(wrong: str, row: FileRow, numbers: np.ndarray, times: np.ndarray) -> Looked:
    highest = np.maximum.accumulate(np.concatenate(([row.first - 1], numbers)))[:-1]
    misplaced = numbers[(numbers <= highest) | (numbers > row.last)]
    inside = np.unique(numbers[(numbers >= row.first) & (numbers <= row.last)])
    bounds = np.concatenate(([row.first - 1], inside, [row.last + 1]))
    at = np.flatnonzero(np.diff(bounds) > 1)
    back = np.flatnonzero(np.diff(times) < 0)
    ends = None
    if len(numbers):
        ends = (int(numbers[0]), int(times[0]), int(numbers[-1]), int(times[-1]))
    return Looked(
        wrong,
        len(numbers),
        [(int(bounds[one]) + 1, int(bounds[one + 1]) - 1) for one in at],
        [int(one) for one in misplaced[:1_000]],
        [
            Step(int(numbers[one]), int(numbers[one + 1]), int(times[one]), int(times[one + 1]))
            for one in back[:1_000]
        ],
        ends,
    )


def problems(check: str, count: int, examples: Iterator[str]) -> pa.Table:
    """Return contradictions of one kind: the first row counts them, each has an example."""
    some = [one for _, one in zip(range(EXAMPLES), examples, strict=False)] if count else []
    counts = [count] + [0] * (len(some) - 1) if some else []
    return pa.table([[check] * len(some), counts, some], schema=PROBLEMS)


def sessions(rows: pa.Table) -> pa.Table:
    """Return sessions in more than one partition."""
    known = rows.filter(pc.is_valid(rows["session_id"])).select(["session_id", "partition"])
    spread = known.group_by("session_id").aggregate([("partition", "count_distinct")])
    spread = spread.filter(pc.greater(spread["partition_count_distinct"], 1))
    return problems(
        SESSIONS,
        spread.num_rows,
        (
            f"session {one['session_id']!r} is in {one['partition_count_distinct']} partitions"
            for one in _named(spread)
        ),
    )


def duplicates(rows: pa.Table, window_ms: int, partitioned: bool) -> pa.Table:
    """Return identities that were accepted twice inside the window."""
    # An activated message repeats the id of its marker, and is not a second one.
    sent = pc.and_(
        pc.and_(pc.is_valid(rows["message_id"]), pc.not_equal(rows["kind"], "copy")),
        pc.or_(pc.equal(rows["kind"], "scheduled"), pc.is_null(rows["scheduled_enqueue_time"])),
    )
    rows = rows.filter(sent)
    key = pc.coalesce(rows["session_id"], rows["partition_key"], rows["message_id"])
    if not partitioned:
        key = pa.nulls(rows.num_rows, pa.string()).fill_null("")
    time = pc.cast(rows["enqueued_time"], pa.int64())
    rows = pa.table(
        {"id": rows["message_id"], "key": key, "us": time, "number": rows["sequence_number"]}
    )
    rows = rows.sort_by([(name, "ascending") for name in ("id", "key", "us", "number")])
    before, after = rows.slice(0, max(rows.num_rows - 1, 0)), rows.slice(1)
    same = pc.and_(pc.equal(before["id"], after["id"]), pc.equal(before["key"], after["key"]))
    near = pc.less(pc.subtract(after["us"], before["us"]), window_ms * 1_000)
    again = after.filter(pc.and_(same, near))
    return problems(
        DUPLICATES,
        again.num_rows,
        (f"{one['id']!r} again as {one['number']}" for one in _named(again)),
    )


def ends(rows: pa.Table, outcomes: pa.Table, covered: Mapping[int, tuple[int, int]]) -> pa.Table:
    """Return messages with several ends, ends without a message, and how many have no end.

    `covered` has the first and the last message of each partition. Messages before that, and
    messages that the next capture adds, may have an end here.
    """
    keys = ["partition", "sequence_number"]
    final = outcomes.filter(pc.is_in(outcomes["outcome"], pa.array(ENDS)))
    grouped = final.group_by(keys).aggregate([("outcome", "count"), ("outcome", "list")])
    which = pc.binary_join(grouped["outcome_list"], ", ")
    grouped = grouped.drop_columns(["outcome_list"]).append_column("which", which)
    many = grouped.filter(pc.greater(grouped["outcome_count"], 1))
    there = rows.select(keys)
    unknown = grouped.join(there, keys, join_type="left anti")
    spans = [covered.get(at, (None, None)) for at in unknown["partition"].to_pylist()]
    number = unknown["sequence_number"]
    inside = pc.and_(
        pc.greater_equal(number, pa.array([first for first, _ in spans], pa.int64())),
        pc.less_equal(number, pa.array([last for _, last in spans], pa.int64())),
    )
    unknown = unknown.filter(pc.fill_null(inside, False))
    endless = there.join(grouped.select(keys), keys, join_type="left anti").num_rows

    def words(found: pa.Table) -> Iterator[str]:
        for one in _named(found):
            yield f"{one['sequence_number']}: {one['which']}"

    return pa.concat_tables(
        [
            problems(MANY_ENDS, many.num_rows, words(many)),
            problems(UNKNOWN_ENDS, unknown.num_rows, words(unknown)),
            pa.table([[ENDLESS], [endless], [""]], schema=PROBLEMS),
        ]
    )


def _named(found: pa.Table) -> list[dict[str, Any]]:
    """Return the first few rows."""
    rows: list[dict[str, Any]] = found.slice(0, EXAMPLES).to_pylist()
    return rows
