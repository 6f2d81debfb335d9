"""Runs an operator: by groups in a batch, with state in a stream.

An `Operator` says what its rows' groups are, and opens a `Keeper` for each group. A keeper has the
state of a group and takes its rows in the order of their arrival: in a batch all of them at once
(`applyInArrow`), in a stream those of each micro-batch. Spark's own store keeps its state between
micro-batches: see processor.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from onibus.core.errors import InvalidArgument
from onibus.core.timeline.chunks import Chunks, nobody
from onibus.core.timeline.state import State
from onibus.spark.operators.arrivals import ARRIVAL, GROUP, ORDER, Arrival, check_free
from onibus.spark.operators.parcels import PACKED, RESULT, is_flat, pack, unpack
from onibus.spark.tasks import spare_modules

Numbers = npt.NDArray[np.int64]

#: Groups of operators that are free to choose: what state is cut into, and what runs in parallel.
GROUPS_DEFAULT = 16


class Keeper(Protocol):
    """The state of one group."""

    @property
    def states(self) -> Sequence[State]:
        """The states to keep; all have the chunks that the keeper was opened with."""
        ...

    def take(self, rows: pa.Table, times: Numbers, until: int) -> pa.Table:
        """Process rows in the order of their arrival; return the results."""
        ...


class Operator(ABC):
    """Processing of the rows of a group. It is sent to the workers."""

    @abstractmethod
    def open(self, group: int, chunks: Chunks, secret: bytes | None) -> Keeper:
        """Return a group's keeper, with no state yet.

        `secret` is the key of the hashes that replace ids. It is None if no state is kept: then
        rows are compared directly.
        """

    #: the columns of what comes out
    schema: StructType


def run(
    rows: DataFrame,
    work: Operator,
    group: Column,
    groups: int,
    arrival: Arrival,
    *,
    until: int = 0,
    timed: bool = False,
) -> DataFrame:
    """Return what comes out of the work.

    `groups` is how many there are, `timed` whether time alone lets something come out, and `until`
    how far it goes in a batch.
    """
    check_free(rows.schema, [ARRIVAL, ORDER, GROUP])
    arrival.check(rows.schema)
    ready = rows.select("*", group.alias(GROUP))
    if not rows.isStreaming:
        return ready.groupBy(GROUP).applyInArrow(_group_function(work, arrival, until), work.schema)
    from onibus.spark.operators.processor import StatefulGroups

    told = groups if timed else 0
    packed = ready.mapInArrow(_packer(arrival, told), PACKED).groupBy(GROUP)
    flat = is_flat(work.schema)
    groups_of = StatefulGroups(work, rows.schema, arrival, flat)
    result = work.schema if flat else RESULT
    worked = packed.transformWithStateInPandas(groups_of, result, "append", "None")
    return worked if flat else worked.mapInArrow(unpack, work.schema)


def _packer(arrival: Arrival, told: int) -> Any:
    # A function, since Spark looks for annotations that a partial object has not.
    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_modules()
        return pack(batches, arrival, told)

    return packed


def _group_function(work: Operator, arrival: Arrival, until: int) -> Any:
    def worked(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        spare_modules()
        keeper = work.open(key[0].as_py() or 0, Chunks(nobody), None)
        table = table.drop_columns([GROUP])
        return take(work, keeper, arrival.placed(table), until)

    return worked


def take(work: Operator, keeper: Keeper, table: pa.Table, until: int) -> pa.Table:
    """Give placed rows to their keeper; return what comes out, by the schema of the work."""
    rows, times = in_order(table)
    out = keeper.take(rows, times, until)
    schema = arrow_schema(work.schema)
    columns = [_as(out.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema that Spark wants from a Python function."""
    return to_arrow_schema(schema, timezone="UTC")


def in_order(table: pa.Table) -> tuple[pa.Table, Numbers]:
    """Return rows in the order of their arrival, and the times at which they came."""
    times, orders = table.column(ARRIVAL), table.column(ORDER)
    for column, what in ((times, "time"), (orders, "order")):
        if column.null_count:
            row = table.filter(pc.is_null(column)).slice(0, 1)
            raise InvalidArgument(f"a row has no arrival {what}: {name_of(row, 0)}")
    moments, places = times.to_numpy(), orders.to_numpy()
    if len(places) and min(int(places.min()), int(moments.min())) < 0:
        at = int(np.flatnonzero((places < 0) | (moments < 0))[0])
        raise InvalidArgument(f"an arrival time or order is below 0: {name_of(table, at)}")
    rows = table.drop_columns([ARRIVAL])
    same = moments[1:] == moments[:-1]
    if ((moments[1:] > moments[:-1]) | (same & (places[1:] > places[:-1]))).all():
        return rows, moments
    by_arrival = np.lexsort((places, moments))
    return rows.take(pa.array(by_arrival)), moments[by_arrival]


def name_of(rows: pa.Table, at: int) -> str:
    """Return what tells a row from others, for people; not its body."""
    row = rows.slice(at, 1).to_pylist()[0]
    told = {
        name: value
        for name, value in row.items()
        if value is not None and not isinstance(value, bytes) and not name.startswith("_onibus_")
    }
    return ", ".join(f"{name}={str(value)[:80]!r}" for name, value in list(told.items())[:6])


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column as Spark wants it; times come in milliseconds."""
    if column.type == kind:
        return column
    if pa.types.is_timestamp(kind) and pa.types.is_integer(column.type):
        column = column.cast(pa.timestamp("ms", tz="UTC"))
    return column.cast(kind)


def orders_of(rows: pa.Table) -> Numbers:
    """Return the order of arrival of rows that a keeper takes."""
    orders: Numbers = rows.column(ORDER).to_numpy()
    return orders


def carried(rows: pa.Table) -> pa.Table:
    """Return rows without what operators added."""
    return rows.drop_columns([ORDER]) if ORDER in rows.column_names else rows


def added(schema: StructType, **columns: Any) -> StructType:
    """Return a schema with further columns."""
    whole = StructType(list(schema.fields))
    for name, kind in columns.items():
        whole = whole.add(name, kind)
    return whole
