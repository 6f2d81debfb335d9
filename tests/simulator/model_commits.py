"""What is durable in the bus, as the promises describe it: stores, commits, failures and crashes.

A store's durable state is a snapshot of each of its partitions at the start of the last commit that
finished. Commands change the partitions at once; `Op` says what their answer must be, and which
commits must have finished before it may be given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from zlib import crc32

from onibus.core.errors import (
    EntityDisabled,
    EntityNotFound,
    OnibusError,
    PartitionOffline,
    Unknown,
)
from onibus.core.settings import AnySettings
from tests.simulator.model import PartitionModel
from tests.simulator.model_parts import EntityModel, Op, Request, StoreModel, SubscriptionModel
from tests.simulator.model_rows import Prepared
from tests.simulator.model_time import BusTime
from tests.simulator.model_topics import TopicPartition

#: Stamps that are ahead by no more than this are not set back.
STAMPS_SLACK_MS = 60_000


class Commits:
    """All entities and stores, and what is on its way to them."""

    def __init__(self, stores: Sequence[str], time: BusTime) -> None:
        self.time = time
        self.stores = {name: StoreModel() for name in stores}
        self.entities: dict[str, EntityModel] = {}
        self.ops: list[Op] = []
        #: commands of several commits go on in the order in which they wrote
        self.turns = 0
        #: sends that wait for their turn, by their replies; None: the model has not come to it yet
        self.waiting: dict[Any, Callable[[], bool] | None] = {}
        self.came: set[Any] = set()
        #: sends whose fan-out was computed before: the bus sends each of them alone
        self.planned: set[Any] = set()

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
        store.dirty.add((entity.log.uid, index))
        if op is not None:
            op.needs[entity.stores[index]] = store.started + 1
        partition = entity.partition(index)
        if partition.fair is not None:
            partition.fair.look(partition.rows, self.time.now())
        return partition

    def advance(self, entity: EntityModel, index: int) -> None:
        at, log = self.time.at(), entity.log
        if not log.parts[index].is_calm(at) and self.online(log, index):
            self.part(log, index).advance(at)

    def set_stamps_back(self, wall: int) -> None:
        """Let stamps follow the clock again where they are in the future."""
        for entity in self.logs():
            for index, part in enumerate(entity.parts):
                if self.online(entity, index) and part.stamp > wall + STAMPS_SLACK_MS:
                    self.part(entity, index)
                    part.stamp = wall

    def advance_all(self) -> None:
        for entity in self.logs():
            for index in range(len(entity.parts)):
                self.advance(entity, index)

    def logs(self) -> list[EntityModel]:
        """Return the queues and topics."""
        return [entity for entity in self.entities.values() if entity.log is entity]

    def subscriptions(self, topic: EntityModel) -> list[EntityModel]:
        return [entity for entity in self.entities.values() if entity.topic is topic]

    def in_turn(self, entity: EntityModel) -> list[int]:
        count = len(entity.partitions)
        entity.next_receive = (entity.next_receive + 1) % count
        return [(entity.next_receive + at) % count for at in range(count)]

    def delete(self, name: str) -> None:
        """An entity is gone; what was about to be sent to it is refused with the next commit."""
        entity = self.entities.pop(name)
        for subscription in self.subscriptions(entity):
            del self.entities[subscription.name]
        if entity.topic is not None:
            del entity.topic.rules[entity.uid]
            for part in entity.topic.parts:
                assert isinstance(part, TopicPartition)
                part.outlets.pop(entity.uid, None)
            return
        for store in self.stores.values():
            for request in store.inbox:
                if request.entity is entity:
                    request.op.tolerated.add(EntityNotFound)

    def change(self, entity: EntityModel, settings: AnySettings) -> None:
        """Take new settings; an entity that is paused sends away who waits for its messages."""
        entity.settings = settings
        for index in range(len(entity.partitions)):
            if self.online(entity, index):
                self.take_in([(entity, index)])
                self.part(entity, index)
                entity.partitions[index].change_settings(settings, self.time.now())
        paused = settings.status in ("disabled", "receive-disabled")
        for op in self.ops:
            if paused and op.entity is entity and op.fetch is not None:
                op.errors, op.fetch = {EntityDisabled}, None

    def any(self, entity: EntityModel) -> int:
        """Return the next partition in turn that is up (P5)."""
        for _ in entity.partitions:
            index = entity.next_send % len(entity.partitions)
            entity.next_send += 1
            if self.online(entity, index):
                return index
        raise PartitionOffline(entity.name)

    def index_of(self, entity: EntityModel, prepared: Prepared) -> int:
        """Return the partition of a message that has a key, or of any where there is one only."""
        return crc32((prepared.key or "").encode()) % len(entity.parts)

    def route(self, entity: EntityModel, batch: Sequence[Prepared]) -> dict[int, list[int]]:
        """Return which messages go to which partition; keyless ones share one (P4, P5)."""
        parts: dict[int, list[int]] = {}
        keyless = []
        for place, prepared in enumerate(batch):
            if prepared.key is None and len(entity.parts) > 1:
                keyless.append(place)
            else:
                parts.setdefault(self.index_of(entity, prepared), []).append(place)
        if not all(self.online(entity, index) for index in parts):
            raise PartitionOffline(entity.name)
        if keyless:
            index = self.any(entity)
            parts[index] = sorted([*parts.get(index, []), *keyless])
        return parts

    # Turns

    def takes_turn(self, reply: Any) -> None:
        """The bus lets a send wait for its turn; perhaps one that goes to another partition."""
        self.waiting.setdefault(reply, None)
        for store in self.stores.values():
            for request in [one for one in store.inbox if one.op.reply is reply]:
                store.inbox.remove(request)
                self.after_turn(request.op, partial(self.put, request))

    def turn_came(self, reply: Any, planned: bool) -> None:
        """The bus does what has waited."""
        if planned:
            self.planned.add(reply)
        act = self.waiting.pop(reply)
        if act is None:
            # It came at once: the model follows in `after_turn`.
            self.came.add(reply)
        elif not act():
            self.waiting[reply] = act

    def put(self, request: Request) -> bool:
        """Let a send wait for the next commit; return False where it goes elsewhere, in turn."""
        entity, index = request.entity, request.index
        if self.entities.get(entity.name) is not entity:
            raise EntityNotFound(entity.name)
        if self.online(entity, index):
            self.stores[entity.stores[index]].inbox.append(request)
            return True
        if not request.keyless:
            raise PartitionOffline(entity.name)
        request.index = self.any(entity)
        return False

    def after_turn(self, op: Op, act: Callable[[], bool | None]) -> None:
        """Do something now, or when the bus does; it returns False where it has to wait again."""

        def tried() -> bool:
            try:
                return act() is not False
            except OnibusError as error:
                op.errors.add(type(error))
                return True

        if op.reply in self.waiting:
            self.waiting[op.reply] = tried
            return
        self.came.discard(op.reply)
        act()

    # Commits

    def take_in(self, places: Iterable[tuple[EntityModel, int]]) -> None:
        """A work comes to these partitions: sends that gathered in their stores came before it."""
        for name in dict.fromkeys(entity.stores[index] for entity, index in places):
            if self.stores[name].online:
                self.apply_inbox(name)

    def apply_inbox(self, name: str) -> None:
        """Apply the sends that gathered."""
        store = self.stores[name]
        at = self.time.at()
        requests, store.inbox = store.inbox, []
        after: set[PartitionModel] = set()
        for request in requests:
            if self.entities.get(request.entity.name) is not request.entity:
                request.op.fail(EntityNotFound)
                continue
            partition = self.part(request.entity, request.index, request.op)
            alone = request.op.reply in self.planned
            self.planned.discard(request.op.reply)
            if alone or partition in after:
                # The bus sends it alone, after the messages that are due by now.
                partition.arrived(at)
                self.advance(request.entity, request.index)
                after.discard(partition)
            for place, prepared in zip(request.places, request.batch, strict=True):
                request.op.value[place] = partition.send(prepared, at)
            request.op.left = 0
            if alone:
                partition.arrived(at)
                after.add(partition)
        for request in requests:
            request.entity.parts[request.index].arrived(at)

    def commit_started(self, name: str) -> None:
        """Sends that gathered are applied, then everything written so far is on its way."""
        self.apply_inbox(name)
        store = self.stores[name]
        store.started += 1
        found = {(e.uid, i): p for e in self.logs() for i, p in enumerate(e.parts)}
        store.flying = {key: found[key].copy() for key in store.dirty if key in found}
        store.dirty = set()

    def commit_finished(self, name: str) -> None:
        store = self.stores[name]
        assert store.flying is not None
        store.finished = store.started
        store.committed |= store.flying
        for entity in self.logs():
            for index, partition in enumerate(entity.parts):
                if (entity.uid, index) in store.flying:
                    partition.show(store.flying[entity.uid, index].next)
        store.flying = None

    def go_on(self, name: str) -> None:
        """Commands of several commits take their next step, in the order in which they wrote."""
        self.take_steps(name)

    def take_steps(self, name: str, last: int | None = None) -> None:
        """Take the steps that a store's commit allows, up to a turn."""
        for turn, act in sorted(self.next_steps(name), key=lambda one: one[0]):
            if last is None or turn <= last:
                act()

    def purge_continues(self, reply: Any) -> None:
        """Follow the bus: a purge deletes its next slice now, after the steps before it."""
        op = next(one for one in self.ops if one.reply is reply)
        if op.steps is not None:
            self.take_steps(op.awaits[0], op.turn)

    def next_steps(self, name: str) -> list[tuple[int, Callable[[], None]]]:
        """Return the steps that a store's commit allows, each with the turn of what it wrote."""
        return [
            (op.turn, partial(self.step, op))
            for op in self.ops
            if op.steps is not None
            and op.awaits[0] == name
            and op.awaits[1] <= self.stores[name].finished
        ]

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
        for entity in self.logs():
            for index, place in enumerate(entity.stores):
                if place == name:
                    kept = store.committed.get((entity.uid, index))
                    partition = kept.copy() if kept else entity.empty(index)
                    partition.settings = entity.settings
                    partition.follow_settings(read=True)
                    entity.parts[index] = partition
                    if isinstance(partition, TopicPartition):
                        self.subscribe_again(entity, partition)

    def subscribe_again(self, topic: EntityModel, partition: TopicPartition) -> None:
        """A partition read back has the subscriptions that there are, and no other."""
        there = {entity.uid: entity for entity in self.subscriptions(topic)}
        for uid in [uid for uid in partition.outlets if uid not in there]:
            del partition.outlets[uid]
        for uid, entity in there.items():
            partition.subscribe(uid, entity.settings)

    def subscribe(self, entity: SubscriptionModel, rules: list[str]) -> None:
        """A topic has a new subscription."""
        self.entities[entity.name] = entity
        entity.topic.rules[entity.uid] = rules
        for partition in entity.topic.parts:
            assert isinstance(partition, TopicPartition)
            partition.subscribe(entity.uid, entity.settings)

    def crashed(self, kept: dict[str, bool]) -> None:
        """All memory is gone; a commit that was on its way is there or is not."""
        self.ops = []
        self.waiting = {}
        for entity in self.entities.values():
            entity.next_send = entity.next_receive = 0
        for name, store in self.stores.items():
            if store.flying is not None and kept.get(name):
                store.committed |= store.flying
            store.flying, store.inbox, store.dirty = None, [], set()
            store.finished = store.started
            self.store_opened(name)
