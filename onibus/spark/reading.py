"""Batch reads of the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from onibus.spark.options import ReadOptions
from onibus.spark.schema import Converter, columns_of, server_columns


@dataclass
class LogRange(InputPartition):
    """Rows of one partition, from one number up to, without, another."""

    partition: int
    start: int
    end: int
    incarnation: int

    def __init__(self, partition: int, start: int, end: int, incarnation: int) -> None:
        self.partition, self.start, self.end = partition, start, end
        self.incarnation = incarnation


class LogReader(DataSourceReader):
    """Reads rows of the log (R3)."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        with self._options.client() as client:
            ends = client.log_positions(self._options.entity)
        return [
            LogRange(index, first, following, ends.incarnation)
            for index, (first, following) in enumerate(zip(ends.earliest, ends.latest, strict=True))
            if first is not None and following is not None and first < following
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogRange)
        columns = columns_of(self._options)
        convert = Converter(columns)
        with self._options.client() as client:
            for batch in client.read_log(
                self._options.entity,
                partition.partition,
                partition.start,
                partition.end,
                incarnation=partition.incarnation,
                columns=server_columns(list(columns)),
            ):
                yield convert(batch)
