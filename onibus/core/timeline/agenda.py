"""Rows that wait for their time, in runs sorted by it.

Rows that begin to wait together are a run: sorted by (due, place), cut into chunks. When time has
passed the first rows of each run come out, and only their chunks are read. A position marks the
next row of a run, so that a chunk is written once and dropped when it is used up. Runs are merged
when there are as many rows in the younger ones as in the older.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onibus.core.timeline.chunks import Chunks

#: A chunk has about this many bytes, all of which are read to get its first row.
CHUNK_BYTES = 1 << 20

#: What an agenda adds to rows: when they are due, and their place among those due at one time.
DUE, PLACE = "_due", "_place"


class _Run:
    """Rows by their time; chunks that were used up are gone."""

    __slots__ = ("chunks", "taken")

    def __init__(self, chunks: list[list[int]], taken: int) -> None:
        #: (number, rows, due of the next row) of each chunk
        self.chunks = chunks
        #: rows of the first chunk that were taken already
        self.taken = taken

    def __len__(self) -> int:
        rows: int = sum([chunk[1] for chunk in self.chunks])
        return rows - self.taken

    def next_due(self) -> int:
        due: int = self.chunks[0][2]
        return due


class Agenda:
    """The waiting rows, in order of their times."""

    def __init__(self, chunks: Chunks, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._chunks = chunks
        self._chunk_bytes = chunk_bytes
        self._runs: list[_Run] = []
        #: rows not yet written: those of the current batch
        self._loose: list[pa.Table] = []

    def __len__(self) -> int:
        loose: int = sum([table.num_rows for table in self._loose])
        return sum(map(len, self._runs)) + loose

    def add(self, rows: pa.Table, dues: Any, places: Any) -> None:
        """Let rows wait until they are due."""
        if rows.num_rows:
            rows = rows.append_column(DUE, pa.array(dues, pa.int64()))
            self._loose.append(rows.append_column(PLACE, pa.array(places, pa.int64())))

    def take(self, now: int) -> pa.Table | None:
        """Take out the rows that are due, by (due, place); return None if no row is due."""
        tables, left = [], []
        for table in self._loose:
            due = pc.less_equal(table.column(DUE), now)
            tables.append(table.filter(due))
            left.append(table.filter(pc.invert(due)))
        self._loose = [table for table in left if table.num_rows]
        for run in self._runs:
            while run.chunks and run.next_due() <= now:
                table = self._read(run)
                dues = table.column(DUE).to_numpy()
                count = int(np.searchsorted(dues, now, side="right"))
                tables.append(table.slice(0, count))
                if count < table.num_rows:
                    run.taken += count
                    run.chunks[0][2] = int(dues[count])
                    break
                self._used_up(run)
        self._runs = [run for run in self._runs if run.chunks]
        tables = [table for table in tables if table.num_rows]
        return by_time(pa.concat_tables(tables)) if tables else None

    def _read(self, run: _Run) -> pa.Table:
        """Return the remaining rows of a run's first chunk."""
        with pa.ipc.open_stream(self._chunks.read(run.chunks[0][0])) as reader:
            return reader.read_all().slice(run.taken)

    def _used_up(self, run: _Run) -> None:
        self._chunks.drop(run.chunks.pop(0)[0])
        run.taken = 0

    # Keeping

    def encode(self) -> list[Any]:
        """Put the rows that are not kept yet; return the runs as plain values."""
        if self._loose:
            tables, self._loose = self._loose, []
            count = sum(table.num_rows for table in tables)
            while self._runs and len(self._runs[-1]) <= 2 * count:
                run = self._runs.pop()
                count += len(run)
                while run.chunks:
                    tables.append(self._read(run))
                    self._used_up(run)
            self._runs.append(self._write(by_time(pa.concat_tables(tables))))
        return [[run.chunks, run.taken] for run in self._runs]

    def decode(self, runs: list[Any]) -> None:
        """Take up what `encode` returned."""
        self._runs = [_Run([list(chunk) for chunk in chunks], taken) for chunks, taken in runs]

    def _write(self, rows: pa.Table) -> _Run:
        size = max(1, rows.num_rows * self._chunk_bytes // max(rows.nbytes, 1))
        chunks = []
        for start in range(0, rows.num_rows, size):
            piece = rows.slice(start, size)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, piece.schema) as writer:
                writer.write_table(piece)
            number = self._chunks.put(sink.getvalue().to_pybytes())
            chunks.append([number, piece.num_rows, piece.column(DUE)[0].as_py()])
        return _Run(chunks, 0)


def by_time(rows: pa.Table) -> pa.Table:
    """Return rows by (due, place), in one piece."""
    order = pc.sort_indices(rows, sort_keys=[(DUE, "ascending"), (PLACE, "ascending")])
    return rows.take(order).combine_chunks()
