"""Compact: small blocks are merged and mostly dead ones rewritten, ordinals unchanged.

Rows are copied as they are, never decoded; readers see either the old blocks or the new one, since
both change in one commit. The new block is prepared in slices of counted steps, with commands in
between: reading takes steps by rows and bytes, and a topic's block by rows and subscriptions. Rows
that are released in between stay in the new block, which does not count them as live.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onibus.core.block import Entry, encode_entries
from onibus.core.fans import Fans, Members
from onibus.core.limits import BLOCK_BYTES_MAX
from onibus.core.log import BlockPlace, Log
from onibus.core.numbering import ORDINAL, ORDINALS_END, Ordinals
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition

#: Fewer blocks than this are not worth merging: this bounds how often rows are rewritten.
MERGE_COUNT_MIN = 16
#: What one rewrite reads; its blocks may be large and have few living rows.
READ_BYTES_MAX = 4 * BLOCK_BYTES_MAX
#: Blocks that one rewrite merges: replacing them is one step.
MERGE_COUNT_MAX = 1_000
#: Steps of one slice, about 0.1 µs each.
SLICE_STEPS = 50_000
#: Steps of a block, of each of its rows, and of asking a subscription; and what one more step does:
#: read these bytes, or find these rows among those of a subscription.
BLOCK_STEPS, ROW_STEPS, ARROW_ROW_STEPS, ASK_STEPS = 300, 10, 100, 100
BYTES_A_STEP, FOUND_A_STEP = 200, 5
#: Rows that are read without an end of the slice.
ROWS_AT_ONCE = 1_000
#: This many dead bytes may stay while clients use the partition. Most of them are in blocks that
#: receivers are emptying, and go away with these blocks.
DEAD_BYTES_MAX = 8 << 20
#: Blocks at both ends are left alone: they are about to be read, or were written just now.
UNTOUCHED = 16


def compact(partition: Partition, out: WriteBatch, eager: bool = False) -> bool:
    """Do a slice of rewriting a group of blocks, if one is worth it; return whether one was.

    `eager` also merges small blocks that are all alive, and rewrites whatever is mostly dead: for
    when there is nothing else to do. A rewrite that began is finished in any case.
    """
    log = partition.log
    if partition.releasing:
        # A block that is rewritten counts only the subscriptions that there are.
        return False
    rewrite = partition.rewrite
    if rewrite is None:
        if not eager and log.total_bytes - log.live_bytes <= DEAD_BYTES_MAX:
            return False
        group = _choose(partition, eager)
        if not group:
            return False
        rewrite = partition.rewrite = Rewrite(partition, group)
    if rewrite.prepare(SLICE_STEPS):
        partition.rewrite = None
        rewrite.finish(out)
    return True


def forget_retained(partition: Partition, now: int, out: WriteBatch) -> None:
    """Raise the floor over rows that neither the retention nor a named reader needs (R1, R2).

    A reader holds it down up to the owner's limits of age and size; past them it loses rows.
    """
    log, settings = partition.log, partition.settings
    floor = ORDINALS_END
    if settings.retention_ms is not None:
        floor = _first_younger(log, now - settings.retention_ms, 0)
    if partition.readers:
        position = min(partition.readers.values())
        if settings.reader_age_ms_max is not None:
            at = log.reaching(position)
            position = max(position, _first_younger(log, now - settings.reader_age_ms_max, at))
        if settings.reader_bytes_max is not None:
            position = _first_within(log, position, floor, settings.reader_bytes_max)
        floor = min(floor, position)
    if floor != log.floor:
        log.raise_floor(floor, out)


def _first_younger(log: Log, moment: int, at: int) -> int:
    """Return the first ordinal, from that block on, of a block that ends after that bus time.

    Bus time never falls: of many blocks whose times are not known yet, only a few are read.
    """
    found = bisect_right(log.places, moment, lo=at, key=log.last_arrival_in)
    return log.places[found].first if found < len(log.places) else log.next_ordinal


def _first_within(log: Log, position: int, retained: int, size: int) -> int:
    """Return the ordinal from which rows kept only for readers have at most that size."""
    if log.total_bytes - log.live_bytes <= size:
        return position
    for place in reversed(log.places):
        if place.last < position:
            break
        if place.first < retained:
            size -= place.size - place.live_bytes
            if size < 0:
                return max(position, place.last + 1)
    return position


def _choose(partition: Partition, eager: bool) -> list[BlockPlace]:
    places = partition.log.places
    group: list[BlockPlace] = []
    size = read = 0
    for at, place in enumerate(places):
        small = place.live_bytes < BLOCK_BYTES_MAX // 2
        dead = place.live * 2 < place.rows and place.last < partition.log.floor
        inside = UNTOUCHED <= at < len(places) - UNTOUCHED and place.last < partition.log.floor
        fits = size + place.live_bytes <= BLOCK_BYTES_MAX and read < READ_BYTES_MAX
        fits = fits and len(group) < MERGE_COUNT_MAX
        if (dead or (eager and small and inside)) and fits:
            group.append(place)
            size += place.live_bytes
            read += place.size
            continue
        if _worth(group):
            return group
        group, size, read = ([place], place.live_bytes, place.size) if dead else ([], 0, 0)
    return group if _worth(group) else []


def _worth(group: list[BlockPlace]) -> bool:
    """Return whether rewriting frees more than it writes, or merges many small blocks."""
    dead_bytes = sum(place.size - place.live_bytes for place in group)
    live_bytes = sum(place.live_bytes for place in group)
    return len(group) >= MERGE_COUNT_MIN or dead_bytes > live_bytes + 4096


class Rewrite:
    """A group of blocks that follow each other, on their way into one."""

    def __init__(self, partition: Partition, group: list[BlockPlace]) -> None:
        self._partition = partition
        self._log: Log = partition.log
        self._group = group
        self._entries: list[Entry] = []
        self._rows: list[bytes] = []
        #: the ordinals taken from each block, and the last one that was left out
        self._taken: dict[BlockPlace, Ordinals] = {}
        self._left_out = 0
        self._ordinals = np.zeros(0, ORDINAL)
        self._members: Members | None = None
        self._payload = b""
        self._preparing = self._prepare()

    def prepare(self, steps: int) -> bool:
        """Prepare the new block for about that many steps; return whether it is ready."""
        for taken in self._preparing:
            steps -= taken
            if steps <= 0:
                return False
        return True

    def _prepare(self) -> Iterator[int]:
        """Gather the rows and, in a topic, their subscriptions; yield the steps of each bit."""
        for place in self._group:
            if self._log.has(place):
                yield from self._read(place)
        if not self._rows:
            return
        self._ordinals = np.concatenate(list(self._taken.values()))
        if self._partition.is_topic:
            self._members = Members(self._ordinals)
            steps = ASK_STEPS + len(self._ordinals) // FOUND_A_STEP
            for number, subscription in list(self._partition.subscriptions.items()):
                self._members.add_flags(number, subscription.gone.outside(self._ordinals))
                yield steps
        self._payload = encode_entries(self._entries, self._rows)
        yield len(self._rows) * ROW_STEPS

    def _read(self, place: BlockPlace) -> Iterator[int]:
        """Take the rows of a block that are in use."""
        block = self._log.read(place)
        yield BLOCK_STEPS + place.size // BYTES_A_STEP
        ordinals, wanted = self._wanted(place, block.index["ordinal"])
        self._taken[place] = ordinals[wanted]
        if not wanted.all():
            self._left_out = max(self._left_out, int(ordinals[~wanted][-1]))
        positions = np.flatnonzero(wanted).tolist()
        for start in range(0, len(positions), ROWS_AT_ONCE):
            some = positions[start : start + ROWS_AT_ONCE]
            self._entries += map(block.entry, some)
            self._rows += map(block.row, some)
            yield len(some) * (ARROW_ROW_STEPS if block.encoding else ROW_STEPS)

    def _wanted(
        self, place: BlockPlace, ordinals: npt.NDArray[Any]
    ) -> tuple[Ordinals, npt.NDArray[np.bool_]]:
        """Return the ordinals of a block, and which of them messages still have."""
        if place.fans is not None:
            return place.fans.ordinals, place.fans.counts > 0
        return ordinals, self._partition.subscription.gone.outside(ordinals)

    def finish(self, out: WriteBatch) -> None:
        """Replace the group by the new block, unless rows that were left out are kept again."""
        log = self._log
        group = [place for place in self._group if log.has(place)]
        if any(place.last >= log.floor for place in group if place.live < place.rows):
            return
        log.complete_from = max(log.complete_from, self._left_out + 1)
        counts = self._counts()
        live = int(np.count_nonzero(counts))
        log.remove(group, out)
        if not live:
            return
        entries, keys = self._entries, None
        if any(entry[3] for entry in entries):
            keys = b"".join(
                entry[0].to_bytes(8, "little") + entry[3].to_bytes(8, "little") for entry in entries
            )
        expires = min(entry[2] for entry in entries)
        if self._members is not None:
            self._members.recount(counts.astype(np.uint16))
        span = (entries[0][0], entries[-1][0], len(entries))
        log.append(self._payload, *span, expires, out, keys, self._members, live)

    def _counts(self) -> npt.NDArray[Any]:
        """Return how many subscriptions want each row now."""
        if self._members is None:
            return self._partition.subscription.gone.outside(self._ordinals)
        return np.concatenate(
            [_counted(place.fans, ordinals) for place, ordinals in self._taken.items()]
        )


def _counted(fans: Fans | None, ordinals: Ordinals) -> npt.NDArray[Any]:
    assert fans is not None
    return fans.counts[np.searchsorted(fans.ordinals, ordinals)]
