"""The identities that a timeline has recorded: sorted runs of entries, each a chunk.

The entries and their bytes are those of core/id_runs.py: (high, low, ordinal, time) in columns.
Nothing is asked one by one: a run is searched for all identities at once. Runs are merged when
there are as many entries in the younger ones as in the older, so that there are few, and an entry
is rewritten rarely. A run whose entries are all forgotten is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onibus.core.id_runs import (
    HIGH,
    LOW,
    ORDINAL,
    TIME,
    Columns,
    Words,
    checked,
    columns_of,
    newest_of_each,
    with_check,
)
from onibus.core.timeline.chunks import Chunks

Numbers = npt.NDArray[np.int64]

#: Runs of more entries, 16 MB, are not merged any further.
RUN_ENTRIES_MAX = 2**19


@dataclass(slots=True, eq=False)
class KnownRun:
    """Sorted entries, none of whose identities is there twice."""

    entries: Columns
    newest: int
    #: whether identities share their first half, so that one place does not decide about one
    twins: bool
    #: the chunk that keeps it, if one does
    chunk: int | None = None

    def __len__(self) -> int:
        count: int = self.entries.shape[1]
        return count


class KnownIds:
    """The recorded ids of the rows that were accepted."""

    def __init__(self, chunks: Chunks, run_entries_max: int = RUN_ENTRIES_MAX) -> None:
        self._chunks = chunks
        self._run_entries_max = run_entries_max
        #: the oldest first; of one identity the entry of the younger run is the newer
        self._runs: list[KnownRun] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def find(self, words: Words) -> tuple[Numbers, Numbers]:
        """Return ordinal and time of the newest entry of each identity; -1 if it has none.

        Identities are rows of two words.
        """
        ordinals, times = np.full(len(words), -1, np.int64), np.full(len(words), -1, np.int64)
        for run in self._runs:
            places = run.entries[HIGH].searchsorted(words[:, 0])
            inside = np.flatnonzero(places < len(run))
            while len(inside):
                at = places[inside]
                same = run.entries[HIGH][at] == words[inside, 0]
                found = same & (run.entries[LOW][at] == words[inside, 1])
                ordinals[inside[found]] = run.entries[ORDINAL][at[found]]
                times[inside[found]] = run.entries[TIME][at[found]]
                if not run.twins:
                    break
                inside = inside[same & ~found]
                places[inside] += 1
                inside = inside[places[inside] < len(run)]
        return ordinals, times

    def add(self, words: Words, ordinals: Numbers, times: Numbers, forget_before: int) -> None:
        """Record identities, and forget those recorded up to that time."""
        for run in [run for run in self._runs if run.newest <= forget_before]:
            self._drop(run)
        if not len(words):
            return
        entries = np.empty((4, len(words)), np.uint64)
        entries[:2] = words.T
        entries[ORDINAL], entries[TIME] = ordinals, times
        entries = newest_of_each(entries, forget_before)
        while self._runs and self._merges(self._runs[-1], entries.shape[1]):
            older = self._runs[-1]
            self._drop(older)
            both = np.concatenate((older.entries, entries), axis=1)
            entries = newest_of_each(both, forget_before)
        if entries.shape[1]:
            self._runs.append(_run(entries))

    def _merges(self, older: KnownRun, count: int) -> bool:
        return len(older) <= 2 * count and len(older) + count <= self._run_entries_max

    def _drop(self, run: KnownRun) -> None:
        self._runs.remove(run)
        if run.chunk is not None:
            self._chunks.drop(run.chunk)

    # Keeping

    def encode(self) -> list[int]:
        """Put every run that is not kept yet; return the chunks of all, the oldest first."""
        kept = []
        for run in self._runs:
            if run.chunk is None:
                run.chunk = self._chunks.put(with_check(run.entries.tobytes()))
            kept.append(run.chunk)
        return kept

    def decode(self, chunks: list[int]) -> None:
        """Take up what `encode` returned."""
        for chunk in chunks:
            view = checked(self._chunks.read(chunk), "run", chunk)
            run = _run(columns_of(view[:-1]))
            run.chunk = chunk
            self._runs.append(run)


def _run(entries: Columns) -> KnownRun:
    high = entries[HIGH]
    twins = bool((high[1:] == high[:-1]).any())
    return KnownRun(entries, int(entries[TIME].max()), twins)
