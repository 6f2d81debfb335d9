"""Sealed generations of recorded ids: sorted runs of chunks, and the filter before each of them.

This file owns the bytes of `recent_ids`, `id_chunks` and of the packed columns of `id_runs`. All
numbers are 64 bits, little-endian. An identity is 16 bytes: `high` is the number in its first
eight bytes, `low` the number in the other eight. An entry is (high, low, ordinal, time); ordinal
and time (milliseconds since 1970) are not negative. Entries are kept by columns:

    entries   high[n], low[n], ordinal[n], time[n], check
    check     four zero bytes, CRC-32 of all before (so the CRC-32 of the whole is a constant)

- `recent_ids.entries`: what one commit recorded, or several small ones (core/id_generation.py),
  in order.
- `id_chunks.entries`: a chunk, either of a run's entries, sorted by (high, low), no identity twice,
  and never two entries of one `high` in different chunks, so that one chunk decides about an
  identity; or a segment of its filter: words[n], check.
- `id_runs.chunks`: first high[n], chunk[n], check: the chunks in order.
- `id_runs.filter`: words in the whole filter, segment[n], check: the segments in order. A filter
  of eight million ids has 20 MB. It is written in segments, while the run is merged, since one
  row of that size would hold up the event loop and the commit it rides in.

The filter is a blocked Bloom filter with blocks of one word, so a probe touches one cache line.
An identity's word is (high >> 32) * words >> 32, and its bits in that word are
MASKS[low & 4095] | MASKS[low >> 12 & 4095]. MASKS[i] has the bits i & 63, i >> 6 and
(i * 2,654,435,761 >> 20) & 63. Words follow the order of the entries, so a run that is written in
order completes its filter in order, too. With 20 bits an id about 1 in 500 foreign ids passes.
"""

from __future__ import annotations

import mmap
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from onibus.core.errors import Damaged
from onibus.core.pages import IdPages
from onibus.core.records import ID_CHUNKS, ID_RUNS, Row, WriteBatch

# Columns are read through native memory views; swapping bytes would cost more than the lookup.
assert sys.byteorder == "little", "recorded ids are read in place, as little-endian numbers"

Words = npt.NDArray[np.uint64]
#: Entries as four rows: high, low, ordinal, time.
Columns = npt.NDArray[np.uint64]

HIGH, LOW, ORDINAL, TIME = range(4)
NOTHING: Columns = np.empty((4, 0), dtype=np.uint64)
FILTER_BITS_AN_ID = 20

MASKS = [1 << (i & 63) | 1 << (i >> 6) | 1 << ((i * 2_654_435_761 >> 20) & 63) for i in range(4096)]
_MASKS = np.array(MASKS, dtype=np.uint64)
_SHIFT_32 = np.uint64(32)
_SHIFT_12 = np.uint64(12)
_MASK_INDEX = np.uint64(4095)
_PADDING = bytes(4)
_MAPPED_WORDS_MIN = 2**17
_CRC_OF_CHECKED = 0x2144DF1C


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large generations and their pieces are; tests make them small to reach every tier."""

    #: A young generation of that many ids is sealed: 2 MB of memory, about 4 ms of work in slices.
    seal_at: int = 16_384
    #: This many runs of a tier are merged into one run of the next.
    runs_merged: int = 8
    #: Runs of this tier (8 million ids) are not merged further, only dropped.
    tier_max: int = 3
    #: What a lookup reads and checks. A row of 120 entries fits into a page of 4 KB.
    chunk_entries: int = 120
    #: 64 KB.
    segment_words: int = 8_192
    #: Entries of a sealed generation written by one slice of maintenance.
    writes_a_slice: int = 4_096
    #: Rows deleted by one slice of maintenance.
    deletes_a_slice: int = 2_048


def with_check(*parts: bytes | array[int]) -> bytes:
    """Return the parts in one, followed by their check."""
    check = 0
    for part in (*parts, _PADDING):
        check = crc32(part, check)
    return b"".join((*parts, _PADDING, check.to_bytes(4, "little")))


def checked(data: bytes, what: str, key: int) -> memoryview:
    """Return the numbers in data, the last of which is the check, or raise `Damaged`."""
    if crc32(data) != _CRC_OF_CHECKED or len(data) % 8:
        raise Damaged(f"{what} {key} of the remembered ids is not what was written")
    return memoryview(data).cast("Q")


def columns_of(view: memoryview) -> Columns:
    """Return the numbers of entries as columns."""
    return np.frombuffer(view, dtype=np.uint64).reshape(4, -1)


def blank_words(count: int) -> Words:
    """Return a filter of zeros that costs nothing until it is touched, and then little at a time.

    Numpy asks for huge pages where an array is large. The first touch of each took 6 to 9 ms on a
    virtual machine, and there are ten in the filter of eight million ids.
    """
    if sys.platform == "win32" or count < _MAPPED_WORDS_MIN:
        return np.zeros(count, dtype=np.uint64)
    memory = mmap.mmap(-1, 8 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype=np.uint64)


def masks_of(low: Words) -> Words:
    """Return the filter bits of each identity."""
    masks: Words = _MASKS[low & _MASK_INDEX] | _MASKS[low >> _SHIFT_12 & _MASK_INDEX]
    return masks


def words_of(high: Words, count: int) -> npt.NDArray[np.intp]:
    """Return the place of each identity's word in a filter of that many words."""
    return ((high >> _SHIFT_32) * np.uint64(count) >> _SHIFT_32).astype(np.intp)


