"""Reading the log and the outcomes, slice by slice, parallel to the commits (R3, R4).

The thread that owns all state plans where rows are, which is cheap; another thread reads, verifies
and decodes them. A block that was dropped or rewritten in between is planned again, so a reader
sees every row once, or gets an error that names the lost rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from onibus.core.block import Block
from onibus.core.commands import (
    CheckLog,
    FindEnds,
    FindPosition,
    HasBlock,
    HasOutcomes,
    Piece,
    PlanLog,
    PlanOutcomes,
    Query,
)
from onibus.core.errors import (
    Damaged,
    InvalidArgument,
    LogGap,
    OnibusError,
    PartitionOffline,
    ReaderBehind,
    StoreFailed,
)
from onibus.core.outcomes import OutcomePlace
from onibus.core.records import OUTCOMES as OUTCOMES_TABLE
from onibus.directory.named_reader import MESSAGES, OUTCOMES
from onibus.directory.readers import check_log, find_incarnation, find_reader
from onibus.shard.pages import load_block
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import Reply, answer, fail
from onibus.store.interface import Store

if TYPE_CHECKING:
    from onibus.gateway.broker import Broker
    from onibus.shard.shard import Shard

#: What one slice reads at least: a bulk block, or many small ones. With less on its way the memory
#: of the last slice is used again; larger slices take new pages of the system for each.
SLICE_BYTES = 2 << 20

T = TypeVar("T")
_ENTRIES = OUTCOMES_TABLE.columns.index("entries")

P = TypeVar("P", Piece, OutcomePlace)
#: The content of a piece.
F = TypeVar("F")
#: Converts the content to the caller's form, on the reading thread.
Make = Callable[[list[F]], Any]


class Reading(Generic[P, F]):
    """One reading, from one number to another; call `next_slice` until it replies with None."""

    log = ""

    def __init__(
        self,
        broker: Broker,
        name: str,
        partition: int,
        incarnation: int | None = None,
        reader: str | None = None,
    ) -> None:
        self._broker = broker
        self._name = name
        self._entity = find_incarnation(broker, name, incarnation)
        check_log(self._entity, self.log)
        if type(partition) is not int or not 0 <= partition < len(self._entity.partitions):
            raise InvalidArgument(
                f"{self._entity.name} has partitions 0 to {len(self._entity.partitions) - 1}"
            )
        self._index = partition
        self._reader = None if reader is None else find_reader(self._entity, reader, self.log)
        #: ordinals, or numbers of outcomes
        self.position = self.end = 0

    @property
    def partition(self) -> ShardPartition:
        return self._entity.partitions[self._index]

    @property
    def _store(self) -> Shard:
        return self.partition.store

    def next_slice(self, make: Make[F], reply: Reply) -> None:
        """Reply with what `make` makes of the next rows, or with None at the end."""
        if self.position >= self.end:
            answer(reply, None)
            return
        try:
            # Find it by name: an entity that was recreated in between is a different one.
            find_incarnation(self._broker, self._name, self._entity.incarnation)
            self.partition.check_online()
            self._entity.last_used = self._broker.clock.now()
            if self._reader is not None:
                self._reader.used = self._broker.clock.now()
            pieces = self._plan()
            if pieces:
                self._read(pieces, make, reply)
            else:
                answer(reply, None)
        except OnibusError as error:
            fail(reply, error)

    def _ask(self, question: Query[T]) -> T:
        """Plan in the partition; the error of a named reader names the rows it has lost."""
        try:
            return self._store.look(self.partition, question)
        except LogGap as gap:
            if self._reader is None:
                raise
            raise ReaderBehind(
                f"reader {self._reader.name!r} was left behind: {gap}", gap.first, gap.last
            ) from None

    def _read(self, pieces: list[P], make: Make[F], reply: Reply) -> None:
        """Read on another thread."""
        opening = self.partition.opening
        found: list[F] = []
        made: list[Any] = []

        def work(store: Store) -> None:
            for piece in pieces:
                content = self._fetch(store, piece)
                if content is None:
                    break
                found.append(content)
            if found:
                made.append(make(found))

        def done(error: BaseException | None) -> None:
            if error is not None:
                fail(reply, self._failure(opening, error))
            elif found:
                self.position = pieces[len(found) - 1].last + 1
                self._passed(pieces[: len(found)])
                answer(reply, made[0])
            elif self.partition.opening == opening and self._ask(self._has(pieces[0])):
                missing = Damaged(f"a row of the log from {pieces[0].first} on is missing")
                fail(reply, self._store.partition_failed(self.partition, missing))
            else:
                self.next_slice(make, reply)

        self._store.read_beside(work, done)

    def _failure(self, opening: int, error: BaseException) -> BaseException:
        """Return the error for the caller when rows could not be read."""
        if self.partition.opening == opening and isinstance(error, Damaged):
            return self._store.partition_failed(self.partition, error)
        if isinstance(error, (StoreFailed, Damaged)):
            return PartitionOffline(f"partition {self._index} of {self._entity.name}: {error}")
        return error

    def _plan(self) -> list[P]:
        """Return the places of the next rows; an empty list at the end."""
        raise NotImplementedError

    def _has(self, piece: P) -> Query[bool]:
        """Return the query whether a piece should still be where it was."""
        raise NotImplementedError

    def _fetch(self, store: Store, piece: P) -> F | None:
        """Read a piece, on another thread; return None if it was dropped."""
        raise NotImplementedError

    def _passed(self, pieces: list[P]) -> None:
        """Record the position after the rows that were read."""


class LogReading(Reading[Piece, tuple[Block, int, int]]):
    """Reads rows of the log."""

    log = MESSAGES
    #: how many bytes of blocks may still be read; the first block always is
    _left = 1 << 62
    _begun = False

    def between(
        self, start: int, end: int | None, limit: int | None, limit_bytes: int | None
    ) -> LogReading:
        """Set from which sequence number on, and up to which, rows are read."""
        for name, most in (("limit", limit), ("limit_bytes", limit_bytes)):
            if most is not None and (type(most) is not int or most < 1):
                raise InvalidArgument(f"{name} must be a whole number above 0")
        self.position = self._ask(FindPosition(start))
        self.end = (
            self._ask(FindEnds()).visible_below if end is None else self._ask(FindPosition(end))
        )
        if self.end < self.position:
            raise InvalidArgument(f"invalid range: {start} is after {end}")
        if limit is not None:
            self.end = min(self.end, self.position + limit)
        self._left = self._left if limit_bytes is None else limit_bytes
        self._ask(CheckLog(self.position, self.end))
        return self

    def _plan(self) -> list[Piece]:
        size = min(SLICE_BYTES, self._left)
        pieces = self._ask(PlanLog(self.position, self.end, size))
        return [] if self._begun and pieces[0].size > self._left else pieces

    def _passed(self, pieces: list[Piece]) -> None:
        self._begun = True
        self._left -= sum(piece.size for piece in pieces)

    def _has(self, piece: Piece) -> Query[bool]:
        return HasBlock(piece.first, piece.block)

    def _fetch(self, store: Store, piece: Piece) -> tuple[Block, int, int] | None:
        if isinstance(piece.payload, bytes):
            block = Block(piece.payload)
        else:
            entries = None if piece.payload is None else piece.payload.entries
            loaded = load_block(store, piece.block, entries)
            if loaded is None:
                return None
            block = loaded
        start = block.position(piece.first)
        end = start + piece.last - piece.first + 1
        if start < 0 or end > block.rows or block.entry(end - 1)[0] != piece.last:
            raise Damaged(f"block {piece.block} does not have the rows that its index lists")
        return block, start, end


class OutcomeReading(Reading[OutcomePlace, tuple[OutcomePlace, bytes]]):
    """Reads outcomes."""

    log = OUTCOMES

    def between(self, start: int, end: int | None) -> OutcomeReading:
        """Set from which number on, and up to which, outcomes are read."""
        of = self._entity.number
        self.position = self._ask(FindPosition(start, of))
        self.end = (
            self._ask(FindEnds(of)).visible_below
            if end is None
            else self._ask(FindPosition(end, of))
        )
        if self.end < self.position:
            raise InvalidArgument(f"invalid range: {start} is after {end}")
        self._plan()
        return self

    def _plan(self) -> list[OutcomePlace]:
        return self._ask(PlanOutcomes(self._entity.number, self.position, self.end))

    def _has(self, piece: OutcomePlace) -> Query[bool]:
        return HasOutcomes(self._entity.number, piece)

    def _fetch(self, store: Store, piece: OutcomePlace) -> tuple[OutcomePlace, bytes] | None:
        row = store.read(OUTCOMES_TABLE, (self.partition.id, self._entity.number, piece.first))
        entries: Any = None if row is None else row[_ENTRIES]
        return None if entries is None else (piece, entries)
