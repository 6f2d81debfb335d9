"""Spark's micro-batch engine without Spark: what it calls, in which order, and what it keeps.

A checkpoint has the query's id, the end of each batch that was planned, and which batches are done.
A run plans, reads and writes as Spark does; it can be cut off at each of `POINTS`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from onibus.spark.log_stream import LogStreamReader
from onibus.spark.options import read_options
from onibus.spark.queue_stream import QueueStreamReader
from onibus.spark.writing import BatchWriter, StreamWriter

SCHEMA = StructType([StructField("message_id", StringType()), StructField("body", BinaryType())])
#: Where a run can be cut off, in the order in which it comes by.
POINTS = ("latest", "noted", "planned", "read", "staged", "published", "done")

Options = dict[str, str]
Messages = list[Any]


class Crash(Exception):
    """The driver is killed."""


@dataclass
class Checkpoint:
    """The folder of a query."""

    query: str
    offsets: dict[int, str] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    #: the ids that each batch has written into files, which are copied with the checkpoint
    output: dict[int, list[str]] = field(default_factory=dict)

    def copy(self) -> Checkpoint:
        return deepcopy(self)

    @property
    def last(self) -> int:
        return max(self.offsets, default=-1)

    def end(self, number: int) -> Any:
        return json.loads(self.offsets[number])


@contextmanager
def task(partition: int, query: str = "", batch: int = 0) -> Iterator[None]:
    """Be a task of Spark, of a query's batch if one is named."""
    context = TaskContext._getOrCreate()
    context._partitionId = partition
    told = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    context._localProperties = told if query else {}
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


def write_tasks(writer: Any, tasks: list[pa.RecordBatch], query: str = "", batch: int = 0) -> Any:
    """Let each task write its rows; return their messages. Each has a copy of the writer."""
    messages = []
    for partition, rows in enumerate(tasks):
        with task(partition, query, batch):
            messages.append(pickle.loads(pickle.dumps(writer)).write(iter([rows])))
    return messages


class Query:
    """A query from an entity to another one."""

    def __init__(
        self, mode: str, sink: str, source: Options, target: Options, producer: str
    ) -> None:
        self.mode, self.sink = mode, sink
        self.source = source
        self.target = target | {"producer": producer, "retrySeconds": "0"}

    def run(
        self, checkpoint: Checkpoint, at: Callable[[str, int], None] = lambda point, number: None
    ) -> None:
        """Process all available rows, as with trigger(availableNow=True); `at` may end it."""
        kind = QueueStreamReader if self.mode == "queue" else LogStreamReader
        reader: Any = kind(read_options(self.source), SCHEMA)
        try:
            self._run(reader, checkpoint, at)
        finally:
            reader.stop()

    def _run(self, reader: Any, checkpoint: Checkpoint, at: Callable[[str, int], None]) -> None:
        number = checkpoint.last
        reader.prepareForTriggerAvailableNow()
        if number >= 0 and number not in checkpoint.commits:
            self._batch(reader, checkpoint, number, at)
        elif number >= 0:
            reader.commit(checkpoint.end(number))
        while True:
            number = checkpoint.last
            start = checkpoint.end(number) if number >= 0 else reader.initialOffset()
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            at("latest", number + 1)
            if json.dumps(end) == json.dumps(start):
                return
            checkpoint.offsets[number + 1] = json.dumps(end)
            at("noted", number + 1)
            if number >= 0:
                reader.commit(start)
            self._batch(reader, checkpoint, number + 1, at)

    def _batch(
        self, reader: Any, checkpoint: Checkpoint, number: int, at: Callable[[str, int], None]
    ) -> None:
        before = checkpoint.end(number - 1) if number else reader.initialOffset()
        parts = reader.partitions(before, checkpoint.end(number))
        at("planned", number)
        copy = pickle.loads(pickle.dumps(_without_client(reader)))
        tasks = []
        for index, part in enumerate(parts):
            with task(index, checkpoint.query, number):
                tasks.append(pa.Table.from_batches(copy.read(part)).to_batches())
        rows = [batch for batches in tasks for batch in batches] or [_nothing()]
        at("read", number)
        if self.sink == "files":
            output = [one.as_py() for batch in rows for one in batch["message_id"]]
            at("staged", number)
            checkpoint.output[number] = output
        else:
            self._write(checkpoint.query, number, rows, at)
        at("published", number)
        checkpoint.commits.add(number)
        at("done", number)

    def _write(
        self, query: str, number: int, rows: list[pa.RecordBatch], at: Callable[[str, int], None]
    ) -> None:
        writer, options = self._writer(number)
        messages = write_tasks(writer, rows, query, number)
        at("staged", number)
        if isinstance(writer, StreamWriter):
            StreamWriter(options, SCHEMA, False).commit(messages, number)
        else:
            writer.commit(messages)

    def _writer(self, number: int) -> tuple[Any, Options]:
        if self.sink == "stream":
            return StreamWriter(self.target, SCHEMA, False), self.target
        options = self.target | {"batch": str(number)}
        return BatchWriter(options, SCHEMA, False), options


def _without_client(reader: Any) -> Any:
    """Return a reader as Spark sends it to workers."""
    copy = object.__new__(type(reader))
    copy.__dict__ = {name: one for name, one in reader.__dict__.items() if name != "_client"}
    return copy


def _nothing() -> pa.RecordBatch:
    return pa.record_batch({"message_id": pa.array([], "string"), "body": pa.array([], "binary")})


def new_checkpoint(draw: Callable[[int], int]) -> Checkpoint:
    """Return an empty one."""
    return Checkpoint(str(UUID(int=draw(2**128))))
