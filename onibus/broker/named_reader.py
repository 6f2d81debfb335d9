"""A named reader: how far somebody has come in every partition of an entity's log (R2).

Its row, in the table `readers` of the namespace's own store, has the JSON of ReaderRow as its
content. Positions are the next ordinals, or numbers of outcomes, to be read.
"""

from __future__ import annotations

import msgspec

from onibus.core.errors import ReaderTaken

#: The two logs that can be read.
MESSAGES = "messages"
OUTCOMES = "outcomes"


class ReaderRow(msgspec.Struct, kw_only=True):
    """A reader as it is stored."""

    log: str
    positions: list[int]
    created: int
    moved: int
    idle_ms: int | None
    #: only callers that give it move the reader; None: all callers do
    token: str | None = None
    #: what reads with it, in the words of its owner
    address: str | None = None


class NamedReader:
    """A reader as memory knows it."""

    __slots__ = (
        "address", "asked", "created", "durable", "idle_ms", "leaving", "log", "moved", "name",
        "positions", "token", "used",
    )  # fmt: skip

    def __init__(self, name: str, row: ReaderRow, used: int, durable: bool) -> None:
        self.name = name
        self.log = row.log
        #: what is durable, and what has been asked for since
        self.positions = list(row.positions)
        self.asked = list(row.positions)
        #: wall time at which it was made, and last moved
        self.created = row.created
        self.moved = row.moved
        self.idle_ms = row.idle_ms
        self.token = row.token
        self.address = row.address
        #: bus time of its last use
        self.used = used
        #: it is made, and not about to be deleted
        self.durable = durable
        #: it is about to be deleted
        self.leaving = False

    def row(self) -> ReaderRow:
        """Return what is to be stored."""
        return ReaderRow(
            log=self.log,
            positions=self.asked,
            created=self.created,
            moved=self.moved,
            idle_ms=self.idle_ms,
            token=self.token,
            address=self.address,
        )

    def check_token(self, token: str | None) -> None:
        """Refuse a caller that does not hold the reader's token."""
        if self.token not in (None, token):
            raise ReaderTaken(
                f"reader {self.name!r} belongs to {self.address or 'another program'}: only the "
                "program that took it last can move it"
            )


class ReaderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A named reader as its owner sees it (R8); tuples have one item for each partition."""

    name: str
    entity: str
    #: what its positions belong to; an entity that was made again has another one
    incarnation: int
    #: messages or outcomes
    log: str
    #: the next number to be read
    positions: tuple[int, ...]
    #: how many numbers it is behind; None where the partition is offline
    lag: tuple[int | None, ...]
    #: the first and the last number of what went before it was read (R2)
    lost: tuple[tuple[int, int] | None, ...]
    created_ms: int
    moved_ms: int
    idle_ms: int | None
    #: what reads with it, in the words of its owner: the address of a lake
    address: str | None = None


class StampsSetBack(msgspec.Struct, frozen=True, kw_only=True):
    """A partition whose stamps were set back, after a wrong clock had put them into the future."""

    entity: str
    partition: int
    #: the first sequence number with a stamp of the right clock
    sequence_number: int
    #: the last stamp before it, and the earliest that the number can have
    before_ms: int
    after_ms: int


class LogPositions(msgspec.Struct, frozen=True, kw_only=True):
    """Between which numbers a log can be read; tuples have one item for each partition."""

    entity: str
    incarnation: int
    log: str
    #: the first number from which on no row is missing; None where the partition is offline
    earliest: tuple[int | None, ...]
    #: the number that comes next
    latest: tuple[int | None, ...]
    #: where a time was asked for: the first number of that time or later, else the latest
    since: tuple[int | None, ...] | None = None
    #: where an operator set the times of messages back: the only places where they fall
    set_back: tuple[StampsSetBack, ...] = ()
