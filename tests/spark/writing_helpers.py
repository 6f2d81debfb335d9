"""What tests of writing share: writes as people write them, and what is in an entity then."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from onibus.client import Client


def write(rows: DataFrame, connection: str, entity: str, **options: Any) -> None:
    """Write a DataFrame as a batch."""
    writer = rows.write.format("onibus").options(connection=connection, entity=entity)
    writer.options(**options).mode("append").save()


def write_stream(
    rows: DataFrame, connection: str, entity: str, checkpoint: Path, **options: Any
) -> None:
    """Write what a stream has now, and wait until it is done."""
    writer = rows.writeStream.format("onibus").options(connection=connection, entity=entity)
    query = (
        writer.options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def put_rows(folder: Path, name: str, first: int, count: int) -> None:
    """Put a file of rows into a folder that a stream reads: ids and bodies of their numbers."""
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    numbers = range(first, first + count)
    table = pa.table(
        {
            "message_id": [f"id-{number}" for number in numbers],
            "body": [f"body-{number}".encode() for number in numbers],
        }
    )
    hidden = folder / f".{name}"
    pq.write_table(table, hidden)
    hidden.rename(folder / f"{name}.parquet")


def rows_stream(spark: SparkSession, folder: Path, files_at_once: int = 1) -> DataFrame:
    """Read such a folder as a stream, so many files in a batch."""
    return (
        spark.readStream.schema("message_id STRING, body BINARY")
        .option("maxFilesPerTrigger", files_at_once)
        .parquet(str(folder))
    )


def log_of(client: Client, entity: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return everything that is in an entity's log, partition by partition."""
    ends = client.log_positions(entity)
    found: list[tuple[Any, ...]] = []
    for partition, (start, end) in enumerate(zip(ends.earliest, ends.latest, strict=True)):
        if start is None or end is None:
            continue
        for batch in client.read_log(entity, partition, start, end, columns=columns):
            found += zip(*[batch.column(name).to_pylist() for name in columns], strict=True)
    return found


def content(pairs: list[tuple[Any, ...]]) -> tuple[int, str]:
    """Return how many (id, body) there are, and a hash over all of them whatever their order."""
    whole = sha256()
    for name, body in sorted(pairs):
        whole.update(sha256(name.encode()).digest() + sha256(body).digest())
    return len(pairs), whole.hexdigest()


def expected(count: int) -> tuple[int, str]:
    """Return the same of rows 0 to count, each once."""
    return content([(f"id-{number}", f"body-{number}".encode()) for number in range(count)])
