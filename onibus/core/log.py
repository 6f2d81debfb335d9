"""The log of one partition: where each ordinal's row is, and which blocks can go.

In memory a block is its place and a few numbers; rows stay in the store until they are delivered.
The *floor* is the ordinal below which released rows may go: retention and named readers hold it
down, without them everything released may go. A block whose rows have all been released is dropped
once it is below the floor; compaction frees the rest (path/compact.py).

In a topic several subscriptions may want a row: its block counts them (`Fans`), and the row is
released when none is left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import NamedTuple

from onibus.core.block import NEVER, Block, Entry
from onibus.core.errors import Damaged
from onibus.core.fans import Fans, Members
from onibus.core.message import Message
from onibus.core.numbering import ORDINALS_END, to_column
from onibus.core.pages import Pages
from onibus.core.records import BLOCK_INDEX, BLOCKS, WriteBatch

_first = attrgetter("first")
_last = attrgetter("last")


class Repair(NamedTuple):
    """Stamps that an operator set back, because a wrong clock had put them into the future."""

    #: the first ordinal with a stamp of the right clock
    ordinal: int
    #: the last stamp of the wrong clock, and what the next one could be
    before: int
    after: int


class StagedBlock(NamedTuple):
    """A block whose rows are in the store since they were staged; only its index is new."""

    block: int
    #: its index (core/block.py)
    entries: bytes
    #: its size with the index
    size: int


class BlockPlace:
    """One block of the log, as far as memory knows it."""

    __slots__ = (
        "arrived", "block", "expires", "expiring", "fans", "first", "last", "live", "mortal",
        "rows", "size", "stamp",
    )  # fmt: skip

    def __init__(
        self, block: int, first: int, last: int, rows: int, expires: int, size: int
    ) -> None:
        self.block = block
        self.first = first
        self.last = last
        self.rows = rows
        self.live = rows
        #: bus time at which a row may next expire
        self.expires = expires
        #: rows that expired by this bus time are deleted in slices, from this ordinal on
        self.expiring: tuple[int, int] | None = None
        #: whether any row of it ever expires
        self.mortal = expires != NEVER
        self.size = size
        #: EnqueuedTimeUtc of the last row, and the bus time of its arrival, once they were read
        self.stamp = self.arrived = -1
        #: in a topic: how many subscriptions want each row
        self.fans: Fans | None = None

    @property
    def live_bytes(self) -> int:
        return self.size * self.live // self.rows

    @property
    def contiguous(self) -> bool:
        """Return whether every ordinal from the first to the last has its row."""
        return self.last - self.first + 1 == self.rows


class Log:
    """The blocks of one partition in order of their ordinals."""

    def __init__(self, partition: int, pages: Pages) -> None:
        self.partition = partition
        self.pages = pages
        self.next_ordinal = 1
        self.last_stamp = 0
        #: the only places where stamps fall
        self.repairs: list[Repair] = []
        #: ordinals below this are durable; those above are not visible yet
        self.visible_below = 1
        self.places: list[BlockPlace] = []
        self.live_bytes = 0
        self.total_bytes = 0
        #: released rows from this ordinal on are kept (R1, R2)
        self.floor = ORDINALS_END
        #: from this ordinal on no row is missing
        self.complete_from = 1
        #: blocks that may not be committed: the store may not have them yet
        self._fresh: dict[int, bytes | StagedBlock] = {}
        self._committing: dict[int, bytes | StagedBlock] = {}
        self._expiries: list[tuple[int, int]] = []

    # Adding and finding

    def append(
        self,
        payload: bytes | StagedBlock,
        first: int,
        last: int,
        rows: int,
        expires: int,
        out: WriteBatch,
        keys: bytes | None = None,
        members: Members | None = None,
        live: int | None = None,
    ) -> None:
        """Add a block, of rows with ordinals from first to last; in a topic, for its members.

        `live`: how many of its rows are live, if some were released before.
        """
        entries = None
        if isinstance(payload, StagedBlock):
            block, entries, size = payload
        else:
            block, size = self.pages.new_id(), len(payload)
            out.put(BLOCKS, (block, payload))
        self._fresh[block] = payload
        fans = None if members is None else members.encode()
        span = (to_column(first), to_column(last))
        place_row = (block, self.partition, *span, rows, expires, size, keys, fans, entries)
        out.put(BLOCK_INDEX, place_row)
        place = BlockPlace(block, first, last, rows, expires, size)
        if live is not None:
            place.live = live
        if members is not None:
            place.fans = members.fans()
            place.live = place.fans.live()
        self._take_up(place)
        if not place.live:
            self._drop_dead(len(self.places) - 1, len(self.places), out)

    def load(self, places: list[BlockPlace]) -> None:
        """Take up the blocks that the store has, in the order of their ordinals."""
        self.places = places
        self.live_bytes = sum([place.live_bytes for place in places])
        self.total_bytes = sum([place.size for place in places])
        # Rows kept only for readers no longer expire.
        mortal = [place for place in places if place.mortal and place.live]
        self._expiries = [(place.expires, place.first) for place in mortal]
        heapify(self._expiries)
        self.complete_from = self.next_ordinal
        for place in reversed(places):
            if place.last + 1 != self.complete_from or not place.contiguous:
                break
            self.complete_from = place.first
        if not all(place.live for place in places):
            # The next rise drops the blocks that no subscription wants.
            self.floor = 0

    def _take_up(self, place: BlockPlace) -> None:
        if self.places and place.first < self.places[-1].first:
            insort(self.places, place, key=_first)
        else:
            self.places.append(place)
        self.live_bytes += place.live_bytes
        self.total_bytes += place.size
        if place.mortal:
            heappush(self._expiries, (place.expires, place.first))

    def commit_started(self) -> None:
        """Note that the store commit of all blocks written so far has started."""
        self._committing.update(self._fresh)
        self._fresh = {}

    def commit_finished(self, below: int) -> None:
        """Note that the commit is durable; messages below that ordinal become visible."""
        self.visible_below = below
        for block, payload in self._committing.items():
            if not isinstance(payload, StagedBlock):
                self.pages.keep(block, payload)
        self._committing = {}

    def find(self, ordinal: int) -> BlockPlace:
        """Return the block that has the ordinal's row."""
        at = bisect_right(self.places, ordinal, key=_first) - 1
        if at < 0 or self.places[at].last < ordinal:
            raise Damaged(f"partition {self.partition}: no block has ordinal {ordinal}")
        return self.places[at]

    def has(self, place: BlockPlace) -> bool:
        """Return whether a block is still there."""
        at = bisect_left(self.places, place.first, key=_first)
        return at < len(self.places) and self.places[at] is place

    def read(self, place: BlockPlace) -> Block:
        """Return a block's rows."""
        payload = self.uncommitted(place)
        if payload is None:
            return self.pages.read_block(place.block)
        if isinstance(payload, StagedBlock):
            return Block(self.pages.read_staged(place.block), entries=payload.entries)
        return Block(payload, sound=True)

    def uncommitted(self, place: BlockPlace) -> bytes | StagedBlock | None:
        """Return a block that the store does not have yet, or not all of it."""
        return self._fresh.get(place.block) or self._committing.get(place.block)

    def reaching(self, ordinal: int) -> int:
        """Return the index in `places` of the first block that ends at an ordinal or above it."""
        return bisect_left(self.places, ordinal, key=_last)

    def entry(self, ordinal: int) -> tuple[Block, int]:
        """Return the block of an ordinal and the row's position in it."""
        block = self.read(self.find(ordinal))
        return block, self._position(block, ordinal)

    def rows(self, ordinals: Sequence[int]) -> list[tuple[Entry, Message]]:
        """Return what the index has of messages, and they, verified; in the order of the ordinals.

        Those that follow each other in their block are read in one go: several groups of a FIFO
        queue, sent in turns, are a few runs of rows.
        """
        rising = sorted(ordinals)
        found = self._rows(rising)
        if rising == ordinals:
            return found
        by_ordinal = dict(zip(rising, found, strict=True))
        return [by_ordinal[ordinal] for ordinal in ordinals]

    def _rows(self, ordinals: list[int]) -> list[tuple[Entry, Message]]:
        found: list[tuple[Entry, Message]] = []
        first, last = 0, -1
        at, count = 0, len(ordinals)
        while at < count:
            ordinal = ordinals[at]
            if not first <= ordinal <= last:
                place = self.find(ordinal)
                first, last = place.first, place.last
                block = self.read(place)
            start = end = self._position(block, ordinal)
            while at < count and end < block.rows and ordinals[at] == ordinal:
                if not block.contiguous and block.position(ordinal) != end:
                    break
                at, end, ordinal = at + 1, end + 1, ordinal + 1
            found += block.all_stored(start, end)
        return found

    def _position(self, block: Block, ordinal: int) -> int:
        position = block.position(ordinal)
        if position < 0:
            raise Damaged(f"partition {self.partition}: ordinal {ordinal} is not in its block")
        return position

    def expires(self, ordinal: int) -> int:
        """Return the bus time at which the ordinal's message expires, or NEVER."""
        if not self.find(ordinal).mortal:
            return NEVER
        block, position = self.entry(ordinal)
        return block.entry(position)[2]

    def last_stamp_of(self, place: BlockPlace) -> int:
        """Return the EnqueuedTimeUtc of a block's last row."""
        if place.stamp < 0:
            self._read_times(place)
        return place.stamp

    def last_arrival_in(self, place: BlockPlace) -> int:
        """Return the bus time at which a block's last row was stored."""
        if place.arrived < 0:
            self._read_times(place)
        return place.arrived

    def _read_times(self, place: BlockPlace) -> None:
        block = self.read(place)
        entry = block.entry(block.rows - 1)
        place.stamp, place.arrived = entry[1], entry[6]

    # Letting go

    def release(self, first: int, last: int, out: WriteBatch) -> None:
        """Release rows that no subscription wants; drop blocks without wanted rows."""
        places = self.places
        at = max(bisect_right(places, first, key=_first) - 1, 0)
        ended = at
        emptied = False
        while ended < len(places) and places[ended].first <= last:
            place = places[ended]
            if place.last >= first:
                self._release_in(place, max(first, place.first), min(last, place.last))
                emptied |= not place.live
            ended += 1
        if emptied:
            self._drop_dead(at, ended, out)

    def raise_floor(self, floor: int, out: WriteBatch) -> None:
        """Released rows below that ordinal may go now."""
        self.floor = floor
        self._drop_dead(0, len(self.places), out)

    def _drop_dead(self, start: int, end: int, out: WriteBatch) -> None:
        """Drop the blocks without a wanted or kept row."""
        places = self.places
        dead = [p for p in places[start:end] if not p.live and p.last < self.floor]
        for place in dead:
            self._drop(place, out)
            self.complete_from = max(self.complete_from, place.last + 1)
        if dead:
            gone = set(dead)
            places[start:end] = [place for place in places[start:end] if place not in gone]

    def remove(self, group: list[BlockPlace], out: WriteBatch) -> None:
        """Delete blocks whose rows are in another one, or are not kept."""
        for place in group:
            self._drop(place, out)
        gone = set(group)
        self.places = [place for place in self.places if place not in gone]

    def _release_in(self, place: BlockPlace, first: int, last: int) -> None:
        if place.fans is not None:
            rows = place.fans.release(first, last)
        elif place.contiguous:
            rows = last - first + 1
        else:
            rows = self.read(place).count(first, last)
        before = place.live_bytes
        place.live -= rows
        self.live_bytes += place.live_bytes - before

    def _drop(self, place: BlockPlace, out: WriteBatch) -> None:
        """Delete a block's rows; the caller takes it off `places`."""
        self.live_bytes -= place.live_bytes
        self.total_bytes -= place.size
        out.delete(BLOCKS, (place.block,))
        out.delete(BLOCK_INDEX, (place.block,))
        self._fresh.pop(place.block, None)
        self._committing.pop(place.block, None)
        self.pages.forget(place.block)

    # Expiry

    def next_expiry(self) -> int:
        """Return the bus time at which a row may expire next."""
        return self._expiries[0][0] if self._expiries else NEVER

    def expired_block(self, now: int) -> BlockPlace | None:
        """Return a block in which rows may have expired, if there is one."""
        while self._expiries and self._expiries[0][0] <= now:
            expires, first = heappop(self._expiries)
            at = bisect_right(self.places, first, key=_first) - 1
            if at >= 0 and self.places[at].first == first and self.places[at].expires == expires:
                return self.places[at]
        return None

    def expire_again(self, place: BlockPlace, expires: int) -> None:
        """Check a block again at that bus time."""
        place.expires = expires
        if expires != NEVER:
            heappush(self._expiries, (expires, place.first))
