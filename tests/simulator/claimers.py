"""Seeded readers that claim messages, read them again, commit and give back (R5, R7)."""

from __future__ import annotations

from typing import Any

from onibus.core.errors import (
    ClaimNotFound,
    EntityReplaced,
    InvalidOperation,
    MessageNotFound,
)
from onibus.core.path.claim import owner_of
from onibus.directory import claim_reading, claim_settling
from tests.simulator.compare import compare_row
from tests.simulator.mismatch import check, same
from tests.simulator.model_parts import EntityModel, Op
from tests.simulator.producing import Producing

READERS = ("r", "s")


class Claimers(Producing):
    """Draws what readers do with claims."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        #: (entity, its uid, reader, number) of claims that were made
        self.claims: list[tuple[str, int, str, int]] = []

    def claim(self) -> None:
        """Set messages aside."""
        sim, name, reader = self.sim, self.source(), self.random.choice(READERS)
        limit = self.limit()
        lease = self.random.choice((1_000, 20_000, 300_000))

        def expect(op: Op) -> None:
            sim.model.receivable(name)
            entity = sim.model.claim_op(op, name)
            if sim.model.namespace.online:
                sim.model.in_turn(entity)
            # Another claim of the same reader may be under way.
            op.tolerated.add(InvalidOperation)

            def audit(told: Any) -> None:
                if told is None:
                    return
                owner = owner_of(reader, told.number)
                key = (entity.uid, reader, told.number)
                check(key in sim.model.claim_rows, f"{op.words}: told before it is durable")
                # What is down still shows what a claim that failed has left there.
                up = [at for at in range(len(entity.stores)) if sim.model.online(entity, at)]
                found = {at: len(sim.model.held_by(entity, at, owner)) for at in up}
                held = {at: count for at, count in found.items() if count}
                same(op.words, {at: count for at, count in told.partitions if at in up}, held)
                self.claims.append((name, entity.uid, reader, told.number))

            op.audit = audit

        sim.do(
            f"claim {name} {reader} {limit} lease={lease}",
            lambda reply: sim.broker.claims.claim(name, reader, limit, lease, None, reply),
            expect,
        )

    def use_claim(self) -> None:
        """Read a claim, commit it, or give it back; often one that was used before."""
        if not self.claims:
            return
        place = self.random.randrange(len(self.claims))
        name, uid, reader, number = self.claims[place]
        if self.random.random() < 0.1 or self.sim.model.entities.get(name) is None:
            del self.claims[place]
            return
        choice = self.random.random()
        if choice < 0.5:
            self._read(name, uid, reader, number)
        elif choice < 0.8:
            self._commit(name, uid, reader, number)
        else:
            self._release(name, uid, reader, number)

    def _begin(self, op: Op, name: str, uid: int, reader: str, number: int) -> EntityModel:
        """Refuse nothing while the claim is open and nobody else does anything to it."""
        sim = self.sim
        entity = sim.model.claim_op(op, name)
        if entity.uid != uid:
            raise EntityReplaced(name)
        row = sim.model.claim_rows.get((uid, reader, number))
        others = [one for one in sim.model.ops if one is not op and one.claim == op.claim]
        for other in others:
            other.tolerated.add(ClaimNotFound)
        lease_over = row is not None and not row.get("read") and (
            row["lease_until"] <= sim.model.time.now()
        )  # fmt: skip
        if row is None or row.get("committing") or others or lease_over:
            op.tolerated |= {ClaimNotFound}
        return entity

    def _read(self, name: str, uid: int, reader: str, number: int) -> None:
        sim = self.sim

        def expect(op: Op) -> None:
            op.claim = (uid, reader, number)
            entity = self._begin(op, name, uid, reader, number)

            def audit(pages: list[list[Any]]) -> None:
                real = [message for page in pages for message in page]
                owner = owner_of(reader, number)
                expected = [
                    row
                    for index in range(len(entity.partitions))
                    for row in sim.model.held_by(entity, index, owner)
                ]
                same(f"{op.words}: how many", len(real), len(expected))
                for one, row in zip(real, expected, strict=True):
                    compare_row(op.words, one, row)

            op.audit = audit

        sim.do(
            f"read claim {name} {reader} {number}",
            lambda reply: claim_reading.read(
                sim.broker.claims,
                name,
                reader,
                number,
                None,
                uid,
                lambda _, received: received,
                reply,
            ),
            expect,
        )

    def _commit(self, name: str, uid: int, reader: str, number: int) -> None:
        sim = self.sim
        entity = sim.model.entities[name]
        letters = {}
        if self.random.random() < 0.4 and entity.uid == uid:
            owner = owner_of(reader, number)
            held = [
                row.number
                for index in range(len(entity.partitions))
                for row in sim.model.held_by(entity, index, owner)
            ]
            letters = dict.fromkeys(held[:1], ("why", "so"))

        def expect(op: Op) -> None:
            op.claim = (uid, reader, number)
            self._begin(op, name, uid, reader, number)
            op.tolerated.add(MessageNotFound)

            def audit(told: Any) -> None:
                self._nothing_left(op, name, uid, reader, number)

            op.audit = audit

        sim.do(
            f"commit claim {name} {reader} {number} {letters}",
            lambda reply: claim_settling.commit(
                sim.broker.claims, name, reader, number, letters, uid, reply
            ),
            expect,
        )

    def _release(self, name: str, uid: int, reader: str, number: int) -> None:
        sim = self.sim

        def expect(op: Op) -> None:
            op.claim = (uid, reader, number)
            self._begin(op, name, uid, reader, number)

            def audit(told: Any) -> None:
                check(
                    (uid, reader, number) not in sim.model.claim_rows,
                    f"{op.words}: answered before it is durable",
                )

            op.audit = audit

        sim.do(
            f"release claim {name} {reader} {number}",
            lambda reply: claim_settling.release(
                sim.broker.claims, name, reader, number, uid, reply
            ),
            expect,
        )

    def _nothing_left(self, op: Op, name: str, uid: int, reader: str, number: int) -> None:
        """What a claim had is gone when its commit is answered."""
        model = self.sim.model
        entity = model.entities.get(name)
        if entity is None or entity.uid != uid:
            return
        for index in range(len(entity.partitions)):
            if model.online(entity, index):
                left = model.held_by(entity, index, owner_of(reader, number))
                check(not left, f"{op.words}: {len(left)} messages are left")
