"""How the audit reads a lake: in this process if the lake is small, otherwise with Spark.

The checks are the same (audit_checks.py). Spark deals files, and buckets of rows with equal keys,
out to its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from onibus.spark import audit_checks as checks
from onibus.spark.audit_checks import Looked
from onibus.spark.lake import Lake, LakeFile

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: A lake with no more rows and bytes than this is read without Spark.
LOCAL_ROWS, LOCAL_BYTES = 2_000_000, 512 << 20
#: About this number of rows is in a bucket.
_BUCKET = 1_000_000
_THREADS = 4

#: A file, and the lake and table that it belongs to.
Place = tuple[Lake, str, LakeFile]


def is_small(places: Sequence[Place]) -> bool:
    """Return whether a lake is read without Spark."""
    rows = sum(max(one.row.rows, 0) for *_, one in places)
    return rows <= LOCAL_ROWS and sum(one.row.size for *_, one in places) <= LOCAL_BYTES


class LocalReading:
    """Reads a lake in this process."""

    def looks(self, places: Sequence[Place], done: Callable[[int], None]) -> list[Looked]:
        """Look at each file; `done` gets the number of files so far."""
        found = []
        with ThreadPoolExecutor(_THREADS) as pool:
            looked = pool.map(lambda one: checks.look(one[0], one[1], one[2].row), places)
            for at, one in enumerate(looked, 1):
                found.append(one)
                done(at)
        return found

    def load(self, messages: Sequence[Place], outcomes: Sequence[Place]) -> None:
        """Read the rows of these files."""
        self._rows = _read(messages, checks.MESSAGE_COLUMNS)
        self._outcomes = _read(outcomes, checks.OUTCOME_COLUMNS)

    def sessions(self) -> pa.Table:
        return checks.sessions(self._rows)

    def duplicates(self, window_ms: int, partitioned: bool) -> pa.Table:
        return checks.duplicates(self._rows, window_ms, partitioned)

    def ends(self, covered: Mapping[int, tuple[int, int]]) -> pa.Table:
        return checks.ends(self._rows, self._outcomes, covered)

    def close(self) -> None:
        """Nothing is held."""


class SparkReading:
    """Reads a lake with Spark."""

    def __init__(self, spark: SparkSession, rows: int) -> None:
        self._spark = spark
        self._buckets = max(rows // _BUCKET, 2)

    def looks(self, places: Sequence[Place], done: Callable[[int], None]) -> list[Looked]:
        if not places:
            return []
        items = [
            (at, lake.place, lake.entity, table, msgspec.json.encode(one.row))
            for at, (lake, table, one) in enumerate(places)
        ]
        kind = "at int, place string, entity string, name string, row binary"
        given = self._spark.createDataFrame(items, kind).repartition(min(len(items), 64))
        found = given.mapInArrow(_looks, "at int, looked binary").collect()
        done(len(found))
        by_place = {at: msgspec.json.decode(bytes(one), type=Looked) for at, one in found}
        return [by_place[at] for at in range(len(places))]

    def load(self, messages: Sequence[Place], outcomes: Sequence[Place]) -> None:
        # Each check reads all rows: these few columns are kept, where they fit.
        self._rows = self._frame(messages, checks.MESSAGE_COLUMNS).persist()
        self._outcomes = self._frame(outcomes, checks.OUTCOME_COLUMNS)

    def _frame(self, places: Sequence[Place], columns: dict[str, pa.DataType]) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(pa.schema(columns))
        if not places:
            return self._spark.createDataFrame([], schema)
        paths = [f"{lake.store.address}/{one.name}" for lake, _, one in places]
        return self._spark.read.schema(schema).parquet(*paths)

    def _bucketed(self, rows: DataFrame, key: str | Column) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        return rows.withColumn("bucket", F.pmod(F.xxhash64(key), F.lit(self._buckets)))

    def sessions(self) -> pa.Table:
        known = self._rows.where("session_id IS NOT NULL")
        return self._grouped(known, "session_id", checks.sessions)

    def duplicates(self, window_ms: int, partitioned: bool) -> pa.Table:
        check = partial(checks.duplicates, window_ms=window_ms, partitioned=partitioned)
        return self._grouped(self._rows.where("message_id IS NOT NULL"), "message_id", check)

    def _grouped(
        self, rows: DataFrame, key: str, check: Callable[[pa.Table], pa.Table]
    ) -> pa.Table:
        # Spark wants a function, not an object that can be called.
        def run(bucket: pa.Table) -> pa.Table:
            return check(bucket)

        grouped = self._bucketed(rows, key).groupBy("bucket")
        return _collected(grouped.applyInArrow(run, checks.PROBLEMS_DDL))

    def ends(self, covered: Mapping[int, tuple[int, int]]) -> pa.Table:
        def run(rows: pa.Table, outcomes: pa.Table) -> pa.Table:
            return checks.ends(rows, outcomes, covered)

        rows = self._rows.select("partition", "sequence_number")
        left = self._bucketed(rows, "sequence_number").groupBy("bucket")
        right = self._bucketed(self._outcomes, "sequence_number").groupBy("bucket")
        return _collected(left.cogroup(right).applyInArrow(run, checks.PROBLEMS_DDL))

    def close(self) -> None:
        """Release what was kept."""
        self._rows.unpersist()


def _looks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Look at files; on a worker."""
    from onibus.spark.lake_manifest import FileRow

    for batch in batches:
        found = [
            msgspec.json.encode(
                checks.look(
                    Lake(one["place"], one["entity"]),
                    one["name"],
                    msgspec.json.decode(one["row"], type=FileRow),
                )
            )
            for one in batch.to_pylist()
        ]
        yield pa.record_batch(
            [batch.column("at"), pa.array(found, pa.binary())], names=["at", "looked"]
        )


def _read(places: Sequence[Place], columns: dict[str, pa.DataType]) -> pa.Table:
    schema = pa.schema(columns)
    found = [schema.empty_table()]
    for lake, _, one in places:
        content = lake.store.read(one.name)
        if content is not None:
            rows = pq.ParquetFile(pa.BufferReader(content)).read(list(columns))
            found.append(rows.select(list(columns)).cast(schema))
    return pa.concat_tables(found)


def _collected(rows: DataFrame) -> pa.Table:
    found = [tuple(row) for row in rows.collect()]
    columns = list(zip(*found, strict=True)) or [()] * len(checks.PROBLEMS)
    arrays = [pa.array(*one) for one in zip(columns, checks.PROBLEMS.types, strict=True)]
    return pa.table(arrays, checks.PROBLEMS)
