"""The exact memory of the message identities of one partition, in generations (D5, D7).

The youngest generation is a dictionary; each commit adds the ids it recorded as one `recent_ids`
row. When it is full it is sealed: sorted, written as a run of chunks (core/id_runs.py, which owns
all formats), and dropped from memory except for a filter of 20 bits per id. Eight runs of a tier
are merged into one of the next (core/id_merge.py): 16 thousand ids, 131 thousand, one million,
eight million. So ten million ids are 8 to 22 runs, and a lookup of an unknown id mostly reads
nothing.

Rules:
1. `now` never goes back and ordinals rise, so of two entries of one identity the one recorded later
   is the newer. `forget_before` never goes back either: entries before it may be deleted.
2. Whether an entry counts is tested per entry against `forget_before` on every `find`; sealing,
   merging and dropping change what it costs, never its result.
3. `record` writes nothing. Entries are sealed only after `write` has put them.
4. All batches that are passed as `out` are committed in that order, each atomically. Chunks
   stay in memory until the owner says they are committed: it calls `mark()` when it hands a batch
   to the store, and `settled(mark)` when that commit has returned.
5. A run's row, and the deletion of the rows that it replaces, are in one batch. Its chunks are
   written before it, and those of old runs deleted after it, in slices. A crash leaves chunks of
   no run, which `orphans` finds.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from onibus.core.block import NEVER
from onibus.core.id_generation import Generation, entries_of_row
from onibus.core.id_merge import Merge
from onibus.core.id_runs import (
    HIGH,
    LOW,
    MASKS,
    NOTHING,
    Columns,
    Run,
    RunWriter,
    Sizes,
    Unsettled,
    masks_of,
    newest_of_each,
    run_of_row,
    words_of,
)
from onibus.core.pages import IdPages
from onibus.core.records import ID_CHUNKS, ID_RUNS, RECENT_IDS, Row, Table, WriteBatch

#: From this many ids on, asking a dozen filters by numpy is faster than one by one.
_BATCH_MIN = 16
#: Steps of sealing, of a millisecond each, in one slice of maintenance.
_SEALS_A_SLICE_MAX = 3
#: Measured with CPython 3.11: the hash, its place, their slots in dictionary, list and arrays.
_YOUNG_BYTES_AN_ID = 140
_NUMBERS = struct.Struct("<QQ")


class RememberedIds:
    """The identities that one partition has recorded, and their ordinals."""

    def __init__(self, partition: int, pages: IdPages, sizes: Sizes | None = None) -> None:
        self._partition = partition
        self._pages = pages
        self._sizes = sizes or Sizes()
        self._unsettled = Unsettled(pages)
        self._young = Generation()
        self._full: deque[Generation] = deque()
        self._runs: list[Run] = []
        #: Rows of runs that were found at the start and not read yet.
        self._cold: list[Row] = []
        #: The run that the oldest full generation becomes.
        self._sealing: RunWriter | None = None
        self._unsealed: Columns = NOTHING
        #: By the tier of the runs that are merged.
        self._merges: dict[int, Merge] = {}
        #: Deleted runs, and their chunks that are not yet deleted. Runs are freed one by one: to
        #: free eight large filters at once takes too long.
        self._condemned: deque[tuple[Run, Iterator[int]]] = deque()
        #: The runs by the size of their filter: those of one size share the place of a word.
        self._by_size: list[tuple[int, list[Run]]] = []
        #: Whether some tier has enough runs to merge.
        self._merge_due = False
        #: The time from which on a whole run is forgotten.
        self._forgotten_after = NEVER

    # Asking and recording

    def find(self, hashes: Sequence[bytes], forget_before: int) -> list[int]:
        """Return for each hash the ordinal of its newest entry after `forget_before`, or -1."""
        if self._cold:
            self._warm()
        answers = [-1] * len(hashes)
        unknown: Sequence[int] = range(len(hashes))
        for generation in (self._young, *reversed(self._full)):
            if len(unknown) == len(hashes) and generation.places.keys().isdisjoint(hashes):
                # The usual case, and by far the fastest way to find it out.
                continue
            find = generation.places.get
            left = []
            for index in unknown:
                place = find(hashes[index])
                if place is not None and generation.times[place] > forget_before:
                    answers[index] = generation.ordinals[place]
                else:
                    left.append(index)
            unknown = left
        if self._runs and unknown:
            if len(unknown) < _BATCH_MIN:
                self._find_few(hashes, unknown, forget_before, answers)
            else:
                self._find_many(hashes, unknown, forget_before, answers)
        return answers

    def record(self, hash: bytes, ordinal: int, now: int) -> None:
        """Record an identity; `write` makes it part of a commit."""
        self.record_all([hash], [ordinal], now)

    def record_all(self, hashes: Sequence[bytes], ordinals: Sequence[int], now: int) -> None:
        """Record identities, none of them twice; `write` makes them part of a commit."""
        start = 0
        while start < len(hashes):
            if len(self._young) >= self._sizes.seal_at:
                self._full.append(self._young)
                self._young = Generation()
            end = min(len(hashes), start + self._sizes.seal_at - len(self._young))
            self._young.add(hashes[start:end], ordinals[start:end], now)
            start = end

    def write(self, out: WriteBatch) -> None:
        """Put the ids recorded since the last write, as one row.

        Where a generation became full in between there is a row for each, so that sealing one can
        delete exactly its rows.
        """
        for generation in (*self._full, self._young):
            if not generation.written:
                generation.write(self._partition, self._pages, out)

    def mark(self) -> int:
        """Return a mark for all batches so far: call it when the last of them goes to the store."""
        return self._unsettled.mark()

    def settled(self, mark: int) -> None:
        """Take note that all batches up to the mark are committed."""
        self._unsettled.settled(mark)

    # Statistics

    @property
    def count(self) -> int:
        """How many entries are kept, those among them that are forgotten but not yet dropped."""
        young = sum(len(g) for g in (self._young, *self._full))
        cold = sum(row[3] for row in self._cold if isinstance(row[3], int))
        return young + cold + sum(run.count for run in self._runs)

    def memory_bytes(self) -> int:
        """Return about how much memory all this takes."""
        young = sum(len(g) for g in (self._young, *self._full))
        return (
            young * _YOUNG_BYTES_AN_ID
            + self._unsettled.memory_bytes()
            + sum(run.memory_bytes() for run in self._runs)
            + sum(run.memory_bytes() for run, _ in self._condemned)
            + sum(merge.memory_bytes() for merge in self._merges.values())
        )

    # Maintenance

    def maintain(self, forget_before: int, out: WriteBatch) -> bool:
        """Do one slice of at most about 3 ms, its records into `out`; True when more waits."""
        if self._cold:
            self._warm()
        if not self._waiting(forget_before):
            return False
        if self._may_seal():
            # Bulk sends fill generations faster than single steps seal them.
            for _ in range(min(len(self._full), _SEALS_A_SLICE_MAX)):
                if self._may_seal():
                    self._seal_some(forget_before, out)
        elif self._condemned:
            self._delete_some(out)
        elif not self._drop_forgotten(forget_before, out):
            self._start_merges()
            # The lowest tier first: its merges are short, and its runs pile up the fastest.
            self._merge_some(min(self._merges), forget_before, out)
        return self._waiting(forget_before)

    def _waiting(self, forget_before: int) -> bool:
        return bool(
            self._condemned
            or self._merges
            or self._merge_due
            or self._forgotten_after <= forget_before
            or self._may_seal()
        )

    def _may_seal(self) -> bool:
        return bool(self._full) and self._full[0].written

    def _seal_some(self, forget_before: int, out: WriteBatch) -> None:
        generation = self._full[0]
        if self._sealing is None:
            self._unsealed = newest_of_each(generation.columns(), forget_before)
            self._sealing = self._writer(0, self._unsealed.shape[1])
        elif self._unsealed.shape[1]:
            self._unsealed = self._sealing.append_some(self._unsealed, out)
        else:
            self._replace((), self._sealing.finish(out), out)
            generation.delete_rows(out)
            self._sealing = None
            self._full.popleft()

    def _delete_some(self, out: WriteBatch) -> None:
        deleted = 0
        for chunk in islice(self._condemned[0][1], self._sizes.deletes_a_slice):
            out.delete(ID_CHUNKS, (chunk,))
            deleted += 1
        if deleted < self._sizes.deletes_a_slice:
            self._condemned.popleft()

    def _drop_forgotten(self, forget_before: int, out: WriteBatch) -> bool:
        merging = self._merging()
        gone = [r for r in self._runs if r.newest <= forget_before and r.run not in merging]
        if gone:
            self._replace(gone, None, out)
        return bool(gone)

    def _start_merges(self) -> None:
        for tier in self._mergeable_tiers():
            merging = self._merging()
            runs = [r for r in self._runs if r.tier == tier and r.run not in merging]
            runs = runs[: self._sizes.runs_merged]
            writer = self._writer(tier + 1, sum(run.count for run in runs))
            self._merges[tier] = Merge(runs, writer, self._unsettled)
        self._merge_due = False

    def _mergeable_tiers(self) -> list[int]:
        counts = [0] * self._sizes.tier_max
        for run in self._runs:
            if run.tier < self._sizes.tier_max:
                counts[run.tier] += 1
        needed = self._sizes.runs_merged
        return [t for t, count in enumerate(counts) if count >= needed and t not in self._merges]

    def _merging(self) -> set[int]:
        return {run.run for merge in self._merges.values() for run in merge.runs}

    def _merge_some(self, tier: int, forget_before: int, out: WriteBatch) -> None:
        merge = self._merges[tier]
        if merge.step(forget_before, out):
            del self._merges[tier]
            self._replace(merge.runs, merge.finish(out), out)

    def _writer(self, tier: int, count_max: int) -> RunWriter:
        return RunWriter(
            self._partition, self._pages, self._sizes, tier, count_max, self._unsettled
        )

    def _replace(self, old: Sequence[Run], new: Run | None, out: WriteBatch) -> None:
        for run in old:
            out.delete(ID_RUNS, (run.run,))
            self._condemned.append((run, chain(run.chunks, run.segments)))
        self._arrange([r for r in self._runs if r not in old] + ([new] if new else []))

    def _arrange(self, runs: list[Run]) -> None:
        self._runs = runs
        sizes: dict[int, list[Run]] = {}
        for run in runs:
            sizes.setdefault(len(run.filter), []).append(run)
        self._by_size = list(sizes.items())
        self._merge_due = bool(self._mergeable_tiers())
        self._forgotten_after = min((run.newest for run in runs), default=NEVER)

    # Sealed generations

    def _find_few(
        self, hashes: Sequence[bytes], unknown: Sequence[int], forget_before: int,
        answers: list[int],
    ) -> None:  # fmt: skip
        by_size = self._by_size
        for index in unknown:
            high, low = _NUMBERS.unpack(hashes[index])
            mask = MASKS[low & 4095] | MASKS[low >> 12 & 4095]
            top = high >> 32
            best = (forget_before, -1)
            for size, runs in by_size:
                word = top * size >> 32
                for run in runs:
                    if run.view[word] & mask == mask:
                        entry = run.find(high, low, self._unsettled.read)
                        if entry is not None and entry[0] > forget_before and entry > best:
                            best = entry
            answers[index] = best[1]

    def _find_many(
        self, hashes: Sequence[bytes], unknown: Sequence[int], forget_before: int,
        answers: list[int],
    ) -> None:  # fmt: skip
        everything = len(unknown) == len(hashes)
        packed = b"".join(hashes if everything else [hashes[index] for index in unknown])
        numbers = np.frombuffer(packed, dtype=np.uint64).reshape(-1, 2)
        highs, lows = numbers[:, HIGH], numbers[:, LOW]
        masks = masks_of(lows)
        found = np.empty((len(self._runs), len(unknown)), dtype=np.uint64)
        order: list[Run] = []
        for size, runs in self._by_size:
            words = words_of(highs, size)
            for run in runs:
                found[len(order)] = run.filter[words]
                order.append(run)
        found &= masks
        best: dict[int, tuple[int, int]] = {}
        for place in (found == masks).reshape(-1).nonzero()[0].tolist():
            row, column = divmod(place, len(unknown))
            high, low = _NUMBERS.unpack_from(packed, 16 * column)
            entry = order[row].find(high, low, self._unsettled.read)
            if entry is not None and entry[0] > forget_before:
                best[column] = max(entry, best.get(column, entry))
        for column, entry in best.items():
            answers[unknown[column]] = entry[1]

    def _warm(self) -> None:
        """Read the filters of the runs that were found at the start."""
        cold, self._cold = self._cold, []
        self._arrange([run_of_row(row, self._pages) for row in cold])

    def orphans(self, chunks: Iterable[int]) -> list[int]:
        """Return those chunks that no run has, nor will have: what a crash left behind."""
        if self._cold:
            self._warm()
        left = set(chunks)
        for writer in (self._sealing, *(merge.writer for merge in self._merges.values())):
            if writer is not None:
                left.difference_update(writer.written())
        for run in self._runs:
            left.difference_update(run.chunks, run.segments)
        return sorted(left)

    def erase(self) -> Iterator[tuple[Table, Any]]:
        """Yield every row; the partition is gone."""
        if self._cold:
            self._warm()
        for generation in (self._young, *self._full):
            for row in generation.stored():
                yield RECENT_IDS, (row,)
        for run in self._runs:
            yield ID_RUNS, (run.run,)
            for chunk in (*run.chunks, *run.segments):
                yield ID_CHUNKS, (chunk,)

    # Recovery

    def recover(self, recent: Iterable[Row], runs: Iterable[Row]) -> None:
        """Take up the rows that the store has of this partition.

        The runs' filters are read when they are first asked: receivers need not wait for them.
        """
        assert not self.count
        self._cold = sorted(runs, key=_key)
        for row in sorted(recent, key=_key):
            key, entries = entries_of_row(row)
            for hash, ordinal, now in entries:
                self.record(hash, ordinal, now)
            # A row of several generations, if their size was changed, is deleted with the last of
            # them.
            for generation in (*self._full, self._young):
                generation.recovered()
            self._young.rows.append(key)


def _key(row: Row) -> int:
    key = row[0]
    assert isinstance(key, int)
    return key
