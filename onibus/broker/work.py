"""A multi-partition operation (work): its row, its parts and what waits for it.

The content of a `works` row is the MessagePack of `WorkRow`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from onibus.core.commands import Stored
from onibus.core.staged import Part
from onibus.shard.replies import Outcome, Reply

if TYPE_CHECKING:
    from onibus.broker.namespace import RuleDecision
    from onibus.shard.seat import Seat

Parts = dict["Seat", Part]
#: The results of each partition, in the order of its part.
Results = dict["Seat", Any]


class WorkRow(msgspec.Struct, array_like=True):
    """A multi-partition operation that was decided, or staged for a later publish (R6)."""

    decided: bool
    #: ids of the partitions that have parts of it
    partitions: list[int]
    #: the note of the caller that staged it
    note: Any = None
    #: works decided together are published in this order, even after a crash
    order: int = 0


encode_row = msgspec.msgpack.Encoder().encode
decode_row = msgspec.msgpack.Decoder(WorkRow).decode


class Publication(Outcome):
    """What waits for the publication of a part: nothing; it names the part."""

    __slots__ = ("seat", "work")

    def __init__(self, work: int, seat: int) -> None:
        super().__init__()
        self.work = work
        self.seat = seat


class Work:
    """A work over several stores that is under way."""

    __slots__ = (
        "decided", "deciding", "id", "kept", "note", "order", "parts", "reply", "results", "rules",
        "size", "waiting",
    )  # fmt: skip

    def __init__(self, work: int, parts: dict[int, Part | None], note: Any, reply: Reply) -> None:
        self.id = work
        #: the publishing order: lower first
        self.order = work
        #: by the ids of their partitions; None if only the store knows the part
        self.parts = parts
        self.note = note
        self.reply = reply
        self.decided = False
        #: a decision is in progress: no other may begin
        self.deciding = False
        #: partitions that have not finished the current step
        self.waiting = dict.fromkeys(parts)
        #: bytes of its parts that are in memory until it is published
        self.kept = 0
        #: bytes of the messages that it will publish
        self.size = 0
        self.results: dict[int, Stored] = {}
        #: changes of rules that its decision brings (P11)
        self.rules: RuleDecision | None = None
