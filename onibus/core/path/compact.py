"""Compact: small blocks are merged and mostly dead ones rewritten, ordinals unchanged.

Each call does one slice. Rows are copied as they are, never decoded; readers see either the old
blocks or the new one, since both change in one commit.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from onibus.core.block import Entry, encode_entries
from onibus.core.fans import Members
from onibus.core.limits import BLOCK_BYTES_MAX
from onibus.core.log import BlockPlace, Log
from onibus.core.numbering import ORDINAL, ORDINALS_END
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition

#: Fewer blocks than this are not worth merging: this bounds how often rows are rewritten.
MERGE_COUNT_MIN = 16
#: What one slice reads; the blocks of a slice may be large and have few living rows.
READ_BYTES_MAX = 4 * BLOCK_BYTES_MAX
#: This many dead bytes may stay while clients use the partition. Most of them are in blocks that
#: receivers are emptying, and go away with these blocks.
DEAD_BYTES_MAX = 8 << 20
#: Blocks at both ends are left alone: they are about to be read, or were written just now.
UNTOUCHED = 16


def compact(partition: Partition, out: WriteBatch, eager: bool = False) -> bool:
    """Rewrite one group of blocks, if one is worth it; return whether one was.

    `eager` also merges small blocks that are all alive, and rewrites whatever is mostly dead: for
    when there is nothing else to do.
    """
    log = partition.log
    if partition.releasing:
        # A block that is rewritten counts only the subscriptions that there are.
        return False
    if not eager and log.total_bytes - log.live_bytes <= DEAD_BYTES_MAX:
        return False
    group = _choose(partition, eager)
    if not group:
        return False
    _rewrite(partition, group, out)
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


def _rewrite(partition: Partition, group: list[BlockPlace], out: WriteBatch) -> None:
    log = partition.log
    entries: list[Entry] = []
    rows: list[bytes] = []
    for place in group:
        block = log.read(place)
        for position in range(block.rows):
            entry = block.entry(position)
            if partition.in_use(entry[0]):
                entries.append(entry)
                rows.append(block.row(position))
            else:
                log.complete_from = max(log.complete_from, entry[0] + 1)
        log.drop(place, out)
    dropped = set(group)
    log.places = [place for place in log.places if place not in dropped]
    if not rows:
        return
    keys = None
    if any(entry[3] for entry in entries):
        keys = b"".join(
            entry[0].to_bytes(8, "little") + entry[3].to_bytes(8, "little") for entry in entries
        )
    log.append(
        encode_entries(entries, rows),
        entries[0][0],
        entries[-1][0],
        len(rows),
        min(entry[2] for entry in entries),
        out,
        keys,
        _members(partition, [entry[0] for entry in entries]) if partition.is_topic else None,
    )


def _members(partition: Partition, ordinals: list[int]) -> Members:
    """Return who still wants which of these rows of a topic."""
    members = Members(np.array(ordinals, ORDINAL))
    for number, subscription in partition.subscriptions.items():
        members.add(
            number, [at for at, ordinal in enumerate(ordinals) if subscription.is_live(ordinal)]
        )
    return members
