"""A multi-partition operation (work): its row, its parts and what waits for it.

The content of a `works` row is the MessagePack of `WorkRow`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from onibus.core.commands import Stored
from onibus.core.staged import Part
from onibus.shard.replies import KeptReply, Reply

if TYPE_CHECKING:
    from onibus.directory.namespace import RuleDecision
    from onibus.shard.partition import ShardPartition
    from onibus.shard.shard import Shard

Parts = dict["ShardPartition", Part]
#: The results of each partition, in the order of its part.
Results = dict["ShardPartition", Any]
#: The incarnation of an entity, and the name of a producer.
Owner = tuple[int, str]


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


class Publication(KeptReply):
    """What waits for the publication of a part: nothing; it names the part."""

    __slots__ = ("partition", "work")

    def __init__(self, work: int, partition: int) -> None:
        super().__init__()
        self.work = work
        self.partition = partition


class Work:
    """A work over several stores that is under way."""

    __slots__ = (
        "begun", "blocks", "decided", "decider", "deciding", "id", "kept", "note", "order", "own",
        "owner", "parts", "recorded", "reply", "reserved", "results", "rules", "size", "waiting",
    )  # fmt: skip

    def __init__(
        self, work: int, decider: str, parts: dict[int, Part | None], note: Any, reply: Reply
    ) -> None:
        self.id = work
        #: the store that decides; empty: that of the namespace
        self.decider = decider
        #: ids of the partitions in which the decision settles messages, held until then
        self.own: list[int] = []
        #: the publishing order: lower first
        self.order = work
        #: the others, by the ids of their partitions; None if only the store knows the part
        self.parts = parts
        #: the blocks that have their messages, of those that this process staged
        self.blocks: dict[int, list[int]] = {}
        self.note = note
        #: whose note it is: the first two values of the note (an incarnation and a name)
        self.owner: Owner | None = None if note is None else (note[0], note[1])
        self.reply = reply
        #: its row is in its store, or on its way there
        self.recorded = False
        self.decided = False
        #: a decision is in progress: no other may begin
        self.deciding = False
        #: once it is decided: partitions that have not published their parts
        self.waiting: dict[int, None] = {}
        #: those that have begun to
        self.begun: set[int] = set()
        #: bytes of its parts that are in memory until it is published
        self.kept = 0
        #: bytes of the messages that it will publish
        self.size = 0
        #: partitions, as they were opened, with the room that its messages will take there
        self.reserved: dict[int, tuple[ShardPartition, int, int]] = {}
        self.results: dict[int, Stored] = {}
        #: changes of rules that its decision brings (P11)
        self.rules: RuleDecision | None = None

    @property
    def is_staged(self) -> bool:
        """Return whether it waits for the decision of its owner."""
        return self.owner is not None and self.recorded and not (self.decided or self.deciding)

    def reserve(self, parts: Parts) -> None:
        """Count its messages towards the quotas of their partitions until they are stored."""
        for partition, part in parts.items():
            partition.pending_bytes += part.size
            self.reserved[partition.id] = (partition, partition.opening, part.size)

    def free(self, partition_id: int) -> None:
        """Count its messages for a partition no longer."""
        if partition_id in self.reserved:
            partition, opening, size = self.reserved.pop(partition_id)
            # A reopened partition counts from zero.
            if partition.opening == opening:
                partition.pending_bytes -= size

    def decide(self) -> None:
        """Note that it is decided: all other partitions have to publish their parts."""
        self.decided = True
        self.waiting = dict.fromkeys(self.parts)


class Noted:
    """Works with a note, by the incarnation and the name of their owner."""

    def __init__(self) -> None:
        self._by_owner: dict[int, dict[str, dict[int, Work]]] = {}

    def add(self, work: Work) -> None:
        if work.owner is not None:
            incarnation, name = work.owner
            self._by_owner.setdefault(incarnation, {}).setdefault(name, {})[work.id] = work

    def remove(self, work: Work) -> None:
        if work.owner is None:
            return
        incarnation, name = work.owner
        names = self._by_owner[incarnation]
        del names[name][work.id]
        if not names[name]:
            del names[name]
        if not names:
            del self._by_owner[incarnation]

    def counts(self, incarnation: int) -> dict[str, int]:
        """Return how many works each owner has for an entity."""
        return {name: len(works) for name, works in self._by_owner.get(incarnation, {}).items()}

    def staged(self, incarnation: int, name: str | None = None) -> dict[int, Any]:
        """Return the notes of works that wait for a decision, of an entity or of one owner."""
        names = self._by_owner.get(incarnation, {})
        chosen = names.values() if name is None else [names.get(name, {})]
        return {one.id: one.note for works in chosen for one in works.values() if one.is_staged}

    def all_staged(self) -> dict[int, Any]:
        """Return the notes of all works that wait for a decision."""
        return {work: note for one in self._by_owner for work, note in self.staged(one).items()}


def decider_of(parts: Parts) -> Shard:
    """Return the store that decides a work: it gets the most bytes of messages, written once."""
    sizes: dict[Shard, int] = {}
    for partition, part in parts.items():
        sizes[partition.store] = sizes.get(partition.store, 0) + part.size
    return max(sizes, key=sizes.__getitem__)


def check_disks(parts: Parts, times: int) -> None:
    """Reject a work that sends messages if a disk has no room for all of them.

    They are stored twice if they are staged before they are published.
    """
    sending = {one.store: None for one, part in parts.items() if len(part.batch)}
    size = sum([part.size for part in parts.values() if len(part.batch)]) * times
    for store in sending:
        store.check_disk(size)
