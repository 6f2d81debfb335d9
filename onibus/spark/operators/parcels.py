"""Rows of one group, many in one: how they travel to where the group's state is.

Spark hands rows to a stateful function through pandas, value by value. A record batch in Arrow,
packed as one value, takes that way for the cost of a copy. So rows are packed before the shuffle.
Results leave as frames over Arrow's own memory, which Spark takes without a copy, unless a column
is nested: pandas would convert it value by value, so those rows are packed again. A parcel without
rows tells its group how far time is: that way what waits comes out in groups that got no rows, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from onibus.spark.operators.arrivals import GROUP, Arrival

#: Rows, and bytes, that are gathered before they are cut up into parcels.
_GATHERED_ROWS = 50_000
_GATHERED_BYTES = 8 << 20
#: A parcel is one array in Java's memory. An array of 512 KB or more gets separate regions in a
#: heap of 1 GB, and each of them may start a collection of garbage.
_PARCEL_BYTES = 192 << 10
#: A frame is not.
_FRAME_BYTES = 8 << 20

RESULT = "parcel binary"
PACKED = f"{GROUP} int, latest long, parcel binary"
_PACKED = pa.schema(
    [
        pa.field(GROUP, pa.int32()),
        pa.field("latest", pa.int64()),
        pa.field("parcel", pa.binary()),
    ]
)


#: Columns that a frame takes through Spark as they are.
_FLAT = (
    BinaryType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)


def is_flat(schema: StructType) -> bool:
    """Return whether frames can carry rows of this schema."""
    return all(isinstance(field.dataType, _FLAT) for field in schema)


def pack(
    batches: Iterator[pa.RecordBatch], arrival: Arrival, tell: int
) -> Iterator[pa.RecordBatch]:
    """Yield parcels of rows by their groups; the first `tell` groups hear of time in any case."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        gathered.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _GATHERED_ROWS or size >= _GATHERED_BYTES:
            yield _parcels(gathered, arrival, tell)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield _parcels(gathered, arrival, tell)


def _parcels(batches: list[pa.RecordBatch], arrival: Arrival, tell: int) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    # A row without its order or time has its keeper say so, wherever that is.
    groups = pc.fill_null(table.column(GROUP), 0).to_numpy()
    latest = pc.max(arrival.times(table)).as_py() or 0
    table = table.drop_columns([GROUP])
    order = groups.argsort(kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    table = table.take(pa.array(order))
    found: list[int] = []
    pieces: list[pa.Table] = []
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        for piece in _pieces(table.slice(start, end - start), _PARCEL_BYTES):
            found.append(int(ordered[start]))
            pieces.append(piece)
    quiet = sorted(set(range(tell)).difference(found))
    columns = [
        pa.array(found + quiet, pa.int32()),
        pa.array([latest] * (len(found) + len(quiet)), pa.int64()),
        _sealed(pieces, len(quiet)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_PACKED)


def _pieces(table: pa.Table, size: int) -> Iterator[pa.Table]:
    """Yield rows in pieces of about `size` bytes."""
    if table.num_rows:
        step = max(1, table.num_rows * size // max(table.nbytes, 1))
        for start in range(0, table.num_rows, step):
            yield table.slice(start, step)


def frames(table: pa.Table, flat: bool) -> Iterator[pd.DataFrame]:
    """Yield rows as frames: of their columns if these are flat, else of parcels."""
    for piece in _pieces(table, _FRAME_BYTES):
        if flat:
            columns = [column.combine_chunks() for column in piece.columns]
        else:
            columns = [_sealed(list(_pieces(piece, _PARCEL_BYTES)))]
        # Spark takes columns without names by their places.
        yield pd.DataFrame(dict(enumerate(map(pd.arrays.ArrowExtensionArray, columns))))


def _sealed(pieces: list[pa.Table], empty: int = 0) -> pa.Array:
    """Return rows as parcels, then `empty` nulls."""
    # All are written into one buffer, which the column then refers to.
    sink, ends = pa.BufferOutputStream(), [0]
    for piece in pieces:
        with pa.ipc.new_stream(sink, piece.schema) as writer:
            for batch in piece.combine_chunks().to_batches():
                writer.write_batch(batch)
        ends.append(sink.tell())
    offsets = pa.array(ends + [ends[-1]] * empty, pa.int32())
    known = pa.array([True] * len(pieces) + [False] * empty)
    count = len(pieces) + empty
    buffers = [known.buffers()[1], offsets.buffers()[1], sink.getvalue()]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def unseal(parcel: bytes) -> pa.Table:
    """Return the rows of a parcel."""
    with pa.ipc.open_stream(parcel) as reader:
        return reader.read_all()


def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of parcels."""
    for batch in batches:
        for parcel in batch.column("parcel"):
            with pa.ipc.open_stream(parcel.as_buffer()) as reader:
                yield from reader
