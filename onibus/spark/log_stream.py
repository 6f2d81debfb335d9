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
from collections.abc import Callable, Iterator, Sequence
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
    InvalidOperation,
    PartitionOffline,
)
from onibus.spark.log_reading import LogTable, given_twice
from onibus.spark.options import EARLIEST, Position, ReadOptions
from onibus.spark.ranges import Range, meeting, share, split

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
        #: the time up to which the last batch that was limited goes
        self._reached: int | None = None

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
        ends = self._ends(start)
        self._move_reader(start, ends)
        until = {}
        for partition, begin in start["next"].items():
            latest = ends.latest[int(partition)]
            # An offline partition waits; the others continue.
            until[partition] = begin if latest is None else max(begin, latest)
            if self._target is not None:
                until[partition] = max(begin, min(until[partition], self._target[partition]))
        if not isinstance(limit, ReadAllAvailable):
            until = self._limited(start["next"], until)
        if until == start["next"]:
            return start
        return {**start, "next": until, "time": max(ends.last_ms, start.get("time", 0))}

    def _ends(self, offset: Offset) -> LogPositions:
        """Return the ends of the log; an error if it is not the one that the offset is of."""
        time = offset.get("time")
        ends = self._table.ends(self._client, None if time is None else time + 1)
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
        return ends

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        ends = self._table.ends(self._client)
        known = all(number is not None for number in ends.latest)
        return offset_of(ends, list(ends.latest)) if known else None

    def _limited(self, begin: dict[str, int], until: dict[str, int]) -> dict[str, int]:
        """Return how far a batch may go: all partitions up to about the same time.

        A partition with few messages that ran ahead would move a query's watermark, and the rows
        of the others would come too late.
        """
        waiting = {int(p): end - begin[p] for p, end in until.items() if end > begin[p]}
        starts = {partition: begin[str(partition)] for partition in waiting}
        most = self._options.max_messages_per_trigger
        if most is not None and sum(waiting.values()) > most:
            limit = most
            waiting = self._in_time(
                starts,
                waiting,
                lambda counts: sum(counts.values()) / limit,
                lambda counts, same: share(same, limit - sum(counts.values())),
            )
        most = self._options.max_bytes_per_trigger
        if most is not None and self._options.table == "messages":
            waiting = self._limited_bytes(starts, waiting, most)
        return {p: begin[p] + waiting.get(int(p), 0) for p in until}

    def _limited_bytes(
        self, starts: dict[int, int], waiting: dict[int, int], most: int
    ) -> dict[int, int]:
        """Return how many messages of each partition have about that many bytes together."""
        total = sum(waiting.values())
        room = {}
        for partition, count in waiting.items():
            size = max(most * count // max(total, 1), 1)
            end = self._client.log_reach(self._options.entity, partition, starts[partition], size)
            room[partition] = min(count, end - starts[partition])
        if room == waiting:
            return room
        return self._in_time(
            starts,
            waiting,
            lambda counts: max(counts[one] / max(room[one], 1) for one in counts),
            lambda counts, same: {
                one: min(same[one], max(room[one] - counts[one], 0)) for one in counts
            },
        )

    def _in_time(
        self,
        starts: dict[int, int],
        waiting: dict[int, int],
        fullness: Callable[[dict[int, int]], float],
        rest: Callable[[dict[int, int], dict[int, int]], dict[int, int]],
    ) -> dict[int, int]:
        """Return how many messages of each partition a batch has that ends at one time in all.

        `rest` divides the room that is left over the messages of the next millisecond.
        """

        def before(moment: int) -> dict[int, int]:
            since = self._table.ends(self._client, moment).since or ()
            found = {partition: since[partition] or start for partition, start in starts.items()}
            return {
                partition: min(max(number - starts[partition], 0), waiting[partition])
                for partition, number in found.items()
            }

        moment = meeting(lambda at: fullness(before(at)), self._reached)
        self._reached = moment
        counts, following = before(moment), before(moment + 1)
        same = {one: max(following[one] - count, 0) for one, count in counts.items()}
        more = rest(counts, same)
        return {one: count + more[one] for one, count in counts.items()}

    # The rows of a batch

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        ends = self._ends(end)
        ranges = [
            Range(int(partition), start["next"][partition], until, ends.incarnation)
            for partition, until in end["next"].items()
            if until > start["next"][partition]
        ]
        whole = self._table.check_whole(ranges, ends)
        return [InputPartition(one) for one in split(whole, self._options.messages_per_task)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._table.read(partition.value)

    # The named reader

    def commit(self, end: Offset) -> None:
        self._move_reader(end, self._ends(end))

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
