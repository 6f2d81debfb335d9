"""Named readers and positions in the log, and the requests that read and replay it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from onibus.api.messages import FilterIn, Number

LogName = Literal["messages", "outcomes"]


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


class WhichLog(msgspec.Struct, forbid_unknown_fields=True):
    """Which of the two logs is meant."""

    log: LogName = "messages"
    #: milliseconds since 1970: tells also where that time begins
    since_ms: Number | None = None


class ReachFrom(msgspec.Struct, forbid_unknown_fields=True):
    """From which number on, and how far."""

    start: Number
    limit_bytes: Annotated[int, Meta(ge=1, le=2**53)]


class Reach(msgspec.Struct):
    """The number up to which, without it, so many bytes reach."""

    end: int


class LogRange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which rows to read, and how many."""

    start: Number
    #: without it, up to what is there now
    end: Number | None = None
    #: refuses an entity that was made again
    incarnation: Number | None = None
    #: the named reader for whom it is read
    reader: str | None = None
    #: names of columns, with commas between them; all if left out
    columns: str | None = None
    limit: Number | None = None
    limit_bytes: Number | None = None


class OutcomeRange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which outcomes to read."""

    start: Number
    end: Number | None = None
    incarnation: Number | None = None
    reader: str | None = None


class Replay(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which messages of the log to send again, and where to."""

    partition: Number = 0
    start: Number
    end: Number | None = None
    where: FilterIn | None = None
    #: the same entity if left out
    to: str | None = None
    incarnation: Number | None = None


class ReaderIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A named reader that is to be made (R2)."""

    log: LogName = "messages"
    #: earliest, latest, or one number for each partition
    start: Literal["earliest", "latest"] | list[Number] = "earliest"
    #: nobody having used it for so long, it goes by itself
    idle_ms: Number | None = None
    #: only calls that give it move the reader
    token: str | None = None
    #: what reads with it, in the words of its owner
    address: str | None = None


class TakeReader(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to take a named reader over; fields that are left out keep their values."""

    #: one of these is the reader's token now, or it has none
    held: list[str] = []
    #: the reader's token from then on
    token: str | None = None
    address: str | None = None
    idle_ms: Number | None = None


class MoveReader(msgspec.Struct, forbid_unknown_fields=True):
    """How far a reader has come: the next number in each partition."""

    positions: list[Number]
    incarnation: Number
    token: str | None = None


class Readers(msgspec.Struct):
    """The named readers of an entity."""

    readers: list[ReaderInfo]
