"""Named readers and positions in the log, and the requests that read and replay it."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from onibus.api.messages import FilterIn, Number, WaitMs
from onibus.core.errors import InvalidArgument
from onibus.core.limits import PARTITION_COUNT

LogName = Literal["messages", "outcomes"]
#: One number per partition.
Positions = Annotated[list[Number], Meta(max_length=PARTITION_COUNT)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
VerdictName = Literal["PASSED", "FAILED", "INCOMPLETE"]
_RANGE = re.compile(r"\d{1,5}(:\d{1,19}){2}", re.ASCII)
#: Sentences of a verdict that the broker keeps, and their length.
FINDINGS_MAX = 20
FINDING_LENGTH_MAX = 500
#: Characters of the page of a report.
PAGE_LENGTH_MAX = 2 << 20


class TableReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The files of a lake's table after a batch, as its capture counts them."""

    files: Number
    rows: Number
    size_bytes: Number
    #: rows of the last batch; 0 without a batch since the last report
    batch_rows: Number = 0


class AuditReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The verdict of an audit, and how many rows it is about."""

    verdict: VerdictName
    messages: Number
    outcomes: Number
    #: contradictions, reasons and notes
    findings: Annotated[
        list[Annotated[str, Meta(max_length=FINDING_LENGTH_MAX)]], Meta(max_length=FINDINGS_MAX)
    ] = []


class ReaderReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a program reports of the lake behind a reader; missing parts keep their values."""

    #: the reader's token, which the report of a table needs
    token: str | None = None
    table: TableReport | None = None
    audit: AuditReport | None = None
    #: an HTML page about the lake
    page: Annotated[str, Meta(max_length=PAGE_LENGTH_MAX)] | None = None


class LakeInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last reports about the lake behind a reader; the broker does not verify them."""

    files: int | None = None
    rows: int = 0
    size_bytes: int = 0
    #: the last batch that had rows, and when it was reported
    batch_rows: int = 0
    batch_ms: int | None = None
    #: PASSED, FAILED or INCOMPLETE, when it was reported, and with which key
    verdict: str | None = None
    verdict_ms: int | None = None
    verdict_key: str = ""
    #: rows that the verdict is about
    messages: int = 0
    outcomes: int = 0
    findings: tuple[str, ...] = ()
    #: when a page was reported
    page_ms: int | None = None


class ReaderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A named reader (R8); tuples have one item per partition."""

    name: str
    entity: str
    #: incarnation that its positions belong to
    incarnation: int
    #: messages or outcomes
    log: str
    #: the next number to read
    positions: tuple[int, ...]
    #: how many numbers it is behind; None if the partition is offline
    lag: tuple[int | None, ...]
    #: the first and last number that were deleted before it read them (R2)
    lost: tuple[tuple[int, int] | None, ...]
    created_ms: int
    moved_ms: int
    idle_ms: int | None
    #: what reads with it, as its owner describes it: the address of a lake
    address: str | None = None
    #: what captures and audits reported of that lake
    lake: LakeInfo | None = None


class StampsSetBack(msgspec.Struct, frozen=True, kw_only=True):
    """A partition whose timestamps were set back after a wrong clock had set them in the future."""

    entity: str
    partition: int
    #: the first sequence number with a timestamp of the right clock
    sequence_number: int
    #: the last timestamp before it, and the earliest that the number can have
    before_ms: int
    after_ms: int


class LogPositions(msgspec.Struct, frozen=True, kw_only=True):
    """The readable range of a log; tuples have one item per partition."""

    entity: str
    incarnation: int
    log: str
    #: the first number after which no row is missing; None if the partition is offline
    earliest: tuple[int | None, ...]
    #: the next number to be assigned
    latest: tuple[int | None, ...]
    #: with since_ms: the first number of that time or later, or the latest if none exists
    since: tuple[int | None, ...] | None = None
    #: when the entity was created, and the latest time of a row; 0 from earlier servers
    created_ms: int = 0
    last_ms: int = 0
    #: the time that the server is sure of; 0 from earlier servers
    now_ms: int = 0
    #: places where an operator set timestamps back: the only ones where they fall
    set_back: tuple[StampsSetBack, ...] = ()
    #: of a planned read: the number before which it ends in each partition
    until: tuple[int, ...] | None = None


