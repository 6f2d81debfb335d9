"""A sample of bodies that are about to be captured, read by the driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from onibus.spark.lake_capture import Ranges
from onibus.spark.log_reading import LogTable
from onibus.spark.options import ReadOptions
from onibus.spark.ranges import Range

#: Messages, and bytes, of a sample.
SAMPLE_ROWS, SAMPLE_BYTES = 1_000, 8 << 20

_COLUMNS = StructType(
    [StructField("sequence_number", LongType()), StructField("body", BinaryType())]
)


def sampled(options: ReadOptions, incarnation: int, ranges: Ranges) -> Iterator[bytes | None]:
    """Yield the first bodies of each partition's range."""
    table = LogTable(replace(options, table="messages", body_format="binary"), _COLUMNS)
    waiting = [(at, start, end) for at, (start, end) in ranges.items() if end > start]
    for partition, start, end in waiting:
        share = -(-SAMPLE_ROWS // len(waiting))
        left = SAMPLE_BYTES // len(waiting)
        for batch in table.read([Range(partition, start, min(end, start + share), incarnation)]):
            for body in batch.column("body").to_pylist():
                yield body
                left -= len(body or b"")
            if left < 0:
                break
