"""The whole bus as the promises describe it: entities over partitions over stores.

Commands change the partitions at once; when they are durable is in `model_commits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from zlib import crc32

from onibus.core.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    LockLost,
    NoSession,
    PartitionOffline,
)
from onibus.core.inspection import Filter
from onibus.core.message import Message
from onibus.core.settings import TopicSettings
from tests.simulator.model import PartitionModel
from tests.simulator.model_moves import Moves
from tests.simulator.model_parts import EntityModel, Given, Op, Request, meant
from tests.simulator.model_rows import Row, prepare
from tests.simulator.model_works import WorkPart

PURGE_SLICE = 5


class BusModel(Moves):
    """What clients may ask for, and what they must be answered."""

    # Sending

    def sendable(self, name: str) -> EntityModel:
        entity = self.find(name)
        if entity.topic is not None:
            raise InvalidOperation(name)
        if entity.settings.status not in ("active", "receive-disabled"):
            raise EntityDisabled(name)
        return entity

    def send(self, op: Op, name: str, messages: Sequence[Message]) -> None:
        entity = self.sendable(name)
        batch = [prepare(message, entity.settings) for message in messages]
        op.value = [None] * len(messages)
        parts = self.route(entity, batch)
        if len(parts) == 1:
            (index,) = parts
            movable = len(entity.parts) > 1 and all(one.key is None for one in batch)
            request = Request(op, entity, index, [*range(len(batch))], batch, movable)
            self.after_turn(op, lambda: self.put(request))
            return

        def work() -> None:
            # The bus takes in earlier sends first, even if the entity was deleted since.
            self.take_in((entity, index) for index in parts)
            self.still_there(op, entity)
            self.do_work(
                op,
                {
                    (entity, index): WorkPart([batch[place] for place in places], places)
                    for index, places in parts.items()
                },
            )

        self.after_turn(op, work)

    # Receiving

    def receivable(self, name: str) -> EntityModel:
        entity = self.find(name)
        if isinstance(entity.settings, TopicSettings):
            raise InvalidOperation(name)
        if entity.settings.status not in ("active", "send-disabled"):
            raise EntityDisabled(name)
        return entity

    def receive(self, op: Op, name: str, limit: int, dead: bool, take: bool) -> None:
        entity = self.receivable(name)
        if (entity.settings.requires_session or entity.settings.forward_to) and not dead:
            raise InvalidOperation(name)

        def fetch() -> bool:
            found: list[Given] = []
            for index in self.in_turn(entity):
                if not self.online(entity, index):
                    if len(entity.partitions) == 1:
                        raise PartitionOffline(name)
                    continue
                partition = entity.partitions[index]
                wanted = partition.in_order(self.time.now(), dead)[: limit - len(found)]
                if wanted:
                    self.part(entity, index, op if take else None)
                    rows = partition.hand_out(wanted, self.time.now(), None, take)
                    found += [self.given(entity, index, row) for row in rows]
                if (take and found) or len(found) == limit:
                    break
            return self.fetched(op, found)

        op.entity, op.fetch = entity, fetch

    def fetched(self, op: Op, found: list[Given]) -> bool:
        if found:
            op.resolve(found)
            op.fetch = None
        return bool(found)

    def given(self, entity: EntityModel, index: int, row: Row) -> Given:
        if row.lock is None:
            return entity, index, row, None
        by = row.lock.by
        if by is not None and not entity.settings.fifo:
            return entity, index, row, self.time.shown(entity.partitions[index].locks[by].until)
        return entity, index, row, self.time.shown(row.lock.until)

    def receive_fifo(
        self, op: Op, name: str, limit: int, visibility: int | None, attempt: str | None
    ) -> None:
        entity = self.receivable(name)
        if not entity.settings.fifo:
            raise InvalidOperation(name)
        visible = entity.settings.lock_duration_ms if visibility is None else visibility

        def fetch() -> bool:
            partition = self.part(entity, 0)
            rows = partition.receive_groups(limit, visible, attempt, self.time.now())
            return self.fetched(op, [self.given(entity, 0, row) for row in rows])

        op.entity, op.fetch = entity, fetch

    def accept(self, op: Op, name: str, session: str | None, sharing: int | None = None) -> None:
        """Lock a session exclusively, or as `sharing` says: 0 non-exclusively, else the lock
        whose takeover token that is (B9).
        """
        entity = self.receivable(name)
        if not entity.settings.requires_session:
            raise InvalidOperation(name)

        def fetch() -> bool:
            indexes = self.in_turn(entity)
            if session is not None:
                indexes = [crc32(session.encode()) % len(entity.partitions)]
            for index in indexes:
                if not self.online(entity, index):
                    if session is not None or len(entity.partitions) == 1:
                        raise PartitionOffline(name)
                    continue
                taken = self.part(entity, index).accept(session, self.time.now(), sharing)
                if taken is not None:
                    if sharing:
                        self.part(entity, index, op)
                    op.errors.discard(NoSession)
                    lock = entity.partitions[index].locks[taken]
                    op.resolve((entity, index, taken, lock, self.time.shown(lock.until)))
                    op.fetch = None
                    return True
            return False

        op.errors.add(NoSession)
        op.entity, op.fetch = entity, fetch

    def receive_session(
        self,
        op: Op,
        entity: EntityModel,
        index: int,
        session: str,
        lock: int,
        limit: int,
        take: bool,
    ) -> None:
        self.receivable(entity.name)
        self.still_there(op, entity)

        def fetch() -> bool:
            partition = self.part(entity, index)
            partition.held_session(session, lock)
            rows = partition.receive(limit, self.time.now(), session=session, take=take)
            if rows and take:
                self.part(entity, index, op)
            return self.fetched(op, [self.given(entity, index, row) for row in rows])

        op.entity, op.fetch = entity, fetch

    # Settling

    def group(self, entity: EntityModel, numbers: Sequence[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for number in numbers:
            groups.setdefault(entity.index_of(number), []).append(number)
        return groups

    def still_there(self, op: Op, entity: EntityModel) -> None:
        """Refuse who asks for what was deleted."""
        if self.entities.get(entity.name) is not entity:
            # A partition of its topic that is down does not know of a subscription that was there.
            op.tolerated.add(PartitionOffline)
            raise EntityNotFound(entity.name)

    def on_session(
        self,
        op: Op,
        entity: EntityModel,
        index: int,
        session: str,
        lock: int,
        act: Callable[[PartitionModel], Any],
    ) -> None:
        self.still_there(op, entity)
        partition = self.part(entity, index)
        partition.held_session(session, lock)
        op.resolve(act(self.part(entity, index, op)))

    def complete(
        self,
        op: Op,
        name: str,
        held: Sequence[tuple[int, int, int]],
        session: tuple[str, int] | None = None,
    ) -> None:
        """Complete messages held by (entity, number, lock), atomically.

        With `session`, only while its receiver has that lock (B9).
        """
        entity = self.find(name)
        groups: dict[int, list[tuple[int, int, int]]] = {}
        for proof in held:
            groups.setdefault(entity.index_of(proof[1]), []).append(proof)
        if max(groups) >= len(entity.partitions):
            raise LockLost(name)
        rows = []
        parts = {index: self.part(entity, index) for index in groups}
        for index, proofs in groups.items():
            partition = parts[index]
            if any(uid != entity.uid for uid, _, _ in proofs):
                raise LockLost(name)
            if session is not None:
                partition.held_session(*session)
            found = [partition.held(number, lock) for _, number, lock in proofs]
            if len({row.ordinal for row in found}) < len(found):
                raise InvalidArgument(name)
            rows += [(partition, row) for row in found]
        for partition, row in rows:
            partition.complete(row)
        for index in groups:
            self.part(entity, index, op)
        op.resolve(None)

    def settle(
        self,
        op: Op,
        name: str,
        held: tuple[int, int, int],
        act: Callable[[PartitionModel, Row], Any],
        session: tuple[str, int] | None = None,
    ) -> None:
        uid, number, lock = held
        entity = self.find(name)
        index = entity.index_of(number)
        if index >= len(entity.partitions):
            raise LockLost(name)
        partition = self.part(entity, index)
        if uid != entity.uid:
            raise LockLost(name)
        if session is not None:
            partition.held_session(*session)
        value = act(partition, partition.held(number, lock))
        self.part(entity, index, op)
        op.resolve(value)

    def by_number(
        self,
        op: Op,
        name: str,
        numbers: Sequence[int],
        find: Callable[[PartitionModel, int], Row],
        act: Callable[[PartitionModel, list[Row]], list[Row]],
    ) -> None:
        """Do something to messages named by their numbers: all, or none (S5, L2, X3)."""
        entity = self.find(name)
        groups = self.group(entity, numbers)
        parts = {index: self.part(entity, index) for index in groups}
        found = {
            index: [find(parts[index], number) for number in dict.fromkeys(chosen)]
            for index, chosen in groups.items()
        }
        value = []
        for index, rows in found.items():
            result = act(self.part(entity, index, op), rows)
            value += [self.given(entity, index, row) for row in result]
        op.resolve(value or None)

    def receive_deferred(
        self,
        op: Op,
        name: str,
        numbers: Sequence[int],
        find: Callable[[PartitionModel, int], Row],
        session: str | None,
        dead: bool,
        take: bool,
    ) -> None:
        entity = self.receivable(name)
        settings = entity.settings
        if settings.requires_session and not (settings.fifo or dead) and session is None:
            raise InvalidOperation(name)
        now = self.time.now()
        self.by_number(
            op,
            name,
            numbers,
            find,
            lambda partition, rows: partition.hand_out(rows, now, session, take),
        )

    def purge(self, op: Op, name: str, wanted: Filter, forget: bool) -> None:
        entity = self.find(name)
        if forget and entity.topic is not None:
            raise InvalidOperation(name)
        if not all(self.online(entity, index) for index in range(len(entity.partitions))):
            raise PartitionOffline(name)
        op.steps = self._purge(op, entity, wanted, forget)
        self.step(op)

    def _purge(self, op: Op, entity: EntityModel, wanted: Filter, forget: bool) -> Iterator[str]:
        total = 0
        states = Filter(state=wanted.state)
        for index in range(len(entity.partitions)):
            start: int | None = 0
            while start is not None:
                # Sends that arrived before it come before it.
                self.take_in([(entity, index)])
                partition = self.part(entity, index, op)
                looked_at = [
                    row
                    for ordinal, row in sorted(partition.rows.items())
                    if not row.lock and start <= ordinal < partition.shown and meant(row, states)
                ][:PURGE_SLICE]
                chosen = [row for row in looked_at if meant(row, wanted)]
                for row in chosen:
                    del partition.rows[row.ordinal]
                start = looked_at[-1].ordinal + 1 if len(looked_at) == PURGE_SLICE else None
                if forget and start is None:
                    entity.log.parts[index].ids = {}
                total += len(chosen)
                yield entity.stores[index]
        op.resolve(total)
