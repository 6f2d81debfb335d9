"""Batch reads: the log or the outcomes as far as they go, and messages as they are now."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from onibus.client import Client
from onibus.core.arrow_block import SCHEMA, columns_of
from onibus.core.errors import EntityReplaced, InvalidArgument, PartitionOffline
from onibus.core.limits import COUNTER_BITS_PARTITIONED
from onibus.core.message import ReceivedMessage
from onibus.core.numbering import partition_index
from onibus.spark.converting import Converter
from onibus.spark.filters import Narrowed, narrow
from onibus.spark.log_reading import LogTable, Numbers
from onibus.spark.options import DEAD_LETTERED, EARLIEST, LATEST, Position, ReadOptions
from onibus.spark.ranges import Range
from onibus.spark.schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: What Spark runs to plan a read with filters.
_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
#: Messages peeked in one call.
_PAGE = 500
#: Columns that the broker adds to those of the sender.
_SEEN = {
    "sequence_number": pa.int64(),
    "enqueued_time_ms": pa.int64(),
    "expires_at_ms": pa.int64(),
    "state": pa.string(),
    "delivery_count": pa.int64(),
    "dead_letter_reason": pa.string(),
    "dead_letter_description": pa.string(),
}


def batch_reader(options: ReadOptions, schema: StructType) -> DataSourceReader:
    """Return what reads a batch with these options."""
    if options.mode == "queue":
        raise InvalidArgument(
            "mode queue is only for streams: read the current messages with table present"
        )
    for name in ("reader", "max_messages_per_trigger", "max_bytes_per_trigger"):
        if getattr(options, name) is not None:
            raise InvalidArgument(
                "reader, maxMessagesPerTrigger and maxBytesPerTrigger are only for streams"
            )
    check_schema(options, schema)
    if options.table in ("present", DEAD_LETTERED):
        if options.starting_position is not None or options.ending_position is not None:
            raise InvalidArgument(
                f"table {options.table} has no positions: it shows the current state"
            )
        return PresentReader(options, schema)
    filtering = options.pushdown and _gets_filters()
    return (FilteringLogReader if filtering else LogReader)(options, schema)


def _gets_filters() -> bool:
    """Return whether Spark hands filters over to this process.

    It does so in a separate process, if its setting is on. Elsewhere a reader that takes filters
    is an error to Spark.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(main, "name", None) == _PUSHING


class LogReader(DataSourceReader):
    """Reads rows of the log, or outcomes, between two positions."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._table = LogTable(options, schema)
        self._narrowed = Narrowed()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._table.options
        with options.client() as client:
            ends = self._table.ends(client)
            if options.incarnation not in (None, ends.incarnation):
                raise EntityReplaced(
                    f"{ends.entity} was deleted and recreated: its incarnation is "
                    f"{ends.incarnation}, not {options.incarnation}"
                )
            starting = options.starting_position or Position(EARLIEST)
            ending = options.ending_position or Position(LATEST)
            starts = self._table.resolve(client, starting, ends)
            until = self._table.resolve(client, ending, ends)
            ranges = [
                Range(partition, start, end, ends.incarnation)
                for partition, (start, end) in enumerate(_online(starts, until, ends.entity))
            ]
            whole = self._table.check_whole(self._narrow(client, ranges), ends)
        return [InputPartition(one) for one in self._table.tasks(whole)]

    def _narrow(self, client: Client, ranges: list[Range]) -> list[Range]:
        """Return what filters leave of ranges."""
        narrowed = self._narrowed
        since = before = None
        if narrowed.since_ms is not None:
            since = self._table.ends(client, narrowed.since_ms).since
        if narrowed.before_ms is not None:
            before = self._table.ends(client, narrowed.before_ms).since
        left = []
        for one in ranges:
            start, end = narrowed.cut(one.partition, one.start, one.end)
            start = max(start, (since[one.partition] if since else None) or 0)
            end = min(end, (before[one.partition] if before else None) or end)
            left.append(Range(one.partition, start, max(start, end), one.incarnation))
        return left

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            # Spark reads once even if the range is empty.
            return iter(())
        return self._table.read(partition.value)


class FilteringLogReader(LogReader):
    """The same where Spark hands filters over; one that does not may not meet this class."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        outcomes = self._table.options.table == "outcomes"
        number, time = ("number", "time") if outcomes else ("sequence_number", "enqueued_time")
        self._narrowed = narrow(filters, number, time)
        # They only narrow what is read: Spark applies all of them to the rows.
        return filters


class PresentReader(DataSourceReader):
    """Reads messages as they are now: with their states, and dead letters too.

    Messages are read page by page, so changes during the read may or may not show.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with self._options.client() as client:
            # Subscriptions have no log of messages, and one of outcomes.
            count = len(client.log_positions(self._options.entity, log="outcomes").latest)
        return [
            InputPartition((index if count > 1 else None, dead))
            for index in range(count)
            for dead in (False, True)
            if dead or self._options.table != DEAD_LETTERED
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        index, dead = partition.value
        convert = Converter(self._schema, self._options.fail_on_bad_body)
        start = 0 if index is None else index << COUNTER_BITS_PARTITIONED
        with self._options.client() as client:
            while page := client.peek(
                self._options.entity, start=start, limit=_PAGE, dead_letters=dead
            ):
                start = page[-1].sequence_number + 1
                mine = [
                    one
                    for one in page
                    if index is None or partition_index(one.sequence_number, True) == index
                ]
                if mine:
                    yield convert(_rows(mine, index or 0))
                if len(mine) < len(page):
                    return


def _rows(seen: list[ReceivedMessage], partition: int) -> pa.RecordBatch:
    """Return peeked messages as rows."""
    columns = {
        name: pa.array([getattr(one, name) for one in seen], kind) for name, kind in _SEEN.items()
    }
    columns["partition"] = pa.array([partition] * len(seen), pa.int32())
    columns |= zip(SCHEMA.names, columns_of([one.message for one in seen]), strict=True)
    return pa.RecordBatch.from_pydict(columns)


def _online(starts: Numbers, ends: Numbers, entity: str) -> Iterator[tuple[int, int]]:
    """Yield where each partition begins and ends; one that is offline is an error."""
    for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if start is None or end is None:
            raise PartitionOffline(f"partition {partition} of {entity} is offline")
        yield start, end
