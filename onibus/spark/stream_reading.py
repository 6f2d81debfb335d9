"""Which way a stream is read: the log, or the queue by claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader

from onibus.core.errors import InvalidArgument
from onibus.spark.dead_letter_stream import DeadLetterStreamReader
from onibus.spark.log_stream import LogStreamReader
from onibus.spark.options import DEAD_LETTERED, ReadOptions
from onibus.spark.queue_stream import QueueStreamReader
from onibus.spark.schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def stream_reader(options: ReadOptions, schema: StructType) -> DataSourceStreamReader:
    """Return what reads a stream with these options."""
    check_schema(options, schema)
    if options.table == "present":
        raise InvalidArgument("table present is only for batch reads: it shows the current state")
    if options.ending_position is not None:
        raise InvalidArgument("endingPosition is only for batch reads: a stream has no end")
    if options.table == DEAD_LETTERED:
        return DeadLetterStreamReader(options, schema)
    return (QueueStreamReader if options.mode == "queue" else LogStreamReader)(options, schema)
