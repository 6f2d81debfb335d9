"""Ingest: send files, or any other Spark source, to a queue or topic, each row exactly once.

A stream is written batch by batch under the name of the job; its checkpoint holds its progress. A
DataFrame that is not a stream is one atomic batch. Both can be restarted at any point: rows already
written under a name are not written again (R6).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from onibus.core.errors import InvalidArgument
from onibus.spark.jobs.queries import run_queries
from onibus.spark.options import write_options
from onibus.spark.shaping import by_partition, with_message_ids
from onibus.spark.writing_rows import SENDABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

#: The name of a stream that was given none.
PRODUCER = "ingest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Columns of each field of a message. Other types are converted to strings."""

    #: None for the column `body`, or without one for the whole row as JSON
    body: str | None = None
    #: one column is the MessageId; several make one together; none, all of the message does
    ids: Sequence[str] = ()
    session_id: str | None = None
    partition_key: str | None = None
    subject: str | None = None
    scheduled_enqueue_time: str | None = None
    #: columns that become properties of their names
    properties: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Ingested:
    """What an ingest did."""

    #: rows that were read, and that are in the entity now unless they were duplicates there
    rows: int = 0
    batches: int = 0
    seconds: float = 0.0
    #: the one batch of this name was written before: nothing was done
    again: bool = False


def ingest(
    rows: DataFrame,
    target: Mapping[str, str],
    *,
    checkpoint: str | None = None,
    name: str | None = None,
    fields: Fields | None = None,
    interval: str | None = None,
    on_progress: Callable[[Ingested], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Ingested:
    """Write rows to the entity that the options `target` name.

    A stream needs a `checkpoint`. With an `interval` ("10 seconds") it continues until `stopped`;
    otherwise it ends with the rows available now. `name` is the producer under which the bus
    records the progress of the job: two streams to one entity need two names. A DataFrame that is
    not a stream is written once per name, or on every run without one.
    """
    messages = as_messages(rows, fields or Fields())
    begun = time.monotonic()
    if not rows.isStreaming:
        done = replace(_ingest_once(messages, target, name), seconds=time.monotonic() - begun)
        on_progress(done)
        return done
    if checkpoint is None:
        raise InvalidArgument("a stream needs a checkpoint folder: set checkpoint")
    done = Ingested()

    def start() -> StreamingQuery:
        given = {**target, "producer": name or PRODUCER}
        ends = {"availableNow": True} if interval is None else {"processingTime": interval}
        return (
            by_partition(messages, target)
            .writeStream.format("onibus")
            .options(**given)
            .option("checkpointLocation", checkpoint)
            .queryName(f"ingest {given['producer']}")
            .trigger(**ends)
            .start()
        )

    def add(_: str, report: StreamingQueryProgress) -> None:
        nonlocal done
        rows = done.rows + report.numInputRows
        done = Ingested(rows, done.batches + 1, time.monotonic() - begun)
        on_progress(done)

    run_queries({"ingest": start}, add, stopped)
    return replace(done, seconds=time.monotonic() - begun)


def _ingest_once(messages: DataFrame, target: Mapping[str, str], name: str | None) -> Ingested:
    """Write a DataFrame that is not a stream, unless it was written under its name."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as sql

    given = dict(target)
    if name is not None:
        options = write_options(target)
        with options.client() as client:
            if any(one.producer == name for one in client.producers(options.entity)):
                return Ingested(again=True)
        given |= {"producer": name, "batch": "0"}
    counted = Observation()
    rows = by_partition(messages.observe(counted, sql.count(sql.lit(1)).alias("rows")), target)
    rows.write.format("onibus").options(**given).mode("append").save()
    return Ingested(counted.get["rows"], 1)


def as_messages(rows: DataFrame, fields: Fields) -> DataFrame:
    """Return rows with the columns of messages, and no others."""
    from pyspark.sql import functions as sql

    used = {
        "session_id": fields.session_id,
        "partition_key": fields.partition_key,
        "subject": fields.subject,
        "scheduled_enqueue_time": fields.scheduled_enqueue_time,
    }
    wanted = (fields.body, *fields.ids, *fields.properties, *used.values())
    missing = [name for name in wanted if name is not None and name not in rows.columns]
    if missing:
        raise InvalidArgument(f"no column {missing[0]!r}: the source has {', '.join(rows.columns)}")
    columns = {name: sql.col(name) for name in rows.columns if name in SENDABLE}
    if fields.body is not None:
        kind = rows.schema[fields.body].dataType.typeName()
        own = sql.col(fields.body)
        columns["body"] = own if kind in ("binary", "string") else sql.to_json(own)
    elif "body" not in columns:
        columns = {"body": sql.to_json(sql.struct(*rows.columns))}
    for name, column in used.items():
        if column is not None:
            text = name != "scheduled_enqueue_time"
            columns[name] = sql.col(column).cast("string" if text else "timestamp")
    if fields.properties:
        columns["properties"] = sql.to_json(sql.struct(*fields.properties))
    if len(fields.ids) == 1:
        columns["message_id"] = sql.col(fields.ids[0]).cast("string")
    elif fields.ids:
        columns["message_id"] = sql.sha2(
            sql.to_json(sql.struct(*fields.ids), {"ignoreNullFields": "false"}), 256
        )
    named = rows.select(*[column.alias(name) for name, column in columns.items()])
    # With ids of its own a row without one is a mistake, which the bus tells.
    return named if fields.ids else with_message_ids(named)
