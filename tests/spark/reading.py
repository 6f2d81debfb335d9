"""What the tests of reading have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onibus.client import Client

PATIENCE_S = 120


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
    ) -> StreamingQuery:
        """Read what is there, and return the query that has ended."""

        def take(batch: DataFrame, _: int) -> None:
            found = batch.collect()
            if seen is not None:
                seen(found)

        query = (
            rows.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(PATIENCE_S), "it ends by itself"
        finally:
            query.stop()
        return query


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
