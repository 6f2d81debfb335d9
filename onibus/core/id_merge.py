"""Merges runs of recorded ids into one, in slices that follow the order of their entries.

A slice reads the next chunk of each run where it needs one, takes the entries up to the highest
`high` for which all runs have been read, and appends them to the new run. Lookups use the old runs
until the new one is complete. A crash in between leaves chunks that belong to no run; recovery
deletes them and the merge starts again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onibus.core.id_runs import (
    HIGH,
    NOTHING,
    Columns,
    Run,
    RunWriter,
    Unsettled,
    newest_of_each,
    read_columns,
)
from onibus.core.records import WriteBatch

#: 256 KB of filter in one slice; steady merging needs less than one segment in most of them.
_SEGMENTS_A_SLICE = 4
#: Eight runs give about 8,000 entries to a slice.
_ENTRIES_A_SOURCE = 1_000


class _Source:
    """One of the runs being merged, and how much of it was read."""

    __slots__ = ("entries", "next_chunk", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.next_chunk = 0
        self.entries = NOTHING

    def more(self) -> bool:
        return self.next_chunk < len(self.run.chunks)

    def load(self, unsettled: Unsettled) -> None:
        """Read on, once half of the read entries are taken: slices are even, and copy little."""
        if self.more() and self.entries.shape[1] < _ENTRIES_A_SOURCE // 2:
            parts = [self.entries]
            loaded = self.entries.shape[1]
            while self.more() and loaded < _ENTRIES_A_SOURCE:
                parts.append(read_columns(self.run.chunks[self.next_chunk], unsettled.read))
                loaded += parts[-1].shape[1]
                self.next_chunk += 1
            self.entries = np.concatenate(parts, axis=1)

    def skip(self) -> None:
        self.next_chunk = len(self.run.chunks)
        self.entries = NOTHING

    def take(self, high_max: int | None) -> Columns:
        entries = self.entries
        if high_max is None:
            self.entries = NOTHING
            return entries
        # No two chunks share a `high`, so up to this one everything has been read.
        end = int(entries[HIGH].searchsorted(np.uint64(high_max), side="right"))
        self.entries = entries[:, end:]
        return entries[:, :end]


class Merge:
    """A merge under way."""

    def __init__(self, runs: Sequence[Run], writer: RunWriter, unsettled: Unsettled) -> None:
        self.runs = runs
        self._sources = [_Source(run) for run in runs]
        self.writer = writer
        self._unsettled = unsettled
        self._ended = False

    def memory_bytes(self) -> int:
        """Return how much memory the merge takes."""
        loaded = sum(source.entries.nbytes for source in self._sources)
        return self.writer.memory_bytes() + loaded

    def step(self, forget_before: int, out: WriteBatch) -> bool:
        """Do one slice; True when all is written and `finish` may be called."""
        if not self._ended:
            self._merge_next(forget_before, out)
        written = self.writer.write_filter(_SEGMENTS_A_SLICE, out)
        return self._ended and written

    def finish(self, out: WriteBatch) -> Run | None:
        """Write the new run's row; None when everything in the old runs was forgotten."""
        return self.writer.finish(out)

    def _merge_next(self, forget_before: int, out: WriteBatch) -> None:
        high_max: int | None = None
        more = False
        for source in self._sources:
            if source.run.newest <= forget_before:
                source.skip()
            source.load(self._unsettled)
            if source.more():
                more = True
                last = int(source.entries[HIGH][-1])
                high_max = last if high_max is None else min(high_max, last)
        parts = [source.take(high_max) for source in self._sources if source.entries.shape[1]]
        if parts:
            self.writer.append(newest_of_each(np.concatenate(parts, axis=1), forget_before), out)
        if not more:
            self._ended = True
            if self.writer.count:
                self.writer.end()
