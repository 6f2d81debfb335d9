"""Process: the whole path of the bus on Spark, for volumes that no broker takes.

Raw messages from any Spark source → admit → route → deduplicate → stamp → schedule, defer, expire:
tables of what a queue with these settings would have made of them. Numbers, times and duplicates
are the broker's (core/timeline); a batch, and a stream stopped and started at any point, give the
same.

    accepted       messages with partition, number, time and expiry
    duplicates     dropped, with the number that each one repeats
    scheduled      markers of messages that wait for their time, or did
    expired        messages whose time to live is over, by number
    dead_lettered  rows that a sender would have been refused, with the reason; and what expired,
                   where the queue dead-letters that
    ready          with a rule for partners: accepted messages as they can be processed
    waiting        what still waits at the end of a run: for its time, or for its partner
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from onibus.core.errors import InvalidArgument
from onibus.core.limits import PARTITION_COUNT
from onibus.core.settings import LogSettings
from onibus.spark.jobs.event_tables import EventTables, Progress, write_tables
from onibus.spark.lake_files import absolute
from onibus.spark.operators import Arrival, PartnerRule, enqueue
from onibus.spark.operators.arrivals import milliseconds
from onibus.spark.schema import SENT

TABLES = {
    "accepted": "accepted",
    "duplicate": "duplicates",
    "scheduled": "scheduled",
    "expired": "expired",
    "dead-lettered": "dead_lettered",
}
READY = {"ready": "ready"}


@dataclass(frozen=True, slots=True)
class Processed:
    """What a run did."""

    accepted: int
    duplicates: int
    scheduled: int
    expired: int
    dead_lettered: int
    #: accepted messages that came out with or after their partners
    ready: int
    #: what waits now
    waiting: int
    batches: int
    seconds: float


def process(
    rows: DataFrame,
    out: str,
    settings: LogSettings,
    *,
    arrival: Arrival | None = None,
    as_of: datetime | int | None = None,
    keep: Sequence[str] = (),
    partitions: int = PARTITION_COUNT,
    partners: PartnerRule | None = None,
    checkpoint: str | None = None,
    interval: str | None = None,
    on_progress: Callable[[Progress], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Processed:
    """Write to `out` what a queue with these settings makes of rows sent at their times.

    Rows have columns of messages (docs/spark-operators.md) and those of `arrival`; further ones are
    rejected unless `keep` names them. A stream processes the available rows, or with an `interval`
    continues until `stopped`; restart it at any time.
    """
    arrival = arrival or Arrival()
    check_columns(rows, arrival, keep, partners)
    tables = EventTables(absolute(out), "process", TABLES | (READY if partners else {}))
    moment = None if rows.isStreaming else milliseconds(as_of)
    tables.claim(
        {
            "stream": rows.isStreaming,
            "settings": msgspec.to_builtins(settings),
            "partitions": partitions if settings.enable_partitioning else 1,
            "partners": None if partners is None else msgspec.to_builtins(partners),
            "columns": rows.columns,
        }
    )
    events = enqueue(
        rows, settings, arrival=arrival, as_of=moment, partitions=partitions, partners=partners
    ).events
    done = write_tables(
        events,
        tables,
        checkpoint=checkpoint,
        interval=interval,
        on_progress=on_progress,
        stopped=stopped,
    )
    waiting = write_waiting(rows.sparkSession, tables, partners is not None)
    counts = {"ready": 0} | done.counts
    return Processed(**counts, waiting=waiting, batches=done.batches, seconds=done.seconds)


def check_columns(
    rows: DataFrame, arrival: Arrival, keep: Sequence[str], partners: PartnerRule | None
) -> None:
    """Reject columns that are not part of a message and not in `keep`."""
    known = {*SENT, arrival.time, arrival.order, *keep}
    if partners is not None:
        known |= {partners.needs, partners.gives}
    unknown = [name for name in rows.columns if name not in known]
    if unknown:
        raise InvalidArgument(
            f"unknown columns: {', '.join(unknown)}: messages have {', '.join(SENT)}. "
            "Drop them, or list them in keep"
        )
    missing = [name for name in keep if name not in rows.columns]
    if missing:
        raise InvalidArgument(f"no columns {', '.join(missing)} to keep")


def write_waiting(spark: SparkSession, tables: EventTables, partners: bool) -> int:
    """Write the table of what waits, from the others; return how many rows it has."""
    accepted = tables.read(spark, "accepted")
    came = accepted.where("scheduled_number IS NOT NULL").select(
        sf.col("scheduled_number").alias("sequence_number")
    )
    waiting = tables.read(spark, "scheduled").join(came, "sequence_number", "left_anti")
    waiting = waiting.withColumn("waits_for", sf.lit("time"))
    if partners:
        gone = tables.read(spark, "ready").select("sequence_number")
        for table in ("expired", "dead_lettered"):
            gone = gone.unionByName(
                tables.read(spark, table).where("sequence_number IS NOT NULL")
                .select("sequence_number")
            )  # fmt: skip
        deferred = accepted.join(gone, "sequence_number", "left_anti")
        waiting = waiting.unionByName(deferred.withColumn("waits_for", sf.lit("partner")))
    tables.replace(waiting.drop("batch").coalesce(1), "waiting", 0)
    return tables.read(spark, "waiting").count()
