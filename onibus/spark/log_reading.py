"""Reading the log, or the outcomes: between which numbers, and the rows of one range."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from onibus.api.log import LogPositions
from onibus.client import Client
from onibus.client.asking import path_of
from onibus.core.errors import Failed, InvalidArgument, LogGap, PartitionOffline
from onibus.spark.converting import Converter
from onibus.spark.options import EARLIEST, Position, ReadOptions
from onibus.spark.ranges import Range
from onibus.spark.row_stream import RowStream

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_logger = logging.getLogger(__name__)

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

    def read(self, one: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range: all of them, or an error that says which are lost."""
        convert = Converter(self._schema, self.options.fail_on_bad_body)
        stream = self.options.row_stream()
        start = one.start
        while start < one.end:
            try:
                for batch in self._rows(stream, one, start, convert.wanted):
                    yield convert(batch)
                    start += batch.num_rows
            except LogGap as gap:
                lost = self._lost(one, gap.first, gap.last)
                start = self._after(LogGap(lost, gap.first, gap.last))
            else:
                if start != one.end:
                    raise Failed(
                        f"the server sent rows up to {start} of partition {one.partition} of "
                        f"{self.options.entity}, but {one.end} was requested"
                    )

    def _rows(
        self, stream: RowStream, one: Range, start: int, columns: list[str]
    ) -> Iterator[pa.RecordBatch]:
        path = path_of("entities", self.options.entity, "log", self.options.table, one.partition)
        if self.options.table == "messages":
            wanted = ",".join(columns)
            yield from stream.rows(
                path, start, one.end, incarnation=one.incarnation, columns=wanted
            )
            return
        for batch in stream.rows(path, start, one.end, incarnation=one.incarnation):
            partition = pa.array([one.partition] * batch.num_rows, pa.int32())
            yield batch.append_column("partition", partition)

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
