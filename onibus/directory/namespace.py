"""The namespace: which entities there are. One commit decides each creation, change and deletion.

Entities are rows of the namespace's own store. A partition needs nothing in its message store
before its first message, so there is no half-made entity: the row is there, or it is not (P10).
"""

from __future__ import annotations

import contextlib
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from onibus.api.entities import SUBSCRIPTIONS, subscription_name
from onibus.core import limits, settings
from onibus.core.commands import ChangeSettings, ChangeSubscription, Command, SetRules
from onibus.core.errors import (
    Busy,
    Damaged,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    Failed,
    InvalidName,
    InvalidOperation,
    OnibusError,
    PartitionOffline,
    QuotaExceeded,
    Refused,
)
from onibus.core.partition import Partition
from onibus.core.records import ENTITIES, META, READERS, WriteBatch
from onibus.core.rules.rule import Rule
from onibus.core.settings import (
    AnySettings,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from onibus.core.tally import Durations
from onibus.directory import readers, timekeeping
from onibus.directory.entity import TOPIC, Entity
from onibus.directory.entity_rows import KeptEntity, kept_of, row_of
from onibus.directory.entity_rules import check_room, check_rules, check_sessions, check_targets
from onibus.directory.idling import watch_idle
from onibus.directory.key_rows import KeyRows
from onibus.directory.probing import needs_disks
from onibus.directory.quotas import Quotas
from onibus.directory.reading_back import NamespaceOpening, Reading
from onibus.directory.standing_readers import Standing, add_standing, start_standing
from onibus.shard.commits import CommitLoop
from onibus.shard.erasing import erase_rows
from onibus.shard.opening import open_known
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import KeptReply, Reply, answer, fail
from onibus.shard.threads import StoreThreads
from onibus.shard.writer import Writer
from onibus.store.interface import OpenStore, Store

if TYPE_CHECKING:
    from onibus.directory.host import Host

#: The name of the namespace's own store.
NAME = "namespace"
#: The pause before a failed store is reopened.
REOPEN_MS = 1_000
#: `meta` rows of this prefix have the identities of the message stores.
STORE_ROW = "store/"


#: Returns the rules that a subscription gets, or rejects those that it has.
ChangeRules = Callable[[list[Rule]], list[Rule]]
#: Returns the settings that change, given the entity as it is when its change is decided.
ChangeEntity = Callable[[Entity], dict[str, Any]]


class RuleDecision:
    """Changes of rules that are part of a transaction: one commit decides both."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.rules: dict[Entity, list[Rule]] = {}

    def begin(self) -> None:
        """Let no other change of these subscriptions be decided in between."""
        self._namespace.under_way.update({entity.name: None for entity in self.rules})

    def write(self, batch: WriteBatch) -> None:
        """Add the rows to the commit that decides."""
        for entity, rules in self.rules.items():
            batch.put(ENTITIES, row_of(self._namespace.like(entity, entity.settings, rules)))

    def decided(self) -> None:
        """Carry the changes out: they are durable."""
        self.end()
        for entity, rules in self.rules.items():
            self._namespace.take_rules(entity, rules)

    def end(self) -> None:
        """Allow other changes again."""
        for entity in self.rules:
            self._namespace.under_way.pop(entity.name, None)


class Namespace:
    """All entities, and the store that decides which there are."""

    name = NAME

    def __init__(
        self,
        broker: Host,
        open_store: OpenStore,
        make_writer: Callable[[str], Writer],
        quotas: Quotas,
    ) -> None:
        self._broker = broker
        self.quotas = quotas
        self._open_store = open_store
        self.threads = StoreThreads(NAME, make_writer)
        self.loop: CommitLoop | None = None
        #: why its disk is considered stalled (probing.py); empty if it responds
        self.stalled = ""
        self.entities: dict[str, Entity] = {}
        #: names whose creation, change or deletion is on its way → the settings it is to have
        self.under_way: dict[str, AnySettings | None] = {}
        self._incarnation = 0
        #: entities were read before
        self._opened = False
        self._identity: bytes | None = None
        #: the store as it was opened last
        self._store: Store | None = None
        self.secret = b""
        self._identities: dict[str, bytes] = {}
        self.keys = KeyRows()
        #: how long its commits took
        self.commit_seconds = Durations()
        #: the readers that new entities get
        self.standing: Standing = lambda name: ()

    def read(self) -> NamespaceOpening:
        """Open the store and read its entities, on any thread; `open` takes them up."""
        store = open_known(self._open_store, NAME, self._identity, self._store)
        self._identity, self._store = store.identity, store
        try:
            entities = [kept_of(row) for row in store.scan(ENTITIES)]
            loop = CommitLoop(
                store,
                self.threads.write,
                before=lambda: None,
                after=self._after,
                failed=self.failed,
            )
        except BaseException:
            store.close()
            raise
        return NamespaceOpening(loop, entities)

    def open(self, opening: NamespaceOpening) -> None:
        """Take up a store that was opened, and read what there is."""
        loop = self.loop = opening.loop
        store = loop.store
        loop.seconds = self.commit_seconds
        self._broker.disk.watch(loop)
        self._broker.alarms.opened(f"store {NAME}", store.notice)
        self._broker.probing.proven(NAME)
        self._read_meta(store)
        if not self._opened:
            timekeeping.resume(self._broker, store)
        self.keys.open(store)
        self._take_entities(opening.entities)
        self._broker.works.open(store)
        self._broker.producers.open(store)
        readers.read_back(self._broker, store)
        by_incarnation = {entity.incarnation: entity for entity in self.entities.values()}
        self._broker.claims.load(store, by_incarnation)

    def _take_entities(self, kept: list[KeptEntity]) -> None:
        """Load the stored entities; after a failure, they show the last decisions' outcome."""
        known = {entity.incarnation: entity for entity in self.entities.values()}
        found: dict[int, Entity] = {}
        topics = ChainMap(found, known)
        for one in kept:
            # In the order of incarnations: a topic comes before its subscriptions.
            entity = one.entity(topics)
            self._incarnation = max(self._incarnation, entity.incarnation)
            if entity.incarnation in known:
                self._changed_meanwhile(known[entity.incarnation], entity)
                entity = known[entity.incarnation]
            elif known or self._opened:
                self._created(entity)
            else:
                self.entities[entity.name] = entity
                self._broker.install(entity)
            found[entity.incarnation] = entity
        for incarnation, entity in known.items():
            if incarnation not in found and entity.name in self.entities:
                self._deleted(entity)
        self._opened = True

    def _changed_meanwhile(self, entity: Entity, kept: Entity) -> None:
        if entity.settings != kept.settings:
            self._changed(entity, kept.settings)
        if entity.rules != kept.rules:
            self.take_rules(entity, kept.rules)

    def reopen(self) -> None:
        """Open the store again after it failed."""
        if self.threads.leaving:
            self.threads.when_left(self.reopen)
            return
        if self._broker.closed or self.threads.opening:
            return
        reading = Reading(self.read)

        def opened(_: BaseException | None) -> None:
            if self._broker.closed:
                reading.close()
                return
            try:
                self.open(reading.take())
            except (Failed, Refused) as error:
                self._down(error)

        self.threads.open(reading.run, opened)

    def _read_meta(self, store: Store) -> None:
        """Read, or make, the key of all hashes and tokens, and the last incarnation given."""
        secret, incarnation = store.read(META, ("secret",)), store.read(META, ("incarnation",))
        if secret is None:
            batch = WriteBatch()
            batch.put(META, ("secret", os.urandom(32)))
            store.commit(batch)
            secret = store.read(META, ("secret",))
        assert secret is not None
        assert isinstance(secret[1], bytes)
        self.secret = secret[1]
        if incarnation is not None and isinstance(incarnation[1], int):
            self._incarnation = max(self._incarnation, incarnation[1])
        for name, value in store.scan(META):
            if isinstance(name, str) and name.startswith(STORE_ROW) and isinstance(value, bytes):
                self._identities[name.removeprefix(STORE_ROW)] = value

    def store_identity(self, name: str) -> bytes | None:
        """Return what a message store was known by when it was first opened."""
        return self._identities.get(name)

    def know_store(self, name: str, identity: bytes) -> None:
        """Record a message store, so that an empty one in its place is noticed."""
        if name not in self._identities and self.loop is not None:
            batch = WriteBatch()
            batch.put(META, (STORE_ROW + name, identity))
            self.loop.store.commit(batch)
            self._identities[name] = identity

    def stop(self) -> None:
        self.threads.stop()
        if self.loop is not None:
            self.loop.store.close()
            self.loop = None

    @property
    def store(self) -> Store | None:
        """Its own store, while that is open."""
        return None if self.loop is None else self.loop.store

    @property
    def online(self) -> bool:
        """Return whether the namespace's own store is open."""
        return self.loop is not None

    @property
    def deciding(self) -> bool:
        """Return whether a decision is being written to the namespace's own store."""
        loop = self.loop
        waiting = loop is not None and (loop.busy or loop.waiting)
        return bool(self.under_way) or waiting or self.threads.in_transit

    # Deciding

    @needs_disks
    def create(
        self,
        name: str,
        kind: type[QueueSettings | TopicSettings],
        given: dict[str, Any],
        reply: Reply,
    ) -> None:
        """Make a queue or a topic."""
        name = settings.check_name(name)
        if f"/{SUBSCRIPTIONS}/" in name:
            raise InvalidName(f"{name!r} is the name of a subscription: choose another name")
        self._not_deciding(name)
        if name in self.entities:
            raise EntityExists(f"entity {name!r} exists already")
        wanted = settings.make(given, kind)
        check_targets(self._broker, name, wanted)
        check_room(self, wanted)
        names = list(self._broker.stores)
        count = limits.PARTITION_COUNT if wanted.enable_partitioning else 1
        first = self._next_incarnation()
        stores = [names[(first + index) % len(names)] for index in range(count)]
        for store in stores:
            self._broker.stores[store].check_healthy()
        entity = Entity(first, name, wanted, self._broker.clock.wall(), stores)
        self._decide_new(entity, wanted, reply)

    @needs_disks
    def create_subscription(
        self, topic_name: str, name: str, given: dict[str, Any], rules: Sequence[Rule], reply: Reply
    ) -> None:
        """Make a subscription of a topic."""
        topic = self._broker.find(topic_name)
        if topic.kind != TOPIC:
            raise InvalidOperation(
                f"{topic.name} is a {topic.kind}: only topics have subscriptions"
            )
        full_name = subscription_name(topic.name, name)
        self._not_deciding(topic.name, full_name)
        if full_name in self.entities:
            raise EntityExists(f"subscription {full_name!r} exists already")
        if len(topic.subscriptions) >= self.quotas.subscriptions:
            raise QuotaExceeded(
                f"too many subscriptions: a topic has at most {self.quotas.subscriptions}"
            )
        wanted = settings.make(given, SubscriptionSettings)
        check_targets(self._broker, full_name, wanted)
        chosen = check_rules(rules, self.quotas.rules)
        check_sessions(chosen, wanted, topic.partitioned)
        self._all_online(topic)
        entity = Entity(
            self._next_incarnation(),
            full_name,
            wanted,
            self._broker.clock.wall(),
            topic.stores,
            topic,
            chosen,
        )
        self._decide_new(entity, wanted, reply)

    @needs_disks
    def change(self, name: str, change: ChangeEntity, reply: Reply) -> None:
        """Change settings of a living entity by what `change` makes of those it has by then."""
        entity = self._broker.find(name)
        self._not_deciding(*_names(entity))
        wanted = settings.change(entity.settings, change(entity))
        check_targets(self._broker, entity.name, wanted)
        self._all_online(entity)
        row = self._row(self.like(entity, wanted, entity.rules))
        self._decide(entity.name, row, reply, lambda: self._changed(entity, wanted), wanted)

    @needs_disks
    def change_rules(self, name: str, change: ChangeRules, reply: Reply) -> None:
        """Change the rules of a subscription (P11)."""
        entity = self._broker.find(name)
        if entity.topic is None:
            raise InvalidOperation(
                f"{entity.name} is a {entity.kind}: only subscriptions have rules"
            )
        self._not_deciding(*_names(entity))
        rules = self.rules_after(entity, [change])
        self._all_online(entity)
        row = self._row(self.like(entity, entity.settings, rules))
        self._decide(entity.name, row, reply, lambda: self.take_rules(entity, rules))

    def decide_rules(self, changes: dict[Entity, list[ChangeRules]]) -> RuleDecision:
        """Check changes of rules that a transaction makes; return what its commit decides (P11).

        The subscriptions stay as they are until then.
        """
        decision = RuleDecision(self)
        for entity, several in changes.items():
            if self.entities.get(entity.name) is not entity:
                raise EntityNotFound(f"{entity.name} was deleted")
            if any(name in self.under_way for name in _names(entity)):
                # Nothing was changed: the same transaction may be committed again.
                raise Busy(f"another change of {entity.name!r} is in progress: try again")
            decision.rules[entity] = self.rules_after(entity, several)
            self._all_online(entity)
        if self.loop is None or self.stalled:
            raise PartitionOffline(self.stalled or "the namespace's own store is down")
        return decision

    def rules_after(self, entity: Entity, several: Sequence[ChangeRules]) -> list[Rule]:
        """Return the rules of a subscription after these changes, or reject them."""
        rules = entity.rules
        for change in several:
            rules = check_rules(change(rules), self.quotas.rules)
        assert isinstance(entity.settings, SubscriptionSettings)
        known = set(map(id, entity.rules))
        new = [rule for rule in rules if id(rule) not in known]
        check_sessions(new, entity.settings, entity.partitioned)
        return rules

    @needs_disks
    def delete(self, name: str, reply: Reply) -> None:
        """Delete an entity with everything in it."""
        entity = self._broker.find(name)
        doomed = [*entity.subscriptions.values(), entity]
        # A subscription that is just being made must not outlive its topic.
        coming = [
            one for one in self.under_way if one.startswith(f"{entity.name}/{SUBSCRIPTIONS}/")
        ]
        self._not_deciding(*_names(entity), *coming)
        self._all_online(entity)
        batch = WriteBatch()
        for one in doomed:
            batch.delete(ENTITIES, (one.incarnation,))
            for reader in one.readers:
                batch.delete(READERS, (one.incarnation, reader))
            self._broker.claims.erase(one, batch)
            self.keys.erase(one.name, batch)
        self._broker.producers.erase(entity, batch)
        self._decide(entity.name, batch, reply, lambda: self._deleted(entity))

    def keep_key(
        self, entity: str, name: str, content: bytes | None, reply: Reply, *, managed: bool
    ) -> None:
        """Keep a key of an entity ("" for the namespace), or delete it; `managed`: by operators."""
        if entity:
            entity = self._broker.find(entity).name
            self._not_deciding(entity)
        batch = self.keys.written((entity, name), content, managed)
        self._decide(entity, batch, reply, lambda: self.keys.take((entity, name), content, managed))

    def like(self, entity: Entity, wanted: AnySettings, rules: list[Rule]) -> Entity:
        """Return what an entity will be, for its row."""
        return Entity(
            entity.incarnation,
            entity.name,
            wanted,
            entity.created,
            entity.stores,
            entity.topic,
            rules,
        )

    def _next_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation

    def _row(self, entity: Entity) -> WriteBatch:
        batch = WriteBatch()
        batch.put(ENTITIES, row_of(entity))
        batch.put(META, ("incarnation", self._incarnation))
        return batch

    def _decide_new(self, entity: Entity, wanted: AnySettings, reply: Reply) -> None:
        batch = self._row(entity)
        add_standing(self._broker, entity, batch)
        self._decide(entity.name, batch, reply, lambda: self._created(entity), wanted)

    def commit(self, records: WriteBatch, reply: Reply, value: Any = None) -> None:
        """Commit records of the namespace's own store; reply when they are durable."""
        if self.loop is None:
            raise PartitionOffline("the namespace's store is down")
        self.loop.write(records)
        self.loop.answer_after(reply, value)
        self.loop.start()

    def _decide(
        self,
        name: str,
        batch: WriteBatch,
        reply: Reply,
        then: Callable[[], None],
        wanted: AnySettings | None = None,
    ) -> None:
        """Commit a decision; when it is durable, carry it out and reply."""

        def decided(kept: KeptReply) -> None:
            self.under_way.pop(name, None)
            if kept.error is not None:
                fail(reply, kept.error)
                return
            try:
                then()
            except OnibusError as error:
                fail(reply, error)
            else:
                answer(reply, None)

        if self.loop is None or self.stalled:
            raise PartitionOffline(self.stalled or "the namespace's store is down")
        self.under_way[name] = wanted
        self.commit(batch, KeptReply(decided))

    def _created(self, entity: Entity) -> None:
        self.entities[entity.name] = entity
        self._broker.install(entity)
        entity.last_used = self._broker.clock.now()
        if entity.topic is None:
            for partition in entity.partitions:
                self._partition_new(partition)
        else:
            for partition in entity.partitions:
                # A partition that fails here has the subscription when it is opened again.
                with contextlib.suppress(PartitionOffline):
                    self._broker.apply(partition, entity.subscribe(), entity.last_used)
        start_standing(self._broker, entity)
        watch_idle(self._broker, entity)

    def _partition_new(self, partition: ShardPartition) -> None:
        if partition.store.begin(partition):
            self._broker.take_up(partition)

    def _changed(self, entity: Entity, wanted: AnySettings) -> None:
        entity.settings = wanted
        for partition in entity.partitions:
            partition.store.shape += 1
        command: Command[None]
        if isinstance(wanted, SubscriptionSettings):
            command = ChangeSubscription(entity.number, wanted)
        else:
            command = ChangeSettings(wanted)
        for partition in entity.partitions:
            # A partition that fails here takes the new settings when it is opened again.
            with contextlib.suppress(PartitionOffline):
                self._broker.apply(partition, command)
        entity.last_used = self._broker.clock.now()
        watch_idle(self._broker, entity)
        self._broker.settings_changed(entity)
        if entity.kind != TOPIC and not wanted.receives:
            entity.send_away(EntityDisabled(f"{entity.name} is {wanted.status}"))

    def take_rules(self, entity: Entity, rules: list[Rule]) -> None:
        """Use the rules that were decided, in every partition."""
        entity.set_rules(rules)
        entity.last_used = self._broker.clock.now()
        command, now = SetRules(entity.number, rules), self._broker.clock.now()
        for partition in entity.partitions:
            with contextlib.suppress(PartitionOffline):
                self._broker.apply(partition, command, now)

    def _deleted(self, entity: Entity) -> None:
        for one in [*entity.subscriptions.values(), entity]:
            del self.entities[one.name]
            for waiters in (one, one.log_waiters):
                waiters.send_away(EntityNotFound(f"{one.name} was deleted"))
            self.keys.forget(one.name)
        if entity.topic is None:
            self._broker.works.forget(entity)
            self._broker.producers.forget(entity)
        for partition in entity.partitions:
            if partition.is_online:
                erase_rows(self._broker.call_soon, partition, entity.number)
        for one in [*entity.subscriptions.values(), entity]:
            self._broker.forget(one)

    def _after(self, loop: CommitLoop, _partitions: Iterable[Partition]) -> None:
        if self.loop is not loop:
            return
        self._broker.committed(self, loop)
        if loop.waiting:
            loop.start()

    def failed(self, loop: CommitLoop, error: BaseException) -> None:
        """Take the failed store offline: no decision is possible until it is open again."""
        if self.loop is loop:
            self._down(error)

    def _down(self, error: BaseException) -> None:
        self._broker.alarms.raise_one(f"store {NAME}", error)
        loop, self.loop = self.loop, None
        if loop is not None:
            self.threads.let_go(loop.store)
        if not isinstance(error, Damaged):
            self._broker.timers.set(("reopen", NAME), self._broker.clock.now() + REOPEN_MS)

    # Checking

    def _not_deciding(self, *names: str) -> None:
        for name in names:
            if name in self.under_way:
                raise EntityExists(f"{name!r} is being created, changed or deleted: try again")

    def _all_online(self, entity: Entity) -> None:
        for partition in entity.partitions:
            partition.check_online()
            partition.store.check_healthy()


def _names(entity: Entity) -> list[str]:
    """Return the names to lock while an entity is changed: its own, and that of its topic."""
    return [entity.name] if entity.topic is None else [entity.name, entity.topic.name]
