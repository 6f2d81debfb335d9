"""Rows for tests of operators: batches, and streams that come file by file."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from onibus.core.arrow_block import SCHEMA
from tests.timeline.workloads import Workload

_TIME = pa.timestamp("us", tz="UTC")
#: When each file is said to be written: a second after the one before.
_TIMES_NS = itertools.count(time.time_ns(), 1_000_000_000)


def table_of(workload: Workload) -> pa.Table:
    """Return messages as a table with the columns of the format onibus."""
    positions = list(range(len(workload.messages)))
    table = workload.table(positions)
    columns = {name: table.column(name) for name in SCHEMA.names if name != "properties"}
    dues = columns.pop("scheduled_enqueue_time_ms")
    columns["scheduled_enqueue_time"] = dues.cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)
    times = pa.array(workload.times, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    columns["arrival_time"] = times.cast(_TIME)
    columns["arrival_order"] = table.column("order")
    return pa.table(columns)


def write(table: pa.Table, folder: Path, name: str) -> None:
    """Write rows as one Parquet file, which a stream sees whole."""
    folder.mkdir(parents=True, exist_ok=True)
    unseen = folder.parent / f".{folder.name}-{name}"
    pq.write_table(table, unseen)
    # A stream takes files in the order of their times, in milliseconds; equal ones in any order.
    written_ns = next(_TIMES_NS)
    os.utime(unseen, ns=(written_ns, written_ns))
    unseen.replace(folder / f"{name}.parquet")


def write_pieces(table: pa.Table, folder: Path, sizes: list[int]) -> None:
    """Write rows as files of so many rows, each of which becomes a micro-batch."""
    start = 0
    for at, size in enumerate(sizes):
        write(table.slice(start, size), folder, f"{at:04}")
        start += size
    if start < table.num_rows:
        write(table.slice(start), folder, f"{len(sizes):04}")


def read_stream(spark: SparkSession, folder: Path, schema: Any) -> DataFrame:
    """Return a stream of the files of a folder, one a micro-batch, in the order of their names."""
    return (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", 1)
        .option("latestFirst", False)
        .parquet(str(folder))
    )


def drain(rows: DataFrame, out: Path, checkpoint: Path) -> None:
    """Run a stream until all that is there was taken."""
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(out))
    )
    query.awaitTermination()


def forget_commit(checkpoint: Path) -> None:
    """Leave a checkpoint as a driver does that dies before its last batch is committed."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()


def in_stream(
    spark: SparkSession,
    table: pa.Table,
    sizes: list[int],
    work: Callable[[DataFrame], DataFrame],
    folder: Path,
    stops: tuple[int, ...] = (),
) -> list[dict[str, Any]]:
    """Return what work on a stream gives, in micro-batches, killed and started in between."""
    source, out, checkpoint = folder / "in", folder / "out", folder / "checkpoint"
    write_pieces(table, folder / "all", sizes)
    files = sorted((folder / "all").glob("*.parquet"))
    schema = spark.read.parquet(str(files[0])).schema
    source.mkdir()
    for start, end in zip((0, *stops), (*stops, len(files)), strict=True):
        for at, file in enumerate(files[start:end]):
            target = source / file.name
            file.replace(target)
            # Spark takes files by their times: those of one second would come in any order.
            moment = 1_000_000_000 + 10 * (start + at)
            os.utime(target, (moment, moment))
        drain(work(read_stream(spark, source, schema)), out, checkpoint)
        if end < len(files):
            forget_commit(checkpoint)
    return [row.asDict() for row in spark.read.parquet(str(out)).collect()]


def events(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events as the core has them: times in milliseconds, order as `order`."""
    told = []
    for row in rows:
        plain = dict(row)
        for name in ("enqueued_time", "expires_at"):
            moment = plain.pop(name)
            plain[f"{name}_ms"] = None if moment is None else round(moment.timestamp() * 1000)
        plain["order"] = plain.pop("arrival_order")
        plain["body"] = None if plain["body"] is None else bytes(plain["body"])
        told.append(plain)
    return told
