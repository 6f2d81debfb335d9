"""The whole bus as the promises describe it: entities over partitions over stores, and commits.

A store's durable state is a snapshot of each of its partitions at the start of the last commit that
finished. Commands change the partitions at once; `Op` says what their answer must be, and which
commits must have finished before it may be given.
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
    OnibusError,
    PartitionOffline,
    Unknown,
)
from onibus.core.message import Message
from onibus.core.path.peek import Filter
from onibus.core.settings import QueueSettings
from onibus.testing.model import PartitionModel, Row, prepare
from onibus.testing.model_parts import EntityModel, Given, Op, Request, StoreModel, Time, meant

PURGE_SLICE = 5


class BusModel:
    """All entities and stores."""

    def __init__(self, stores: Sequence[str], time: Time) -> None:
        self.time = time
        self.stores = {name: StoreModel() for name in stores}
        self.entities: dict[str, EntityModel] = {}
        self.ops: list[Op] = []
        #: commands of several commits go on in the order in which they wrote
        self.turns = 0

    # Finding

    def find(self, name: str) -> EntityModel:
        if name not in self.entities:
            raise EntityNotFound(name)
        return self.entities[name]

    def online(self, entity: EntityModel, index: int) -> bool:
        return self.stores[entity.stores[index]].online

    def part(self, entity: EntityModel, index: int, op: Op | None = None) -> PartitionModel:
        """Return a partition that is about to be changed, in the store's next commit."""
        store = self.stores[entity.stores[index]]
        if not store.online:
            raise PartitionOffline(entity.name)
        store.dirty.add((entity.uid, index))
        if op is not None:
            op.needs[entity.stores[index]] = store.started + 1
        return entity.partitions[index]

    def advance(self, entity: EntityModel, index: int) -> None:
        now, partition = self.time.now(), entity.partitions[index]
        if now >= partition.calm and self.online(entity, index):
            self.part(entity, index).advance(now, self.time.wall())

    def advance_all(self) -> None:
        for entity in self.entities.values():
            for index in range(len(entity.partitions)):
                self.advance(entity, index)

    def in_turn(self, entity: EntityModel) -> list[int]:
        count = len(entity.partitions)
        entity.next_receive = (entity.next_receive + 1) % count
        return [(entity.next_receive + at) % count for at in range(count)]

    def delete(self, name: str) -> None:
        """An entity is gone; what was about to be sent to it is refused with the next commit."""
        entity = self.entities.pop(name)
        for store in self.stores.values():
            for request in store.inbox:
                if request.entity is entity:
                    request.op.tolerated.add(EntityNotFound)
                    if request.op.parts > 1:
                        request.op.tolerated.add(Unknown)

    def change(self, entity: EntityModel, settings: QueueSettings) -> None:
        """Take new settings; an entity that is paused sends away who waits for its messages."""
        entity.settings = settings
        for index in range(len(entity.partitions)):
            if self.online(entity, index):
                self.part(entity, index).change_settings(settings, self.time.now())
        paused = settings.status in ("disabled", "receive-disabled")
        for op in self.ops:
            if paused and op.entity is entity and op.fetch is not None:
                op.errors, op.fetch = {EntityDisabled}, None

    # Sending

    def send(self, op: Op, name: str, messages: Sequence[Message]) -> None:
        entity = self.find(name)
        if entity.settings.status not in ("active", "receive-disabled"):
            raise EntityDisabled(name)
        batch = [prepare(message, entity.settings) for message in messages]
        parts: dict[int, list[int]] = {}
        keyless = []
        for place, prepared in enumerate(batch):
            if prepared.key is None and len(entity.partitions) > 1:
                keyless.append(place)
            else:
                hashed = crc32((prepared.key or "").encode())
                parts.setdefault(hashed % len(entity.partitions), []).append(place)
        if not all(self.online(entity, index) for index in parts):
            raise PartitionOffline(name)
        requests = [
            Request(op, entity, index, places, [batch[p] for p in places], False)
            for index, places in parts.items()
        ]
        if keyless:
            chosen = [batch[place] for place in keyless]
            requests.append(Request(op, entity, self.any(entity), keyless, chosen, True))
        op.value = [None] * len(messages)
        op.left = op.parts = len(requests)
        for request in requests:
            self.stores[entity.stores[request.index]].inbox.append(request)

    def any(self, entity: EntityModel) -> int:
        """Return the next partition in turn that is up (P5)."""
        for _ in entity.partitions:
            index = entity.next_send % len(entity.partitions)
            entity.next_send += 1
            if self.online(entity, index):
                return index
        raise PartitionOffline(entity.name)

    # Commits

    def commit_started(self, name: str) -> None:
        """Sends that gathered are applied, then everything written so far is on its way."""
        store = self.stores[name]
        now, wall = self.time.now(), self.time.wall()
        requests, store.inbox = store.inbox, []
        for request in requests:
            if self.entities.get(request.entity.name) is not request.entity:
                request.op.fail(EntityNotFound)
                continue
            partition = self.part(request.entity, request.index, request.op)
            for place, prepared in zip(request.places, request.batch, strict=True):
                request.op.value[place] = partition.send(prepared, now, wall)
            request.op.left -= 1
        store.started += 1
        found = {(e.uid, i): p for e in self.entities.values() for i, p in enumerate(e.partitions)}
        store.flying = {key: found[key].copy() for key in store.dirty if key in found}
        store.dirty = set()

    def commit_finished(self, name: str) -> None:
        store = self.stores[name]
        assert store.flying is not None
        store.finished = store.started
        store.committed |= store.flying
        for entity in self.entities.values():
            for index, partition in enumerate(entity.partitions):
                if (entity.uid, index) in store.flying:
                    partition.shown = store.flying[entity.uid, index].next
        store.flying = None

    def go_on(self, name: str) -> None:
        """Commands of several commits take their next step."""
        for op in sorted(self.ops, key=lambda op: op.turn):
            store, serial = op.awaits
            if op.steps is not None and store == name and serial <= self.stores[name].finished:
                self.step(op)

    def step(self, op: Op) -> None:
        assert op.steps is not None
        try:
            name = next(op.steps)
            op.awaits = (name, self.stores[name].started + 1)
            self.turns += 1
            op.turn = self.turns
        except StopIteration:
            op.steps = None
        except OnibusError as error:
            op.errors.add(type(error))
            op.steps = None

    def store_failed(self, name: str, kept: bool) -> None:
        """A commit failed: its store is offline, and who waited for it is told 'unknown'."""
        store = self.stores[name]
        if store.flying is not None and kept:
            store.committed |= store.flying
        store.online, store.flying, store.dirty = False, None, set()
        for op in self.ops:
            if op.needs.get(name, 0) > store.finished and not op.answered:
                op.fail(Unknown)
                op.steps = None
        store.finished = store.started
        requests, store.inbox = store.inbox, []
        for request in requests:
            try:
                if not request.keyless:
                    raise PartitionOffline(name)
                request.index = self.any(request.entity)
                place = request.entity.stores[request.index]
                self.stores[place].inbox.append(request)
            except PartitionOffline:
                request.op.fail(PartitionOffline)

    def store_opened(self, name: str) -> None:
        """A store is read back: its partitions are as of its last commit."""
        store = self.stores[name]
        store.online = True
        for entity in self.entities.values():
            for index, place in enumerate(entity.stores):
                if place == name:
                    kept = store.committed.get((entity.uid, index))
                    partition = kept.copy() if kept else entity.empty(index)
                    partition.settings = entity.settings
                    entity.partitions[index] = partition

    def crashed(self, kept: dict[str, bool], time: Time) -> None:
        """All memory is gone; a commit that was on its way is there or is not."""
        self.ops = []
        self.time = time
        for entity in self.entities.values():
            entity.next_send = entity.next_receive = 0
        for name, store in self.stores.items():
            if store.flying is not None and kept.get(name):
                store.committed |= store.flying
            store.flying, store.inbox, store.dirty = None, [], set()
            store.finished = store.started
            self.store_opened(name)

    # Receiving

    def receivable(self, name: str) -> EntityModel:
        entity = self.find(name)
        if entity.settings.status not in ("active", "send-disabled"):
            raise EntityDisabled(name)
        return entity

    def receive(self, op: Op, name: str, limit: int, dead: bool, take: bool) -> None:
        entity = self.receivable(name)
        if entity.settings.requires_session and not dead:
            raise InvalidOperation(name)

        def fetch() -> bool:
            found: list[Given] = []
            for index in self.in_turn(entity):
                if not self.online(entity, index):
                    if len(entity.partitions) == 1:
                        raise PartitionOffline(name)
                    continue
                partition = entity.partitions[index]
                wanted = partition.ready(dead=dead)[: limit - len(found)]
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
            return entity, index, row, entity.partitions[index].locks[by].until
        return entity, index, row, row.lock.until

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

    def accept(self, op: Op, name: str, session: str | None) -> None:
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
                taken = self.part(entity, index).accept(session, self.time.now())
                if taken is not None:
                    op.errors.discard(NoSession)
                    op.resolve((entity, index, taken, entity.partitions[index].locks[taken]))
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
        if self.receivable(entity.name) is not entity:
            raise EntityNotFound(entity.name)

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

    def on_session(
        self,
        op: Op,
        entity: EntityModel,
        index: int,
        session: str,
        lock: int,
        act: Callable[[PartitionModel], Any],
    ) -> None:
        if self.find(entity.name) is not entity:
            raise EntityNotFound(entity.name)
        partition = self.part(entity, index)
        partition.held_session(session, lock)
        op.resolve(act(self.part(entity, index, op)))

    def complete(self, op: Op, name: str, held: Sequence[tuple[int, int, int]]) -> None:
        """Complete what is held by (entity, number, lock): all, or none."""
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
            found = [partition.held(number - partition.base, lock) for _, number, lock in proofs]
            if len({row.ordinal for row in found}) < len(found):
                raise InvalidArgument(name)
            rows += [(partition, row) for row in found]
        for partition, row in rows:
            del partition.rows[row.ordinal]
        for index in groups:
            self.part(entity, index, op)
        op.resolve([])

    def settle(
        self,
        op: Op,
        name: str,
        held: tuple[int, int, int],
        act: Callable[[PartitionModel, Row], Any],
    ) -> None:
        uid, number, lock = held
        entity = self.find(name)
        index = entity.index_of(number)
        if index >= len(entity.partitions):
            raise LockLost(name)
        partition = self.part(entity, index)
        if uid != entity.uid:
            raise LockLost(name)
        value = act(partition, partition.held(number - partition.base, lock))
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
        op.resolve(value)

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
        entity = self.find(name)
        if not entity.settings.receives:
            raise EntityDisabled(name)
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
                    partition.ids = {}
                total += len(chosen)
                yield entity.stores[index]
        op.resolve(total)
