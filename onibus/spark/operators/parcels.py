"""Rows of one group, many in one: how they travel to where the group's state is.

Spark hands rows to a stateful function through pandas, value by value. A record batch in Arrow,
packed as one value, takes that way for the cost of a copy. So rows are packed before the shuffle
and unpacked behind it. A parcel without rows tells its group how far time is: that way what waits
comes out in groups that got no rows, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onibus.spark.operators.arrivals import ARRIVAL, GROUP

#: Rows, and bytes, that are gathered before they are cut up into parcels.
_GATHERED_ROWS = 50_000
_GATHERED_BYTES = 32 << 20
#: Rows of one parcel on the way back.
_PARCEL_BYTES = 8 << 20

PACKED = f"{GROUP} int, latest long, parcel binary"
_PACKED = pa.schema(
    [
        pa.field(GROUP, pa.int32()),
        pa.field("latest", pa.int64()),
        pa.field("parcel", pa.binary()),
    ]
)


def pack(batches: Iterator[pa.RecordBatch], tell: int) -> Iterator[pa.RecordBatch]:
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
            yield _parcels(gathered, tell)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield _parcels(gathered, tell)


def _parcels(batches: list[pa.RecordBatch], tell: int) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    # A row without its order or time has its keeper say so, wherever that is.
    groups = pc.fill_null(table.column(GROUP), 0).to_numpy()
    latest = pc.max(table.column(ARRIVAL)).as_py() or 0
    table = table.drop_columns([GROUP])
    order = groups.argsort(kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    table = table.take(pa.array(order))
    found, parcels = ordered[starts].tolist(), []
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        parcels.append(_seal(table.slice(start, end - start)))
    quiet = sorted(set(range(tell)).difference(found))
    columns = [
        pa.array(found + quiet, pa.int32()),
        pa.array([latest] * (len(found) + len(quiet)), pa.int64()),
        pa.array(parcels + [None] * len(quiet), pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_PACKED)


def seal(table: pa.Table) -> Iterator[bytes]:
    """Yield rows as parcels of a handy size."""
    if table.num_rows:
        step = max(1, table.num_rows * _PARCEL_BYTES // max(table.nbytes, 1))
        for start in range(0, table.num_rows, step):
            yield _seal(table.slice(start, step))


def _seal(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


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
