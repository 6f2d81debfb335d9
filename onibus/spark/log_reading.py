"""Reading the log, or the outcomes: between which numbers, and the rows of ranges."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from onibus.api.log import LogPositions
from onibus.client import Client
from onibus.client.asking import path_of
from onibus.core.errors import InvalidArgument, LogGap, PartitionOffline
from onibus.spark.converting import Converter
from onibus.spark.options import EARLIEST, Position, ReadOptions
from onibus.spark.ranges import Range, pack
from onibus.spark.row_stream import RowStream
from onibus.spark.tasks import spare_modules

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_logger = logging.getLogger(__name__)

#: Smaller batches are joined, up to about this size.
GATHERED_ROWS, GATHERED_BYTES = 1_000, 1 << 20

#: Positions of a log, by partition; None where the partition is offline.
Numbers = list[int | None]


def given_twice(ends: LogPositions, following: Sequence[int]) -> tuple[int, int] | None:
    """Return a partition and its first number that the server has given a second time.

    `following` has the numbers that come next. The numbers of `ends.since` are younger than all
    rows before. A number below those that come next was given again: the server has been restored
    from a backup since.
    """
    set_back = {one.partition: one.sequence_number for one in ends.set_back}
    since = ends.latest if ends.since is None else ends.since
    for partition, (at, young, latest) in enumerate(
        zip(following, since, ends.latest, strict=True)
    ):
        if young is None or latest is None:
            continue
        if latest < at:
            return partition, min(young, latest)
        # Where an operator set times back, earlier rows are younger than later ones.
        if set_back.get(partition, 0) <= young < at:
            return partition, young
    return None


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches, if they are small: each costs Spark time."""
    small: list[pa.RecordBatch] = []
    for batch in batches:
        small.append(batch)
        if sum(one.num_rows for one in small) >= GATHERED_ROWS or batch.nbytes >= GATHERED_BYTES:
            yield from _joined(small)
            small = []
    yield from _joined(small)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2 or sum(one.nbytes for one in batches) > 2 * GATHERED_BYTES:
        return batches
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


class LogTable:
    """One of the two logs of an entity, with the options of a read. It can be pickled."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema

    def ends(self, client: Client, since_ms: int | None = None) -> LogPositions:
        """Return between which numbers the log can be read now."""
        options = self.options
        return client.log_positions(options.entity, log=options.table, since_ms=since_ms)

    def resolve(self, client: Client, position: Position, ends: LogPositions) -> Numbers:
        """Return the numbers that a position means."""
        if position.time_ms is not None:
            return list(self.ends(client, position.time_ms).since or ())
        numbers = list(ends.earliest if position.word == EARLIEST else ends.latest)
        for partition, number in position.numbers.items():
            if partition >= len(numbers):
                raise InvalidArgument(
                    f"{ends.entity} has partitions 0 to {len(numbers) - 1}, not {partition}"
                )
            latest = ends.latest[partition]
            if latest is not None and number > latest:
                raise InvalidArgument(
                    f"{number} is past the end of partition {partition} of {ends.entity}: "
                    f"its next number is {latest}"
                )
            numbers[partition] = number
        return numbers

    def check_whole(self, ranges: list[Range], ends: LogPositions) -> list[Range]:
        """Reject ranges whose beginning is lost, or cut it off if that is allowed."""
        found = []
        for one in ranges:
            earliest = ends.earliest[one.partition]
            if not len(one):
                continue
            if earliest is None:
                raise PartitionOffline(f"partition {one.partition} of {ends.entity} is offline")
            start = one.start
            if start < min(earliest, one.end):
                last = min(earliest, one.end) - 1
                gap = LogGap(self._lost(one, start, last), start, last)
                start = self._after(gap)
            found.append(Range(one.partition, start, one.end, one.incarnation))
        return found

    def tasks(self, ranges: list[Range]) -> list[tuple[Range, ...]]:
        """Return what each task reads: as few tasks as the options allow."""
        return pack(ranges, self.options.messages_per_task, self.options.max_tasks)

    def read(self, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges: all of them, or an error that says which are lost."""
        convert = Converter(self._schema, self.options.fail_on_bad_body)
        for batch in gathered(self._batches(ranges, convert.wanted)):
            yield convert(batch)
        spare_modules()

    def _batches(self, ranges: Sequence[Range], columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges as the server sends them."""
        stream = self.options.row_stream()
        left = [one for one in ranges if len(one)]
        together = len(left)
        while left:
            try:
                for one, batch in self._rows(stream, left[:together], columns):
                    rest = replace(one, start=one.start + batch.num_rows)
                    left[:1] = [rest] if len(rest) else []
                    yield batch
            except LogGap as gap:
                if together == 1:
                    lost = self._lost(left[0], gap.first, gap.last)
                    start = self._after(LogGap(lost, gap.first, gap.last))
                    rest = replace(left[0], start=start)
                    left[:1] = [rest] if len(rest) else []
                # The error does not say which range has the gap: request one after the other.
                together = 1

    def _rows(
        self, stream: RowStream, ranges: list[Range], columns: list[str]
    ) -> Iterator[tuple[Range, pa.RecordBatch]]:
        path = path_of("entities", self.options.entity, "log", self.options.table)
        if self.options.table == "messages":
            yield from stream.rows(path, ranges, columns=",".join(columns))
            return
        for one, batch in stream.rows(path, ranges):
            partition = pa.array([one.partition] * batch.num_rows, pa.int32())
            yield one, batch.append_column("partition", partition)

    def _after(self, gap: LogGap) -> int:
        """Return where reading continues after a gap, if allowed."""
        if self.options.fail_on_gap:
            raise gap
        _logger.warning("%s", gap)
        return gap.last + 1

    def _lost(self, one: Range, first: int, last: int) -> str:
        return (
            f"{self.options.entity}, partition {one.partition}: {self.options.table} {first} to "
            f"{last} are no longer retained ({one.start} to {one.end - 1} were requested). Set "
            "failOnGap=false to continue after them"
        )