def newest_of_each(entries: Columns, forget_before: int) -> Columns:
    """Return the entries sorted, of each identity the newest, without those that are forgotten."""
    if forget_before >= 0:
        kept = entries[TIME] > np.uint64(forget_before)
        if not kept.all():
            entries = entries[:, kept]
    order = entries[HIGH].argsort()
    ordered: Columns = entries.take(order, axis=1)
    high = ordered[HIGH]
    if not (high[1:] == high[:-1]).any():
        return ordered
    # The same identity twice, or two that share `high`: rare, so only here is all compared.
    order = np.lexsort((entries[ORDINAL], entries[TIME], entries[LOW], entries[HIGH]))
    ordered = entries.take(order, axis=1)
    last = np.ones(ordered.shape[1], dtype=bool)
    np.any(ordered[:2, 1:] != ordered[:2, :-1], axis=0, out=last[:-1])
    return ordered[:, last]


class Run:
    """A sealed generation: where its chunks are, and its filter. It never changes."""

    __slots__ = (
        "chunks", "count", "filter", "firsts", "highs", "newest", "oldest", "run", "segments",
        "tier", "view",
    )  # fmt: skip

    def __init__(
        self, run: int, tier: int, count: int, oldest: int, newest: int,
        firsts: array[int], chunks: array[int], words: Words, segments: array[int],
        highs: array[int] | None = None,
    ) -> None:  # fmt: skip
        #: the first halves of all identities, where the run is small and was sealed in this life:
        #: then nothing is read for those whose bits are in the filter by chance
        self.highs = highs
        self.run = run
        self.tier = tier
        self.count = count
        self.oldest = oldest
        self.newest = newest
        self.firsts = firsts
        self.chunks = chunks
        self.filter = words
        self.segments = segments
        #: One word by plain indexing is twice as fast as through numpy.
        self.view = memoryview(words)  # type: ignore[arg-type]

    def find(self, high: int, low: int, read: Callable[[int], bytes]) -> tuple[int, int] | None:
        """Return (time, ordinal) of an identity. Reads one chunk: ask the filter first."""
        if self.highs is not None:
            at = bisect_left(self.highs, high)
            if at == len(self.highs) or self.highs[at] != high:
                return None
        place = bisect_right(self.firsts, high) - 1
        if place < 0:
            return None
        chunk = self.chunks[place]
        entries = checked(read(chunk), "chunk", chunk)
        count = len(entries) // 4
        at = bisect_left(entries, high, 0, count)
        while at < count and entries[at] == high:
            if entries[count + at] == low:
                return entries[3 * count + at], entries[2 * count + at]
            at += 1
        return None

    def memory_bytes(self) -> int:
        """Return how much memory the run takes."""
        highs = 0 if self.highs is None else 8 * len(self.highs)
        return self.filter.nbytes + 16 * len(self.chunks) + 8 * len(self.segments) + highs + 400

    def row(self, partition: int) -> Row:
        """Return the run's row in `id_runs`."""
        chunks = with_check(self.firsts, self.chunks)
        packed = with_check(array("Q", [len(self.filter)]), self.segments)
        return (
            self.run, partition, self.tier, self.count, self.oldest, self.newest, chunks, packed
        )  # fmt: skip


