"""Writes in foreachBatch: fenced by their query's checkpoint, empty batches too, and aggregates."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from onibus.client import Client
from onibus.spark.upserts import latest, upsert_into
from tests.client.server_helpers import ServerProcess
from tests.spark.reading import run_to_the_end
from tests.spark.writing_helpers import content, expected, log_of, put_rows, rows_stream, write

Write = Callable[[DataFrame, int], None]


def run(rows: DataFrame, function: Write, checkpoint: Path, mode: str = "append") -> None:
    def start() -> Any:
        return (
            rows.writeStream.outputMode(mode)
            .foreachBatch(function)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    run_to_the_end(start)


@pytest.mark.promise("R6")
def test_a_batch_belongs_to_the_checkpoint_of_its_query(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str, tmp_path: Path
) -> None:
    client.create_queue(entity)
    folder, checkpoint, copy = (tmp_path / name for name in ("in", "state", "copy"))
    put_rows(folder, "0", 0, 10)

    def each(batch: DataFrame, number: int) -> None:
        write(batch, server.connection_string, entity, producer="p", batch=number)

    def some(batch: DataFrame, number: int) -> None:
        """Write batches 2 and 3 without rows, as plans of two kinds, and leave out batch 5."""
        if number == 2:
            batch = batch.where("false")
        if number == 3:
            batch = spark.createDataFrame([], batch.schema)
        if number != 5:
            each(batch, number)

    rows = rows_stream(spark, folder)
    run(rows, each, checkpoint)
    (known,) = client.producers(entity)
    assert known.checkpoint == json.loads((checkpoint / "metadata").read_text())["id"]
    copytree(checkpoint, copy)
    # Without its checkpoint the query begins at batch 0, which is the one that was published.
    rmtree(checkpoint)
    rmtree(folder)
    put_rows(folder, "1", 10, 10)
    with pytest.raises(PySparkException, match=r"another checkpoint.*reset the producer"):
        run(rows, each, checkpoint)
    assert content(log_of(client, entity, "message_id", "body")) == expected(10)
    for name, first in (("2", 90), ("3", 91), ("4", 20), ("5", 92), ("6", 93)):
        put_rows(folder, name, first, 10)
        # Spark takes files in the order of their times.
        moment = (folder / "1.parquet").stat().st_mtime + int(name)
        os.utime(folder / f"{name}.parquet", (moment, moment))
    # A query that left batches out would hide those that the bus has lost.
    with pytest.raises(PySparkException, match="in foreachBatch, write every batch"):
        run(rows, some, copy)
    assert content(log_of(client, entity, "message_id", "body")) == expected(30)
    assert client.staged(entity) == []


@pytest.mark.promise("R6")
def test_aggregates_are_written_as_they_change(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str, tmp_path: Path
) -> None:
    client.create_queue(entity, enable_partitioning=True)
    target = {"connection": server.connection_string, "entity": entity}
    folder = tmp_path / "in"
    put_rows(folder, "0", 0, 10)
    last = sql.substring("message_id", -1, 1).cast("int")
    totals = rows_stream(spark, folder).groupBy((last % 3).alias("rest")).count()
    with pytest.raises(PySparkException, match="upsert_into"):
        (
            totals.writeStream.format("onibus")
            .options(**target)
            .option("checkpointLocation", str(tmp_path / "no"))
            .outputMode("complete")
            .start()
            .awaitTermination()
        )
    write = upsert_into(target, ["rest"], producer="totals")
    run(totals, write, tmp_path / "state", "update")
    put_rows(folder, "1", 0, 2)
    run(totals, write, tmp_path / "state", "update")
    rows = spark.read.format("onibus").options(**target).load()
    assert rows.count() == 5, "three at first, and two that changed"
    found = [json.loads(row.body) for row in latest(rows).collect()]
    assert sorted(one["rest"] for one in found) == [0, 1, 2]
    assert {one["rest"]: one["count"] for one in found} == {0: 5, 1: 4, 2: 3}
    rmtree(tmp_path / "state")
    with pytest.raises(PySparkException, match="has published batch 1"):
        run(totals, write, tmp_path / "state", "update")
