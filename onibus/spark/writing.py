"""Writing rows to an entity, exactly once: tasks stage, the driver publishes (R6).

    task      stages its rows in pieces, invisible and without numbers, under
              (producer, batch, task, attempt), and returns the attempt and its number of pieces
    driver    publishes the attempts that Spark chose, atomically, and only once per batch
              number, whatever is retried

A query's batches are numbered by its checkpoint. The bus records, with the producer's name, the
last number, which checkpoint it was (Spark's query id) and a digest of the rows. A reset
checkpoint, one of another entity, a gap, or other rows under the last number are errors and publish
nothing. The same holds for batch writes in foreachBatch, whose tasks have the query's id too.

Attempts have random numbers. Spark's own begin again with each driver, and what a worker of a
driver that is gone still sends must not be taken for what its successor staged.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from onibus.client import Client, Retry
from onibus.client.convert import arrow_bytes
from onibus.core.errors import InvalidOperation, OnibusError, Refused
from onibus.core.limits import BATCH_COUNT_MAX
from onibus.spark.options import WriteOptions, write_options
from onibus.spark.tasks import BATCH_ID, QUERY_ID, local_property, spare_modules
from onibus.spark.writing_rows import BadRow, check_columns, sent_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: The producer of a stream that names none. Two such streams to one entity have different
#: checkpoints, and are rejected.
PRODUCER = "spark"
#: Maximum bytes of a piece, except a single large row: a request is held in memory.
PIECE_BYTES_MAX = 16 << 20
#: What Spark has of each task; None where it failed.
Messages = Sequence[WriterCommitMessage | None]
#: Numbers of attempts are below this.
_ATTEMPTS = 2**53


@dataclass(frozen=True, slots=True)
class StagedAttempt(WriterCommitMessage):
    """What a task has staged."""

    task: int
    attempt: int
    pieces: int
    #: the id of the query, which is that of its checkpoint; empty outside of queries
    query: str = ""


class Staging:
    """One attempt of a task to stage its rows."""

    def __init__(self, client: Client, options: WriteOptions, producer: str, batch: int) -> None:
        self._client = client
        self._options = options
        context = TaskContext.get()
        self._task = 0 if context is None else context.partitionId()
        self._attempt = secrets.randbelow(_ATTEMPTS)
        self._whose = {
            "producer": producer,
            "batch": str(batch),
            "task": str(self._task),
            "attempt": str(self._attempt),
            "lease_ms": str(options.lease_ms),
        }
        self._pieces = 0
        self._rows = 0

    def stage(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Stage all rows."""
        for batch in batches:
            for piece in _cut(batch):
                self._stage_piece(piece)

    def _stage_piece(self, given: pa.RecordBatch) -> None:
        try:
            rows = sent_rows(given)
            self._client.stage_stream(
                self._options.entity,
                arrow_bytes(rows),
                self._whose | {"piece": str(self._pieces)},
            )
        except Refused as error:
            raise self._told(error, given) from error
        self._pieces += 1
        self._rows += given.num_rows

    def _told(self, error: Refused, given: pa.RecordBatch) -> Refused:
        """Return the error with its row, in a form that a reader can find."""
        if isinstance(error, BadRow):
            at, text = error.at, str(error)
        else:
            found = re.match(r"row (\d+): (.*)", str(error), re.DOTALL)
            if found is None:
                return error
            at, text = int(found[1]), found[2]
        name = ""
        if "message_id" in given.schema.names and at < given.num_rows:
            name = f", message_id {given.column('message_id')[at].as_py()!r}"
        return Refused(
            f"row {self._rows + at} of task {self._task}{name}: {text}. Nothing of this batch was "
            f"written to {self._options.entity}"
        )

    def done(self, query: str = "") -> StagedAttempt:
        """Return what the driver needs to publish it."""
        return StagedAttempt(self._task, self._attempt, self._pieces, query)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows in pieces that one request may have."""
    count = batch.num_rows
    if not count:
        return
    pieces = max(-(-count // BATCH_COUNT_MAX), -(-batch.nbytes // PIECE_BYTES_MAX))
    size = max(count // pieces, 1)
    for start in range(0, count, size):
        piece = batch.slice(start, size)
        if piece.num_rows > 1 and piece.nbytes > 2 * PIECE_BYTES_MAX:
            # Its rows are of very different sizes.
            yield from _cut(piece)
        else:
            yield piece


def _retry(options: WriteOptions) -> Retry:
    """Return how often to ask a server that is away: the first few times soon, then at leisure."""
    return Retry(attempts=7 + options.retry_seconds // 4)


def _attempts(messages: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return what is published: rows are numbered in the order of tasks."""
    staged = sorted((one for one in messages if one.pieces), key=lambda one: one.task)
    return [(one.task, one.attempt, one.pieces) for one in staged]


