"""Streaming reads of dead-lettered messages, in the order in which they were dead-lettered.

Offsets are those of the outcomes (log_stream.py): an outcome says that a message was dead-lettered,
and why. The message itself keeps its number and its row in the log while it is in the dead-letter
queue. A message that has left it since, and is not retained, is a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from onibus.client.asking import path_of
from onibus.core.errors import LogGap
from onibus.spark.converting import Converter
from onibus.spark.lake_tables import log_of
from onibus.spark.log_stream import LogStreamReader
from onibus.spark.options import ReadOptions
from onibus.spark.ranges import ANY, Range
from onibus.spark.schema import OUTCOMES, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: What an outcome says, and what the column of a dead-lettered message is called.
_SAID = {"dead_letter_reason": "reason", "dead_letter_description": "description"}


class DeadLetterStreamReader(LogStreamReader):
    """Reads messages that are dead-lettered, batch by batch."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        outcomes = replace(options, table="outcomes", columns=None, body_format="binary")
        super().__init__(outcomes, spark_schema(OUTCOMES))
        self._dead_letters = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        convert = Converter(self._schema, self._dead_letters.fail_on_bad_body)
        for batch in self._table.read(partition.value):
            dead = batch.filter(pc.equal(batch.column("outcome"), "dead-lettered"))
            for outcome in dead.to_pylist():
                yield convert(self._message(outcome, convert.wanted))

    def _message(self, outcome: dict[str, Any], wanted: list[str]) -> pa.RecordBatch:
        """Return the message of an outcome, with the reason, as the server has it."""
        options, number = self._dead_letters, outcome["sequence_number"]
        path = path_of("entities", log_of(options.entity), "log", "messages")
        # A topic's log has a different incarnation than its subscription: request any.
        place = Range(outcome["partition"], number, number + 1, ANY)
        columns = ",".join(name for name in wanted if name not in _SAID)
        try:
            [(_, row)] = options.row_stream().rows(path, [place], columns=columns)
        except LogGap as gap:
            raise LogGap(
                f"{options.entity}: message {number} was dead-lettered, left the dead-letter "
                "queue and is not retained. Read sooner, or set retention_ms",
                gap.first,
                gap.last,
            ) from None
        for name, said in _SAID.items():
            row = row.append_column(name, pa.array([outcome[said]], pa.string()))
        return row