def run_of_row(row: Row, pages: IdPages) -> Run:
    """Return the run of a row of `id_runs`; its filter is read, its entries are not."""
    run, _, tier, count, oldest, newest, packed_chunks, packed_filter = row
    assert isinstance(run, int)
    assert isinstance(tier, int)
    assert isinstance(count, int)
    assert isinstance(oldest, int)
    assert isinstance(newest, int)
    assert isinstance(packed_chunks, bytes)
    assert isinstance(packed_filter, bytes)
    index = array("Q", checked(packed_chunks, "chunk list of run", run)[:-1].tobytes())
    half = len(index) // 2
    header = array("Q", checked(packed_filter, "filter list of run", run)[:-1].tobytes())
    words = blank_words(header[0])
    at = 0
    for segment in header[1:]:
        view = checked(pages.read_ids(segment), "filter", segment)
        part = np.frombuffer(view[:-1], dtype=np.uint64)
        if at + len(part) > len(words):
            raise Damaged(f"the filter of run {run} of the remembered ids is longer than it says")
        words[at : at + len(part)] = part
        at += len(part)
    if at != len(words):
        raise Damaged(f"the filter of run {run} of the remembered ids is shorter than it says")
    return Run(run, tier, count, oldest, newest, index[:half], index[half:], words, header[1:])


class Unsettled:
    """Chunks that are not known to be committed, so that `Pages` may not have them yet."""

    def __init__(self, pages: IdPages) -> None:
        self._pages = pages
        self._chunks: dict[int, bytes] = {}
        self._fresh: list[int] = []
        self._marks: deque[tuple[int, list[int]]] = deque()
        self._mark = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, chunk: int, data: bytes) -> None:
        """Keep a chunk that was put into a batch."""
        self._chunks[chunk] = data
        self._fresh.append(chunk)

    def read(self, chunk: int) -> bytes:
        """Return a chunk's bytes, committed or not."""
        data = self._chunks.get(chunk)
        return self._pages.read_ids(chunk) if data is None else data

    def mark(self) -> int:
        """Give all chunks added since the last mark to this one."""
        self._mark += 1
        if self._fresh:
            self._marks.append((self._mark, self._fresh))
            self._fresh = []
        return self._mark

    def settled(self, mark: int) -> None:
        """Release the chunks up to that mark: they are committed."""
        while self._marks and self._marks[0][0] <= mark:
            for chunk in self._marks.popleft()[1]:
                del self._chunks[chunk]

    def memory_bytes(self) -> int:
        """Return how much memory the chunks take."""
        return sum(map(len, self._chunks.values()))