def _publish(
    client: Client, options: WriteOptions, producer: str, batch: int, messages: Sequence[Any]
) -> None:
    """Publish what tasks have staged, under the checkpoint of their query if they have one."""
    queries = {one.query for one in messages}
    assert len(queries) <= 1, "the tasks of a batch belong to one query"
    client.publish(
        options.entity,
        producer=producer,
        batch=batch,
        attempts=_attempts(messages),
        checkpoint="".join(queries) or None,
        any_content=not options.fail_on_change,
    )


def _discard(options: WriteOptions, producer: str, batch: int) -> None:
    """Delete rows that will not be published; if that fails, their lease expires."""
    with options.client(Retry(attempts=2)) as client, contextlib.suppress(OnibusError):
        client.discard(options.entity, producer=producer, batch=batch)


class BatchWriter(DataSourceArrowWriter):
    """Writer of one DataFrame, atomically.

    With a producer and a batch number it is written once, however many times it runs; otherwise
    once per run.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = write_options(options)
        if overwrite:
            raise InvalidOperation("an entity cannot be overwritten: use mode append")
        if (self._options.producer is None) != (self._options.batch is None):
            raise InvalidOperation(
                "options producer and batch belong together in a batch write: the bus records the "
                "last batch number of each producer"
            )
        check_columns(schema)
        # This object is the same, pickled, in tasks and when they are done.
        self._producer = self._options.producer or f"spark-{uuid4().hex}"
        self._batch = self._options.batch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with self._options.client(_retry(self._options)) as client:
            staging = Staging(client, self._options, self._producer, self._batch)
            staging.stage(iterator)
        spare_modules()
        bound = self._options.producer is not None and self._options.bind_to_query
        return staging.done(local_property(QUERY_ID) or "" if bound else "")

    def commit(self, messages: Messages) -> None:
        with self._options.client(_retry(self._options)) as client:
            _publish(client, self._options, self._producer, self._batch, messages)
            if self._options.producer is None:
                # This name will not be used again.
                with contextlib.suppress(OnibusError):
                    client.forget_producer(self._options.entity, self._producer)

    def abort(self, messages: Messages) -> None:
        _discard(self._options, self._producer, self._batch)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query, each once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = write_options(options)
        if overwrite:
            raise InvalidOperation(
                "an entity cannot be overwritten: use output mode append. To write aggregates as "
                "they change, use foreachBatch with onibus.spark.upserts.upsert_into"
            )
        if self._options.batch is not None:
            raise InvalidOperation(
                "option batch is only for batch writes: a stream numbers its own batches"
            )
        check_columns(schema)
        self._producer = self._options.producer or PRODUCER

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batch, query = local_property(BATCH_ID), local_property(QUERY_ID)
        if batch is None or query is None:
            raise InvalidOperation("Spark did not pass the batch number: nothing was written")
        with self._options.client(_retry(self._options)) as client:
            staging = Staging(client, self._options, self._producer, int(batch))
            staging.stage(iterator)
        spare_modules()
        return staging.done(query)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        with self._options.client(_retry(self._options)) as client:
            _publish(client, self._options, self._producer, batchId, messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        _discard(self._options, self._producer, batchId)
