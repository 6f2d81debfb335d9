"""Deduplicate: turn a history of any length into unique rows, and list the dropped ones.

A broker records ids for days. Here the window is as long as the history, or as you choose, and
exact: of equal rows the first by arrival stays, and each of the others names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from onibus.spark import operators
from onibus.spark.jobs.event_tables import EventTables, Progress, write_tables
from onibus.spark.lake_files import absolute
from onibus.spark.operators import Arrival

TABLES = {"kept": "clean", "dropped": "duplicates"}


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a run did."""

    clean: int
    duplicates: int
    batches: int
    seconds: float


def deduplicate(
    rows: DataFrame,
    out: str,
    *,
    by: str = "id",
    window_ms: int | None = None,
    arrival: Arrival | None = None,
    message_id: str = "message_id",
    key: list[str] | None = None,
    body: str = "body",
    groups: int = 64,
    checkpoint: str | None = None,
    interval: str | None = None,
    on_progress: Callable[[Progress], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Cleaned:
    """Write to `out` the rows that repeat no other, and those that do.

    Arguments are those of `operators.deduplicate`. A task holds the rows of one group: use more
    groups for more rows. An interrupted batch starts over; a stream continues.
    """
    tables = EventTables(absolute(out), "deduplicate", TABLES)
    tables.claim(
        {
            "stream": rows.isStreaming,
            "by": by,
            "window_ms": window_ms,
            "message_id": message_id,
            "key": key,
            "body": body,
            "groups": groups if rows.isStreaming else None,
            "columns": rows.columns,
        }
    )
    done = operators.deduplicate(
        rows, window_ms, by=by, arrival=arrival, message_id=message_id, key=key, body=body,
        groups=groups,
    )  # fmt: skip
    outcome = sf.when(sf.col("duplicate_of").isNull(), "kept").otherwise("dropped")
    progress = write_tables(
        done.rows.withColumn("outcome", outcome),
        tables,
        checkpoint=checkpoint,
        interval=interval,
        on_progress=on_progress,
        stopped=stopped,
    )
    return Cleaned(**progress.counts, batches=progress.batches, seconds=progress.seconds)
