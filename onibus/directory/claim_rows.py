"""The broker's state of message claims, and their rows in the namespace's own store.

A claim's row decides: messages held in partitions under a claim without a row are released. Row
number 0 of a reader has its last claim number, and the numbers that it has committed.
"""

from __future__ import annotations

import msgspec

from onibus.api.claims import Claim
from onibus.core.errors import ClaimNotFound
from onibus.core.path.claim import owner_of
from onibus.core.records import CLAIMS, Row, WriteBatch
from onibus.core.runs import Runs
from onibus.directory.entity import Entity
from onibus.shard.clock import BusClock
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import Reply, answer, fail

#: Where a claim is on its way.
STAGING = "staging"  #: messages are being set aside; there is no row yet
OPEN = "open"  #: its row is there
DECIDING = "deciding"  #: its commit is being written to the disk
COMMITTING = "committing"  #: committed; not yet carried out everywhere
RELEASING = "releasing"  #: its release is being written to the disk

#: Runs of committed numbers that are recorded for one reader.
_RUNS_KEPT = 1_000
#: Queries that are recorded for one reader.
_QUERIES_KEPT = 100

DeadLetterWords = tuple[str | None, str | None]


class ClaimContent(msgspec.Struct, omit_defaults=True):
    """The JSON in the `content` column of a claim's row."""

    partitions: list[tuple[int, int]]
    created: int
    lease_until: int
    read: bool = False
    committing: bool = False
    dead_letters: dict[int, DeadLetterWords] = {}


class ReaderContent(msgspec.Struct):
    """The JSON in the `content` column of a reader's row."""

    last: int
    committed: list[tuple[int, int]]
    #: of the program that works under its name; earlier versions kept none
    token: str | None = None
    #: the ids of the queries that read under its name, with the first claim of each
    queries: dict[str, int] = {}


class HeldClaim:
    """One claim, as memory knows it."""

    def __init__(
        self, entity: Entity, reader: ClaimReader, number: int, content: ClaimContent, stage: str
    ) -> None:
        self.entity = entity
        self.reader = reader
        self.number = number
        self.content = content
        self.stage = stage
        self.owner = owner_of(reader.name, number)
        #: that it was read is on the disk
        self.read = content.read
        #: the partitions whose messages it holds
        self.taken: set[int] = set()
        #: the partitions that have not confirmed its commit
        self.left: set[int] = set()
        #: pending calls that wait until it is committed or released
        self.waiting: list[Reply] = []

    @property
    def is_fresh(self) -> bool:
        """Return whether it is still taking messages, and has requested no row."""
        return self.stage == STAGING and not self.content.lease_until

    @property
    def key(self) -> Row:
        return (self.entity.incarnation, self.reader.name, self.number)

    @property
    def indexes(self) -> list[int]:
        return [index for index, _ in self.content.partitions]

    @property
    def partitions(self) -> list[ShardPartition]:
        return [self.entity.partitions[index] for index in self.indexes]

    def put(self, batch: WriteBatch) -> None:
        batch.put(CLAIMS, (*self.key, msgspec.json.encode(self.content)))

    def tell(self, error: BaseException | None) -> None:
        """Complete all pending calls."""
        waiting, self.waiting = self.waiting, []
        for reply in waiting:
            if error is None:
                answer(reply, None)
            else:
                fail(reply, error)

    def info(self, clock: BusClock) -> Claim:
        content, shown = self.content, clock.offsets.shown
        return Claim(
            entity=self.entity.name,
            incarnation=self.entity.incarnation,
            reader=self.reader.name,
            number=self.number,
            count=sum(count for _, count in content.partitions),
            partitions=tuple(content.partitions),
            created_ms=shown(content.created),
            age_ms=max(clock.now() - content.created, 0),
            lease_until_ms=None if content.read else shown(content.lease_until),
            read=content.read,
            committing=content.committing,
        )


class ClaimReader:
    """A named reader that claims messages of an entity."""

    def __init__(self, entity: Entity, name: str) -> None:
        self.entity = entity
        self.name = name
        #: the last number given
        self.last = 0
        self.committed = Runs()
        #: of the program that works under its name (directory/claim_holding.py)
        self.token: str | None = None
        #: the queries that read under its name, with the first claim of each
        self.queries: dict[str, int] = {}
        self.claims: dict[int, HeldClaim] = {}

    @property
    def staging(self) -> bool:
        return any(held.stage == STAGING for held in self.claims.values())

    @property
    def is_new(self) -> bool:
        """Return whether nothing was claimed, and no program took hold of it."""
        return not (self.last or self.claims or self.token)

    def has_committed(self, number: int) -> None:
        if number not in self.committed:
            self.committed.add(number, number)
        while len(self.committed.firsts) > _RUNS_KEPT:
            del self.committed.firsts[0], self.committed.lasts[0]

    def bind(self, query: str, first: int) -> None:
        """Note the first claim of a query."""
        self.queries[query] = first
        while len(self.queries) > _QUERIES_KEPT:
            del self.queries[next(iter(self.queries))]

    def put(self, batch: WriteBatch) -> None:
        content = ReaderContent(self.last, list(self.committed.runs()), self.token, self.queries)
        batch.put(CLAIMS, (self.entity.incarnation, self.name, 0, msgspec.json.encode(content)))

    def load(self, rows: dict[int, bytes]) -> None:
        """Load its rows: drop claims without a row, except those being made."""
        for number, held in list(self.claims.items()):
            if number not in rows and not held.is_fresh:
                del self.claims[number]
                held.tell(ClaimNotFound(f"claim {number} was released"))
        if 0 not in rows:
            # What a lost commit was to keep is not there. Numbers are not given again.
            self.token, self.queries, self.committed = None, {}, Runs()
        for number, content in rows.items():
            if number:
                self._load_claim(number, msgspec.json.decode(content, type=ClaimContent))
            else:
                known = msgspec.json.decode(content, type=ReaderContent)
                self.last = max(self.last, known.last)
                self.token = known.token
                self.queries = known.queries
                self.committed = Runs()
                for first, last in known.committed:
                    self.committed.add(first, last)

    def _load_claim(self, number: int, kept: ClaimContent) -> None:
        held = self.claims.get(number)
        if held is None:
            held = self.claims[number] = HeldClaim(self.entity, self, number, kept, OPEN)
        held.content, held.read = kept, kept.read
        held.stage = COMMITTING if kept.committing else OPEN
        held.left = set(held.indexes) if kept.committing else set()
