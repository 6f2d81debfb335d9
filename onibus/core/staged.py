"""A part of a multi-partition operation: its changes to one partition, as an object and as bytes.

A *work* is an atomic change to several partitions: a transaction, a send batch over several keys,
forwarding, a resubmission, a Spark micro-batch. If one store holds all of it, one store commit
carries out its parts. Otherwise each part is *staged* first: kept as the bytes of this module,
invisible and without sequence numbers, until one record in the namespace's store decides it.

The content of a `staged` row is the MessagePack of `_Row`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec

from onibus.core.commands import Repeats, Settlement, StagedFacts
from onibus.core.errors import Damaged
from onibus.core.message import decode
from onibus.core.path.admit import Prepared

if TYPE_CHECKING:
    from onibus.core.path.admit_arrow import Body, PreparedBatch
    from onibus.core.path.plan import Plan


class Change(msgspec.Struct, array_like=True):
    """A change to one existing message."""

    subscription: int
    ordinal: int
    #: complete, abandon, defer, dead-letter or move
    verb: str
    delay_ms: int = 0
    reason: str | None = None
    description: str | None = None
    properties: dict[str, Any] | None = None

    @staticmethod
    def of(settlement: Settlement, subscription: int, ordinal: int) -> Change:
        """Return the change that settles a message."""
        options = (settlement.delay_ms, settlement.reason, settlement.description)
        return Change(subscription, ordinal, settlement.verb, *options, settlement.properties)


class Part:
    """What a work does to one partition."""

    __slots__ = ("batch", "changes", "only", "plan", "rename")

    def __init__(
        self,
        batch: list[Prepared] | PreparedBatch | None = None,
        changes: list[Change] | None = None,
        *,
        rename: str = "",
        only: int = 0,
    ) -> None:
        #: messages that were admitted, one by one or in columns
        self.batch: list[Prepared] | PreparedBatch = [] if batch is None else batch
        self.changes = changes or []
        #: a message whose id is still recorded gets a new one with this word in it (X6)
        self.rename = rename
        #: the fan-out of its messages, if that was computed before
        self.plan: Plan | None = None
        #: in a topic: the only subscription that gets the messages; 0 where its rules decide
        self.only = only

    def take(self, found: Repeats) -> list[int]:
        """Take the new ids of messages that repeat earlier ones; return what each repeats."""
        if found.batch is not None:
            self.batch = found.batch
        return found.originals

    @property
    def size(self) -> int:
        """How many bytes its messages take, about."""
        if isinstance(self.batch, list):
            return sum(len(one.row) for one in self.batch)
        return self.batch.size

    @property
    def kept_bytes(self) -> int:
        """How many bytes of memory it takes, about."""
        return self.size if isinstance(self.batch, list) else self.batch.kept_bytes

    @property
    def staged(self) -> list[Body]:
        """The blocks in which its messages are staged."""
        return [] if isinstance(self.batch, list) else self.batch.staged


class _Row(msgspec.Struct, array_like=True):
    """A part as it is kept: (row, identities, time to live) of each message, and so on."""

    messages: list[tuple[bytes, list[bytes], int | None]]
    changes: list[Change]
    rename: str
    only: int
    #: messages in columns (core/path/admit_arrow.py)
    columns: memoryview | None = None
    #: (block, rows, size) of the blocks that have the columns; empty if they are in `columns`
    bodies: list[tuple[int, int, int]] = []
    #: the store that decides its operation; earlier versions: always that of the namespace
    decider: str = ""
    #: how long each message waits before it can be received; empty if all wait as their queue says
    delays_ms: list[int | None] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Row).decode


def encode_part(part: Part, decider: str = "") -> bytes:
    """Return a part as it is staged."""
    row = _Row([], part.changes, part.rename, part.only, decider=decider)
    if isinstance(part.batch, list):
        row.messages = [(one.row, list(one.identities), one.time_to_live_ms) for one in part.batch]
        delays_ms = [one.delay_ms for one in part.batch]
        if delays_ms.count(None) != len(delays_ms):
            row.delays_ms = delays_ms
    else:
        row.columns = part.batch.encoded or part.batch.encode(apart=bool(part.batch.staged))
        row.bodies = [(body.block, body.rows, body.size) for body in part.batch.staged]
        # It may be kept in memory until it is published, but not twice.
        part.batch.encoded = None
    return _encode(row)


def facts_of(content: bytes) -> StagedFacts:
    """Return what decides a part that was staged, and the blocks that have its columns."""
    row = _read(content)
    return StagedFacts(row.decider, [block for block, _, _ in row.bodies])


def _read(content: bytes) -> _Row:
    try:
        return _decode(content)
    except msgspec.DecodeError as error:
        raise Damaged(f"a staged part cannot be read: {error}") from error


def decode_part(content: bytes, read: Callable[[int], bytes]) -> Part:
    """Return a part that was staged; `read` returns a block that was staged."""
    row = _read(content)
    try:
        batch: list[Prepared] | PreparedBatch = [
            Prepared(decode(message), message, tuple(identities), ttl, delay_ms=delay_ms)
            for (message, identities, ttl), delay_ms in zip(
                row.messages, row.delays_ms or repeat(None), strict=False
            )
        ]
    except msgspec.DecodeError as error:
        raise Damaged(f"a staged part cannot be read: {error}") from error
    if row.columns is not None:
        # pyarrow takes long to import: only clients that send columns wait for it.
        from onibus.core.path.admit_arrow import Body, decode_prepared

        batch = decode_prepared(row.columns, [Body(*body) for body in row.bodies], read)
    return Part(batch, row.changes, rename=row.rename, only=row.only)