class RunWriter:
    """Writes one run in order of its entries, a few at a time; hidden until it is complete."""

    def __init__(
        self, partition: int, pages: IdPages, sizes: Sizes, tier: int, count_max: int,
        unsettled: Unsettled,
    ) -> None:  # fmt: skip
        self._partition = partition
        self._pages = pages
        self._sizes = sizes
        self._unsettled = unsettled
        self.tier = tier
        self.count = 0
        self._oldest = 2**63 - 1
        self._newest = -1
        self._firsts = array("Q")
        self._chunks = array("Q")
        self._highs = array("Q") if tier == 0 else None
        self._segments = array("Q")
        self._words = blank_words(1 + count_max * FILTER_BITS_AN_ID // 64)
        self._words_written = 0
        self._words_complete = 0
        self._rest = NOTHING

    def memory_bytes(self) -> int:
        """Return how much memory the unfinished run takes."""
        touched: int = 8 * self._words_complete
        highs = 0 if self._highs is None else 8 * len(self._highs)
        return touched + 16 * len(self._chunks) + self._rest.nbytes + highs

    def written(self) -> Iterator[int]:
        """Yield the chunks and segments of the unfinished run that were written so far."""
        yield from self._chunks
        yield from self._segments

    def append(self, entries: Columns, out: WriteBatch) -> None:
        """Add sorted entries whose `high` all exceed those added before."""
        added = entries.shape[1]
        if not added:
            return
        self.count += added
        self._oldest = min(self._oldest, int(entries[TIME].min()))
        self._newest = max(self._newest, int(entries[TIME].max()))
        if self._highs is not None:
            self._highs.frombytes(entries[HIGH].tobytes())
        words = words_of(entries[HIGH], len(self._words))
        starts = np.flatnonzero(words[1:] != words[:-1]) + 1
        starts = np.concatenate((np.zeros(1, dtype=np.intp), starts))
        masks = np.bitwise_or.reduceat(masks_of(entries[LOW]), starts)
        self._words[words[starts]] |= masks
        # The next entries may still set bits in the last word.
        self._words_complete = int(words[-1])
        if self._rest.shape[1]:
            entries = np.concatenate((self._rest, entries), axis=1)
        self._rest = self._write_chunks(entries, out, last=False)

    def append_some(self, entries: Columns, out: WriteBatch) -> Columns:
        """Add as many of the last entries as one slice writes, and return the rest."""
        stop = self._sizes.writes_a_slice
        high = entries[HIGH]
        if stop < len(high):
            stop = int(high.searchsorted(high[stop], side="right"))
        self.append(entries[:, :stop], out)
        rest = entries[:, stop:]
        if not rest.shape[1]:
            self.end()
        self.write_filter(stop, out)
        return rest

    def end(self) -> None:
        """Say that no more entries will come."""
        self._words_complete = len(self._words)

    def write_filter(self, segments: int, out: WriteBatch) -> bool:
        """Write up to `segments` complete segments of the filter; return True when none is left."""
        size = self._sizes.segment_words
        while True:
            start = self._words_written
            stop = min(start + size, len(self._words))
            if start == stop or stop > self._words_complete:
                return True
            if not segments:
                return False
            segments -= 1
            self._segments.append(self._put(self._words[start:stop].tobytes(), out))
            self._words_written = stop

    def finish(self, out: WriteBatch) -> Run | None:
        """Write the run's row, after `end` and the whole filter; None when it has no entries."""
        if not self.count:
            assert not self._segments
            return None
        assert self._words_written == len(self._words)
        self._write_chunks(self._rest, out, last=True)
        run = Run(
            self._pages.new_id(), self.tier, self.count, self._oldest, self._newest,
            self._firsts, self._chunks, self._words, self._segments, self._highs,
        )  # fmt: skip
        out.put(ID_RUNS, run.row(self._partition))
        return run

    def _write_chunks(self, entries: Columns, out: WriteBatch, last: bool) -> Columns:
        high = entries[HIGH]
        start, count = 0, entries.shape[1]
        while count - start >= self._sizes.chunk_entries or (last and start < count):
            stop = min(start + self._sizes.chunk_entries, count)
            while stop < count and high[stop] == high[stop - 1]:
                stop += 1
            self._firsts.append(int(high[start]))
            self._chunks.append(self._put(entries[:, start:stop].tobytes(), out))
            start = stop
        return entries[:, start:].copy()

    def _put(self, content: bytes, out: WriteBatch) -> int:
        chunk = self._pages.new_id()
        data = with_check(content)
        self._unsettled.add(chunk, data)
        out.put(ID_CHUNKS, (chunk, self._partition, data))
        return chunk


def read_columns(chunk: int, read: Callable[[int], bytes]) -> Columns:
    """Return a chunk's entries, for merging."""
    return columns_of(checked(read(chunk), "chunk", chunk)[:-1])
