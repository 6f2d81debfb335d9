"""The format `onibus` of Spark: what to read or write with which options; the rest is delegated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class OnibusSource(DataSource):
    """Data source for the entities of a server.

    Spark finds this class automatically (package `pyspark_onibus`), and creates an object for every
    read and write, on the driver and on workers. Modules are imported when they are needed.
    """

    @classmethod
    def name(cls) -> str:
        return "onibus"

    def schema(self) -> str:
        from onibus.spark.options import read_options
        from onibus.spark.schema import schema_of

        return schema_of(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from onibus.spark.batch_reading import batch_reader
        from onibus.spark.options import read_options

        return batch_reader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from onibus.spark.options import read_options
        from onibus.spark.stream_reading import stream_reader

        return stream_reader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from onibus.spark.writing import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from onibus.spark.writing import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
