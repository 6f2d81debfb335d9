"""Writing rows to an entity: the half of the format `onibus` that is not there yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from onibus.core.errors import InvalidOperation

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        raise InvalidOperation("the format onibus only reads yet")

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        raise NotImplementedError


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        raise InvalidOperation("the format onibus only reads yet")

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        raise NotImplementedError
