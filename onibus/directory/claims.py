"""Message claims: messages that a named reader holds until it commits or releases them (R5, R7).

Stage, decide and publish on a small scale. To claim, the broker holds messages in partitions of
several stores; then the claim's row in the namespace's own store makes the claim valid. The first
read is recorded in the row, and the lease no longer expires. To commit, the broker writes that into
the row, completes the claim's messages, partition by partition, and at last replaces the row by the
reader's record of that number. To release a claim, it deletes the row.

After a failure or a crash, the broker continues when the partition is back. It releases messages
held under a claim without a row, and completes those of a committed claim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from onibus.api.claims import Claim
from onibus.core.checks import check_text, check_whole
from onibus.core.commands import Command, ListClaimOwners, ReleaseClaimed
from onibus.core.errors import (
    ClaimNotFound,
    EntityDisabled,
    EntityNotFound,
    EntityReplaced,
    InvalidOperation,
    PartitionOffline,
    QuotaExceeded,
)
from onibus.core.limits import (
    CLAIM_COUNT_MAX,
    CLAIM_LEASE_MS_MAX,
    CLAIM_LEASE_MS_MIN,
    ID_LENGTH_MAX,
)
from onibus.core.path.claim import claim_of
from onibus.core.records import CLAIMS, WriteBatch
from onibus.directory.claim_holding import check_holder
from onibus.directory.claim_rows import (
    COMMITTING,
    OPEN,
    RELEASING,
    STAGING,
    ClaimContent,
    ClaimReader,
    HeldClaim,
)
from onibus.directory.claim_settling import complete_in, release_held
from onibus.directory.claiming import Staging
from onibus.directory.entity import TOPIC, Entity
from onibus.directory.routing import in_turn
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import KeptReply, Reply, answer, fail
from onibus.store.interface import Store

if TYPE_CHECKING:
    from onibus.directory.host import Host

T = TypeVar("T")


class Claims:
    """The claims of all entities of a namespace."""

    def __init__(self, broker: Host) -> None:
        self.broker = broker
        #: by incarnation of the entity, then by name
        self.readers: dict[int, dict[str, ClaimReader]] = {}
        #: pending calls
        self.under_way = 0

    # Opening, and entities that go

    def load(self, store: Store, entities: Mapping[int, Entity]) -> None:
        """Read the rows of the namespace's own store; those of entities that are gone go too.

        After that store has failed, the rows show the outcome of pending decisions.
        """
        left = WriteBatch()
        rows: dict[ClaimReader, dict[int, bytes]] = {}
        for incarnation, name, number, content in store.scan(CLAIMS):
            assert isinstance(incarnation, int)
            assert isinstance(name, str)
            assert isinstance(number, int)
            assert isinstance(content, bytes)
            entity = entities.get(incarnation)
            if entity is None:
                left.delete(CLAIMS, (incarnation, name, number))
            else:
                rows.setdefault(self.reader(entity, name), {})[number] = content
        if left:
            store.commit(left)
        for entity in entities.values():
            for reader in self.readers.get(entity.incarnation, {}).values():
                reader.load(rows.get(reader, {}))
            for held in self._all(entity):
                self._watch_lease(held)
            if entity.kind != TOPIC:
                for partition in entity.online_partitions():
                    self._take_up(entity, partition)

    def erase(self, entity: Entity, batch: WriteBatch) -> None:
        """Delete the rows of an entity that is being deleted."""
        for reader in self.readers.get(entity.incarnation, {}).values():
            for number in (0, *reader.claims):
                batch.delete(CLAIMS, (entity.incarnation, reader.name, number))

    def forget(self, entity: Entity) -> None:
        """Drop the claims of a deleted entity."""
        for reader in self.readers.pop(entity.incarnation, {}).values():
            for held in reader.claims.values():
                self.broker.timers.cancel(("claim", held.key))
                held.tell(EntityNotFound(f"{entity.name} was deleted"))

    def take_up(self, partition: ShardPartition) -> None:
        """Carry out in a partition that is online again what was decided while it was offline."""
        for entity in partition.entity.outlets():
            self._take_up(entity, partition)

    def _take_up(self, entity: Entity, partition: ShardPartition) -> None:
        with contextlib.suppress(PartitionOffline):
            command, now = ListClaimOwners(entity.number), self.broker.clock.now()
            for owner in self.broker.use(entity, partition, command, now):
                if not self._is_claimed(entity, partition, owner):
                    self._release_whole(entity, partition, owner)
        for held in self._all(entity):
            if held.stage == COMMITTING and partition.index in held.left:
                complete_in(self, held, partition)

    def _is_claimed(self, entity: Entity, partition: ShardPartition, owner: str) -> bool:
        name = claim_of(owner)
        assert name is not None
        reader = self.readers.get(entity.incarnation, {}).get(name[0])
        held = None if reader is None else reader.claims.get(name[1])
        if held is None:
            return False
        # What an earlier claim of that number, which failed, has left is not this one's.
        return partition.index in (held.taken if held.stage == STAGING else held.indexes)

    def _release_whole(self, entity: Entity, partition: ShardPartition, owner: str) -> None:
        """Release all at once: another claim may get the number right after."""
        self.use(entity, partition, ReleaseClaimed(entity.number, owner, None))

    # Claiming

    def claim(
        self,
        name: str,
        reader_name: str,
        limit: int,
        lease_ms: int,
        max_bytes: int | None,
        reply: Reply,
        token: str | None = None,
    ) -> None:
        """Claim active messages under the reader's next number; None if no message is active."""
        entity = self.broker.find(name)
        settings = entity.outlet_settings()
        check_text("reader", reader_name, ID_LENGTH_MAX, 1)
        check_whole("limit", limit, 1, CLAIM_COUNT_MAX)
        check_whole("lease_ms", lease_ms, CLAIM_LEASE_MS_MIN, CLAIM_LEASE_MS_MAX)
        if max_bytes is not None:
            check_whole("max_bytes", max_bytes, 1)
        if not settings.receives:
            raise EntityDisabled(f"{entity.name} is {settings.status}: it delivers no messages")
        self.check_decidable()
        partitions = [partition for partition in in_turn(entity) if partition.is_online]
        if not partitions:
            entity.partitions[0].check_online()
        most = self.broker.namespace.quotas.claims
        readers = self.readers.get(entity.incarnation, {}).values()
        if sum(len(reader.claims) for reader in readers) >= most:
            raise QuotaExceeded(
                f"{entity.name} has {most} open claims: commit or release those that no program "
                "needs"
            )
        reader = self.reader(entity, reader_name)
        check_holder(reader, token)
        if reader.staging:
            raise InvalidOperation(
                f"reader {reader_name!r} already has a claim in progress: wait for it"
            )
        number = reader.last + 1
        content = ClaimContent([], self.broker.clock.now(), 0)
        held = HeldClaim(entity, reader, number, content, STAGING)
        reader.claims[number] = held
        counted = self.counted(reply)
        staging: Staging

        def staged(error: BaseException | None) -> None:
            if error is None and content.partitions:
                self._make(held, staging, lease_ms, counted)
                return
            reader.claims.pop(number, None)
            if reader.is_new:
                self.readers.get(entity.incarnation, {}).pop(reader_name, None)
            if error is None:
                answer(counted, None)
            else:
                fail(counted, error)

        staging = Staging(self, held, partitions, limit, max_bytes, staged)
        staging.go_on()

    def _make(self, held: HeldClaim, staging: Staging, lease_ms: int, reply: Reply) -> None:
        """Everything is set aside, and on the disk: the row decides that the claim is there."""
        held.content.lease_until = self.broker.clock.now() + lease_ms
        held.reader.last = held.number
        batch = WriteBatch()
        held.put(batch)
        held.reader.put(batch)

        def made(kept: KeptReply) -> None:
            if kept.error is not None:
                # It may be there or not: that shows when that store is open again.
                fail(reply, kept.error)
                return
            if not self.is_living(held.entity):
                self._delete_row(held)
                fail(reply, EntityNotFound(f"{held.entity.name} was deleted"))
                return
            held.stage = OPEN
            self._watch_lease(held)
            answer(reply, held.info(self.broker.clock))

        try:
            self.broker.namespace.commit(batch, KeptReply(made))
        except PartitionOffline as error:
            held.reader.last -= 1
            held.content.partitions = []
            staging.fail(error)

    def _delete_row(self, held: HeldClaim) -> None:
        batch = WriteBatch()
        batch.delete(CLAIMS, held.key)
        batch.delete(CLAIMS, (held.entity.incarnation, held.reader.name, 0))
        with contextlib.suppress(PartitionOffline):
            self.broker.namespace.commit(batch, KeptReply())

    def lease_over(self, key: tuple[int, str, int]) -> None:
        """Release a claim whose lease expired, unless it was read (R7)."""
        incarnation, name, number = key
        reader = self.readers.get(incarnation, {}).get(name)
        held = None if reader is None else reader.claims.get(number)
        if held is not None and held.stage == OPEN and not held.content.read:
            release_held(self, held)

    # Looking

    def listed(self, name: str) -> list[Claim]:
        """Return an entity's claims, by reader and number."""
        entity = self.broker.find(name)
        entity.outlet_settings()
        open_ones = [one for one in self._all(entity) if one.stage not in (STAGING, RELEASING)]
        found = [one.info(self.broker.clock) for one in open_ones]
        return sorted(found, key=lambda claim: (claim.reader, claim.number))

    def _all(self, entity: Entity) -> list[HeldClaim]:
        readers = self.readers.get(entity.incarnation, {}).values()
        return [held for reader in readers for held in reader.claims.values()]

    def reader(self, entity: Entity, name: str) -> ClaimReader:
        """Return an entity's reader of that name; one that is new has claimed nothing."""
        readers = self.readers.setdefault(entity.incarnation, {})
        if name not in readers:
            readers[name] = ClaimReader(entity, name)
        return readers[name]

    def find(self, name: str, reader_name: str, incarnation: int | None) -> ClaimReader:
        """Return a reader of an entity; reject an incarnation that differs from the entity's."""
        entity = self.broker.find(name)
        entity.outlet_settings()
        check_text("reader", reader_name, ID_LENGTH_MAX, 1)
        if incarnation not in (None, entity.incarnation):
            raise EntityReplaced(
                f"{entity.name} was deleted and recreated: its incarnation is "
                f"{entity.incarnation}, not {incarnation}"
            )
        reader = self.readers.get(entity.incarnation, {}).get(reader_name)
        return ClaimReader(entity, reader_name) if reader is None else reader

    def open(self, name: str, reader_name: str, number: int, incarnation: int | None) -> HeldClaim:
        """Return an existing claim that has not been committed or released."""
        check_whole("number", number, 1)
        held = self.find(name, reader_name, incarnation).claims.get(number)
        if held is None:
            raise ClaimNotFound(
                f"no claim {number} of reader {reader_name!r} on {name}: it was never made, was "
                "committed or released, or its lease expired"
            )
        self.check_open(held)
        if not held.content.read and held.content.lease_until <= self.broker.clock.now():
            release_held(self, held)
            raise ClaimNotFound(f"the lease of claim {number} expired: it was released")
        return held

    def check_open(self, held: HeldClaim) -> None:
        """Reject a claim that is being committed or released."""
        if held.stage != OPEN or not self.is_living(held.entity):
            raise ClaimNotFound(f"claim {held.number} is already {held.stage}")

    def check_decidable(self) -> None:
        """Reject the call if the namespace's own store is down."""
        if not self.broker.namespace.online:
            raise PartitionOffline("the namespace's store is down: try again when it is available")

    def is_living(self, entity: Entity) -> bool:
        """Return whether an entity has not been deleted."""
        return self.broker.namespace.entities.get(entity.name) is entity

    def use(self, entity: Entity, partition: ShardPartition, command: Command[T]) -> T:
        """Carry out a command on messages of an entity, unless it was deleted."""
        if not self.is_living(entity):
            raise EntityNotFound(f"{entity.name} was deleted")
        return self.broker.use(entity, partition, command)

    def _watch_lease(self, held: HeldClaim) -> None:
        if held.stage == OPEN and not held.content.read:
            self.broker.timers.set(("claim", held.key), held.content.lease_until)

    def counted(self, reply: Reply) -> Reply:
        """Return a reply that is known to be owed until it is given."""
        self.under_way += 1

        def given(kept: KeptReply) -> None:
            self.under_way -= 1
            if kept.error is None:
                answer(reply, kept.value)
            else:
                fail(reply, kept.error)

        return KeptReply(given)
