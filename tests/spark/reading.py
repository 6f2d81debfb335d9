"""What the tests of reading have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onibus.client import Client
from onibus.spark.jobs.queries import run_queries

PATIENCE_S = 300


class Reads:
    """Reads from one entity, as a program of a user would."""

    def __init__(self, session: SparkSession, connection: str, entity: str) -> None:
        self.session = session
        self.options = {"connection": connection, "entity": entity}

    def read(self, **options: Any) -> DataFrame:
        given = {name: str(value) for name, value in options.items()}
        return self.session.read.format("onibus").options(**self.options, **given).load()

    def stream(self, **options: Any) -> DataFrame:
        given = {name: str(value) for name, value in options.items()}
        return self.session.readStream.format("onibus").options(**self.options, **given).load()

    def run(
        self, rows: DataFrame, checkpoint: Path, seen: Callable[[list[Row]], None] | None = None
    ) -> None:
        """Read what is there."""

        def take(batch: DataFrame, _: int) -> None:
            found = batch.collect()
            if seen is not None:
                seen(found)

        def start() -> StreamingQuery:
            return (
                rows.writeStream.foreachBatch(take)
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )

        run_to_the_end(start)


def run_to_the_end(start: Callable[[], StreamingQuery]) -> None:
    """Run a query that ends by itself, or by an error; where a machine is too busy, again."""
    deadline = time.monotonic() + PATIENCE_S
    run_queries({"test": start}, lambda *_: None, lambda: time.monotonic() > deadline)
    assert time.monotonic() <= deadline, "it ends by itself"


def run_a_batch(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Run a query that goes on, until it has done something; return it, stopped."""
    kept: list[StreamingQuery] = []
    reports: list[str] = []

    def begin() -> StreamingQuery:
        kept.append(start())
        return kept[-1]

    run_queries({"test": begin}, lambda name, _: reports.append(name), lambda: bool(reports))
    return kept[-1]


def fill(client: Client, entity: str, count: int, **columns: Iterable[Any]) -> None:
    """Send messages with the bodies 0, 1, 2 …"""
    rows = {"body": [b"%d" % at for at in range(count)]} | columns
    client.send_arrow(entity, pa.table(rows))


def forget_last_commit(checkpoint: Path) -> None:
    """Leave a checkpoint as it is when the driver dies before it notes that a batch is done."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink()
