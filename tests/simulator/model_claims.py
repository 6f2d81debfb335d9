"""Claims as the promises describe them: messages that belong to a named reader (R5, R7).

The bus says when it sets messages aside, completes them or gives them back; the model does the same
to its own, and checks that the rows of the namespace's store allow it at that moment.
"""

from __future__ import annotations

from typing import Any

from onibus.core.errors import ClaimNotFound, EntityNotFound, PartitionOffline, Unknown
from tests.simulator.mismatch import check
from tests.simulator.model import PartitionModel
from tests.simulator.model_parts import EntityModel, Op
from tests.simulator.model_producers import ProducersModel
from tests.simulator.model_rows import FOREVER, Lock, Row, next_hold
from tests.simulator.model_works import outlet_of

#: What may be answered to those who ask for claims while something is down.
FAULTS: set[type[BaseException]] = {PartitionOffline, Unknown, ClaimNotFound}
#: Entity, reader, number.
ClaimKey = tuple[int, str, int]


def key_of(uid: int, owner: str) -> ClaimKey:
    """Return which claim holds messages under a name."""
    reader, _, number = owner.removeprefix("claim/").rpartition("/")
    return uid, reader, int(number)


class ClaimsModel(ProducersModel):
    """The whole bus, with claims."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        #: the rows of claims that are durable: what the claim's own row says
        self.claim_rows: dict[ClaimKey, dict[str, Any]] = {}
        self._claims_gathering: dict[ClaimKey, dict[str, Any] | None] = {}
        self._claims_flying: dict[ClaimKey, dict[str, Any] | None] = {}

    # Rows

    def claims_written(self, rows: dict[ClaimKey, dict[str, Any] | None]) -> None:
        for key, content in rows.items():
            if content is not None and key not in self.claim_rows:
                self._check_durable(key, content)
        self._claims_gathering |= rows

    def by_uid(self, uid: int) -> EntityModel | None:
        return next((one for one in self.entities.values() if one.uid == uid), None)

    def _check_durable(self, key: ClaimKey, content: dict[str, Any]) -> None:
        """A claim is made when everything that it has is held, and on the disk."""
        entity = self.by_uid(key[0])
        if entity is None:
            # It was deleted meanwhile, and its claims with it.
            return
        owner = f"claim/{key[1]}/{key[2]}"
        for index, count in content["partitions"]:
            kept = self.stores[entity.stores[index]].committed.get((entity.log.uid, index))
            outlet = None if kept is None else outlet_of(kept, entity.uid)
            rows = [] if outlet is None else outlet.rows.values()
            held = sum(row.lock is not None and row.lock.owner == owner for row in rows)
            check(held == count, f"{owner}: {count} in its row, {held} held on the disk")

    def commit_started(self, name: str) -> None:
        super().commit_started(name)
        if name not in self.stores:
            self._claims_flying, self._claims_gathering = self._claims_gathering, {}

    def commit_finished(self, name: str) -> None:
        super().commit_finished(name)
        if name not in self.stores:
            self._keep_claims()

    def _keep_claims(self) -> None:
        for key, content in self._claims_flying.items():
            self.claim_rows.pop(key, None)
            if content is not None:
                self.claim_rows[key] = content
        self._claims_flying = {}

    def store_failed(self, name: str, kept: bool) -> None:
        if name not in self.stores:
            if kept:
                self._keep_claims()
            self._claims_flying, self._claims_gathering = {}, {}
        super().store_failed(name, kept)
        for op in self.ops:
            if op.audit is not None:
                op.tolerated |= FAULTS

    def crashed(self, kept: dict[str, bool]) -> None:
        if kept.get("namespace"):
            self._keep_claims()
        self._claims_flying, self._claims_gathering = {}, {}
        super().crashed(kept)

    def delete(self, name: str) -> None:
        entity = self.entities[name]
        gone = {entity.uid, *[one.uid for one in self.subscriptions(entity)]}
        self.claim_rows = {key: row for key, row in self.claim_rows.items() if key[0] not in gone}
        for op in self.ops:
            if op.audit is not None:
                op.tolerated |= {*FAULTS, EntityNotFound}
        super().delete(name)

    # What is held under the name of a claim

    def held_by(self, entity: EntityModel, index: int, owner: str) -> list[Row]:
        rows = entity.partition(index).rows.values()
        held = [row for row in rows if row.lock is not None and row.lock.owner == owner]
        return sorted(held, key=lambda row: row.ordinal)

    def set_aside(
        self, entity: EntityModel, index: int, owner: str, limit: int, count: int
    ) -> None:
        """The bus has set messages aside: the first that nobody holds, as many as asked for."""
        partition = self.part(entity, index)
        chosen: list[Row] = []
        if entity.settings.requires_session:
            for session in partition.free_sessions():
                most = 1 if entity.settings.one_message_per_group else limit
                chosen += partition.ready(session)[: min(most, limit - len(chosen))]
        else:
            chosen = partition.in_order(self.time.now())[:limit]
        check(len(chosen) == count, f"{owner}: {count} set aside, the model has {len(chosen)}")
        for row in chosen:
            by = row.message.session_id if entity.settings.requires_session else None
            lock = Lock(next_hold(), FOREVER, 0, by, None, -1, owner)
            partition.put(row, lock=lock)

    def complete_claimed(
        self, entity: EntityModel, index: int, owner: str, letters: dict[int, Any], limit: int
    ) -> None:
        """The bus completes the next messages of a claim, whose commit must be durable."""
        row = self.claim_rows.get(key_of(entity.uid, owner), {})
        check(bool(row.get("committing")), f"{owner} is completed, and was not committed")
        partition = self.part(entity, index)
        for held in self.held_by(entity, index, owner)[:limit]:
            if held.number in letters:
                partition.kill(held, *letters[held.number])
            else:
                del partition.rows[held.ordinal]

    def release_claimed(
        self, entity: EntityModel, index: int, owner: str, limit: int | None
    ) -> None:
        """The bus releases the next messages of a claim, whose row must be deleted durably.

        Messages that a failed claim of the same number has left do not belong to this claim.
        """
        row = self.claim_rows.get(key_of(entity.uid, owner), {"partitions": []})
        mine = index in dict(row["partitions"])
        check(not mine, f"{owner} is given back, while its row is there")
        partition: PartitionModel = self.part(entity, index)
        for held in self.held_by(entity, index, owner)[:limit]:
            partition.give_back(held, self.time.now(), counted=False)

    def claim_op(self, op: Op, name: str) -> EntityModel:
        """Begin a command on claims: what may go wrong with it, as things are."""
        entity = self.find(name)
        stores = [self.stores[store].online for store in entity.stores]
        if not (self.namespace.online and all(stores)):
            op.tolerated |= FAULTS
        return entity
