"""Streaming reads of the log, or of the outcomes.

An offset is the next number in each partition, with its entity:

    {"entity": "orders", "incarnation": 7, "created": 1790000000000, "next": {"0": 101},
     "time": 1790000000000}

No row before it is younger than `time`, in milliseconds: a server that was restored from a backup,
and gave numbers again, is noticed. Spark compares offsets as text, so the order of their keys never
changes. The rows between two offsets are always the same ones (R3), so a batch can be planned and
read again.

Spark requests the latest offset only after it has recorded that the previous batch is done. So the
named reader moves to the start then, and not only when Spark calls `commit`, which is a batch later
and, for the last batch of a run, never.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from onibus.api.log import LogPositions, ReaderInfo
from onibus.client import Client
from onibus.core.errors import (
    EntityExists,
    EntityNotFound,
    EntityReplaced,
    Failed,
    InvalidArgument,
    InvalidOperation,
    PartitionOffline,
)
from onibus.spark.idling import Idling
from onibus.spark.log_reading import LogTable, given_twice
from onibus.spark.options import EARLIEST, Position, ReadOptions
from onibus.spark.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Offset = dict[str, Any]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is added to a log, batch by batch."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._table = LogTable(options, schema)
        #: end of a run that stops on its own (availableNow)
        self._target: dict[str, int] | None = None
        #: where the named reader is known to be
        self._moved: list[int] | None = None
        #: the last offset of this run, and the ends of the log at that time
        self._latest: tuple[Offset, LogPositions] | None = None
        self._idling = Idling(options.idle_wait_ms)

    @cached_property
    def _client(self) -> Client:
        # Made where it is used first: what Spark sends to workers has none.
        return self._options.client()

    def stop(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()

    # Where to begin, and how far to go

    def initialOffset(self) -> Offset:  # noqa: N802
        ends = self._table.ends(self._client)
        given = self._options.starting_position
        reader = self._find_reader(ends)
        if given is None and reader is not None:
            return offset_of(ends, list(reader.positions))
        starts = self._table.resolve(self._client, given or Position(EARLIEST), ends)
        return offset_of(ends, starts)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_messages_per_trigger is not None:
            return ReadMaxRows(self._options.max_messages_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        latest = self._table.ends(self._client).latest
        self._target = {str(partition): number or 0 for partition, number in enumerate(latest)}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        ends = self._plan(start, limit)
        self._move_reader(start, ends)
        assert ends.until is not None
        until = {str(partition): number for partition, number in enumerate(ends.until)}
        end = start
        if until != start["next"]:
            end = {**start, "next": until, "time": max(ends.last_ms, start.get("time", 0))}
        self._latest = (end, ends)
        self._idling.looked(end is not start)
        return end

    def _plan(self, start: Offset, limit: ReadLimit) -> LogPositions:
        """Return how far the next batch goes; wait for rows if the query is idle."""
        if "next" not in start:
            self._ends(start)
        options = self._options
        limited = not isinstance(limit, ReadAllAvailable)
        time = start.get("time")
        try:
            ends = self._client.plan_read(
                options.entity,
                _numbers(start["next"]),
                log=options.table,
                until=None if self._target is None else _numbers(self._target),
                limit=options.max_messages_per_trigger if limited else None,
                limit_bytes=options.max_bytes_per_trigger if limited else None,
                since_ms=None if time is None else time + 1,
                wait_ms=self._idling.wait_ms() if self._target is None else 0,
                incarnation=start["incarnation"],
            )
        except (EntityReplaced, InvalidArgument):
            # The ends show what is wrong with the offset.
            self._ends(start)
            raise
        self._check_ends(start, ends)
        return ends

    def _ends(self, offset: Offset) -> LogPositions:
        """Return the ends of the log; an error if it is not the one that the offset is of."""
        if self._latest is not None and self._latest[0] == offset:
            return self._latest[1]
        time = offset.get("time")
        ends = self._table.ends(self._client, None if time is None else time + 1)
        self._check_ends(offset, ends)
        return ends

    def _check_ends(self, offset: Offset, ends: LogPositions) -> None:
        """Reject an offset of another log, or of rows that the server has lost."""
        check_offset(offset, ends)
        following = [offset["next"][str(partition)] for partition in range(len(ends.latest))]
        twice = given_twice(ends, following)
        if twice is not None:
            partition, number = twice
            raise Failed(
                f"{ends.entity}: this query has read partition {partition} up to "
                f"{following[partition] - 1}, but the server assigned numbers from {number} on "
                "again, or lost them: it was restored from a backup, or the checkpoint belongs "
                "to another server. Start again with a new checkpoint"
            )

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        # Spark asks right after the latest offset.
        ends = self._table.ends(self._client) if self._latest is None else self._latest[1]
        known = all(number is not None for number in ends.latest)
        return offset_of(ends, list(ends.latest)) if known else None

    # The rows of a batch

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._idling.work()
        ends = self._ends(end)
        ranges = [
            Range(int(partition), start["next"][partition], until, ends.incarnation)
            for partition, until in end["next"].items()
            if until > start["next"][partition]
        ]
        whole = self._table.check_whole(ranges, ends)
        return [InputPartition(one) for one in self._table.tasks(whole)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._table.read(partition.value)

    # The named reader

    def commit(self, end: Offset) -> None:
        self._idling.work()
        if self._options.reader is not None and not self._passed(end):
            self._move_reader(end, self._ends(end))

    def _passed(self, done: Offset) -> bool:
        """Return whether the named reader is known to have moved to an offset."""
        moved = self._moved
        return moved is not None and all(
            known >= number for known, number in zip(moved, _numbers(done["next"]), strict=True)
        )

    def _find_reader(self, ends: LogPositions) -> ReaderInfo | None:
        name = self._options.reader
        if name is None:
            return None
        for found in self._client.readers(self._options.entity):
            if found.name == name:
                if found.log != ends.log:
                    raise InvalidOperation(f"reader {name!r} reads {found.log}, not {ends.log}")
                return found
        return None

    def _move_reader(self, done: Offset, ends: LogPositions) -> None:
        """Move the named reader to a position, creating it if missing."""
        name = self._options.reader
        if name is None:
            return
        entity = self._options.entity
        if self._moved is None:
            self._moved = self._take_reader(done, ends)
        positions = [
            max(known, done["next"][str(partition)]) for partition, known in enumerate(self._moved)
        ]
        if positions != self._moved:
            # An offline partition lets nothing be written: the next batch tells it again.
            with contextlib.suppress(PartitionOffline):
                self._client.move_reader(entity, name, positions, ends.incarnation)
                self._moved = positions

    def _take_reader(self, done: Offset, ends: LogPositions) -> list[int]:
        """Return where the named reader is; one that is not there begins where this query is."""
        name, entity = self._options.reader, self._options.entity
        assert name is not None
        found = self._find_reader(ends)
        if found is None:
            starts = [done["next"][str(partition)] for partition in range(len(ends.latest))]
            if not self._options.fail_on_gap:
                starts = [max(s, e or s) for s, e in zip(starts, ends.earliest, strict=True)]
            with contextlib.suppress(EntityExists):
                return list(
                    self._client.create_reader(entity, name, log=ends.log, start=starts).positions
                )
            found = self._find_reader(ends)
        if found is None:
            raise EntityNotFound(f"{entity} has no reader {name!r}: another program removed it")
        return list(found.positions)


def offset_of(ends: LogPositions, numbers: Sequence[int | None]) -> Offset:
    """Return an offset; all partitions must be known."""
    for partition, number in enumerate(numbers):
        if number is None:
            raise PartitionOffline(f"partition {partition} of {ends.entity} is offline")
    following = {str(partition): number for partition, number in enumerate(numbers)}
    offset = {"entity": ends.entity, "incarnation": ends.incarnation, "created": ends.created_ms}
    return offset | {"next": following, "time": ends.last_ms}


def _numbers(following: dict[str, int]) -> list[int]:
    """Return the numbers of an offset in the order of partitions."""
    return [following[str(partition)] for partition in range(len(following))]


def check_offset(offset: Offset, ends: LogPositions) -> None:
    """Reject an offset of another entity, or of an earlier incarnation."""
    if offset.get("entity") != ends.entity or "next" not in offset:
        raise InvalidOperation(
            f"the checkpoint belongs to {offset.get('entity')!r}, with other options or another "
            f"server, not to {ends.entity!r}: give this query its own checkpoint"
        )
    created = offset.get("created") or ends.created_ms
    if offset["incarnation"] != ends.incarnation or ends.created_ms not in (0, created):
        raise EntityReplaced(
            f"{ends.entity} was deleted and recreated since offset {offset['next']}, or this is "
            "another server: start again with a new checkpoint"
        )
