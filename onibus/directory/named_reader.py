"""A named reader: its position in every partition of an entity's log (R2).

Its row, in the table `readers` of the namespace's own store, has the JSON of ReaderRow as its
content. Positions are the next ordinals, or numbers of outcomes, to be read.
"""

from __future__ import annotations

import msgspec

from onibus.api.log import LakeInfo
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
    #: what programs reported of the lake behind it
    lake: LakeInfo | None = None


class NamedReader:
    """A reader as memory knows it."""

    __slots__ = (
        "address", "asked", "created", "durable", "idle_ms", "lake", "leaving", "log", "moved",
        "name", "positions", "token", "used",
    )  # fmt: skip

    def __init__(self, name: str, row: ReaderRow, used: int, durable: bool) -> None:
        self.name = name
        self.log = row.log
        #: the durable positions, and those requested since
        self.positions = list(row.positions)
        self.asked = list(row.positions)
        #: wall time at which it was created, and last moved
        self.created = row.created
        self.moved = row.moved
        self.idle_ms = row.idle_ms
        self.token = row.token
        self.address = row.address
        self.lake = row.lake
        #: bus time of its last use
        self.used = used
        #: it is made, and not about to be deleted
        self.durable = durable
        #: it is about to be deleted
        self.leaving = False

    def row(self) -> ReaderRow:
        """Return the row to store."""
        return ReaderRow(
            log=self.log,
            positions=self.asked,
            created=self.created,
            moved=self.moved,
            idle_ms=self.idle_ms,
            token=self.token,
            address=self.address,
            lake=self.lake,
        )

    def check_token(self, token: str | None) -> None:
        """Reject a caller that does not hold the reader's token."""
        if self.token not in (None, token):
            raise ReaderTaken(
                f"reader {self.name!r} belongs to {self.address or 'another program'}: only the "
                "last program that took it over can move it"
            )