class WhichLog(msgspec.Struct, forbid_unknown_fields=True):
    """One of the two logs."""

    log: LogName = "messages"
    #: milliseconds since 1970; also return the first number of that time
    since_ms: Number | None = None


class PlanRead(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The start of a read of all partitions, how far it may go, and how long to wait for rows."""

    log: LogName = "messages"
    #: the next number to read in each partition
    positions: Positions
    #: numbers that the read does not pass; default: the ends of the log
    until: Positions | None = None
    #: all partitions together: rows, and bytes of messages
    limit: Positive | None = None
    limit_bytes: Positive | None = None
    #: also return the first number of that time
    since_ms: Number | None = None
    wait_ms: WaitMs = 0
    #: rejects a recreated entity
    incarnation: Number | None = None


class ReachFrom(msgspec.Struct, forbid_unknown_fields=True):
    """The start and size of a range."""

    start: Number
    limit_bytes: Positive


class Reach(msgspec.Struct):
    """The exclusive end of a range."""

    end: int


class LogRange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The rows to read."""

    start: Number
    #: exclusive; default: the current end
    end: Number | None = None
    #: rejects a recreated entity
    incarnation: Number | None = None
    #: the named reader that reads
    reader: str | None = None
    #: comma-separated names of columns; default: all
    columns: str | None = None
    limit: Number | None = None
    limit_bytes: Number | None = None


class OutcomeRange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The outcomes to read."""

    start: Number
    end: Number | None = None
    incarnation: Number | None = None
    reader: str | None = None


class LogRanges(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The rows to read of several partitions."""

    #: comma-separated, each partition:start:end with an exclusive end; one range per partition
    ranges: str
    incarnation: Number | None = None
    #: of messages: comma-separated names of columns; default: all
    columns: str | None = None


def ranges_of(text: str) -> list[tuple[int, int, int]]:
    """Return the partitions, starts and ends of ranges, or reject them."""
    parts = text.split(",", PARTITION_COUNT)
    if len(parts) > PARTITION_COUNT or not all(map(_RANGE.fullmatch, parts)):
        raise InvalidArgument(
            f"ranges must be up to {PARTITION_COUNT} of partition:start:end, separated by commas"
        )
    found = []
    for part in parts:
        partition, start, end = map(int, part.split(":"))
        found.append((partition, start, end))
    if len({partition for partition, _, _ in found}) < len(found):
        raise InvalidArgument("ranges has a partition twice: pass one range per partition")
    return found


class Replay(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages of the log to send again, and their destination."""

    partition: Number = 0
    start: Number
    end: Number | None = None
    where: FilterIn | None = None
    #: default: the same entity
    to: str | None = None
    incarnation: Number | None = None


class ReaderIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A named reader to create (R2)."""

    log: LogName = "messages"
    #: earliest, latest, or one number per partition
    start: Literal["earliest", "latest"] | list[Number] = "earliest"
    #: idle time after which it is removed automatically
    idle_ms: Number | None = None
    #: only calls with this token move the reader
    token: str | None = None
    #: what reads with it, as its owner describes it
    address: str | None = None


class TakeReader(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to take over a named reader; missing fields keep their values."""

    #: one of these must be the reader's token, unless it has none
    held: list[str] = []
    #: the reader's new token
    token: str | None = None
    address: str | None = None
    idle_ms: Number | None = None


class MoveReader(msgspec.Struct, forbid_unknown_fields=True):
    """The new position of a reader: the next number in each partition."""

    positions: list[Number]
    incarnation: Number
    token: str | None = None


class ReadersQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which readers of all entities to list: by address, then by entity and name."""

    #: lists readers whose address, entity or name contains this, in any case
    search: str = ""
    start: Annotated[int, Meta(ge=0)] = 0
    #: default: all
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None


class Readers(msgspec.Struct):
    """Named readers."""

    readers: list[ReaderInfo]
    #: readers that match, also those that are not listed
    count: int = 0
