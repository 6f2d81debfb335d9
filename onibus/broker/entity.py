"""Entities and where their partitions sit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from onibus.broker.named_reader import MESSAGES, NamedReader
from onibus.broker.replies import fail
from onibus.core.errors import EntityNotFound, InvalidOperation, OnibusError, PartitionOffline
from onibus.core.pages import Pages
from onibus.core.partition import Partition
from onibus.core.rules.rule import CompiledRule, Rule, compile_rule
from onibus.core.settings import (
    AnySettings,
    LogSettings,
    OutletSettings,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from onibus.core.tally import Tally

if TYPE_CHECKING:
    from onibus.broker.message_store import MessageStore
    from onibus.broker.receiving import Waiter
    from onibus.broker.turns import Turn
    from onibus.core.subscription import Subscription

QUEUE = "queue"
TOPIC = "topic"
SUBSCRIPTION = "subscription"
#: What an entity is, by the kind of its settings.
KINDS: dict[type[Any], str] = {
    QueueSettings: QUEUE,
    TopicSettings: TOPIC,
    SubscriptionSettings: SUBSCRIPTION,
}

#: Partition ids are incarnation * this + index.
PARTITIONS_MAX = 1 << 16


class Seat:
    """Where one partition of an entity sits: in which store, and whether it can be used."""

    __slots__ = (
        "deleted",
        "entity",
        "id",
        "index",
        "offline",
        "partition",
        "pending_bytes",
        "store",
    )

    def __init__(self, entity: Entity, index: int, store: MessageStore) -> None:
        self.entity = entity
        self.index = index
        self.id = entity.incarnation * PARTITIONS_MAX + index
        self.store = store
        #: None while the partition is offline
        self.partition: Partition | None = None
        self.offline = "its store is not open yet"
        #: its entity is gone; whoever still has the seat is told so
        self.deleted = False
        #: admitted, not stored yet: counts towards the quota
        self.pending_bytes = 0

    def new_partition(self, pages: Pages, secret: bytes) -> Partition:
        """Return the partition with its subscriptions, empty as yet."""
        entity, store = self.entity, self.store
        given = (entity.log_settings, pages, secret, store.boot)
        partition = Partition(self.id, self.index, *given, offsets=store.offsets)
        partition.subscription.tally = entity.tally
        partition.returns = store.returns
        for outlet in entity.subscriptions.values():
            outlet.subscribe(partition)
        for one in (entity, *entity.subscriptions.values()):
            for reader in one.readers.values():
                one.keep_for_reader(partition, self.index, reader)
        return partition

    def online(self) -> Partition:
        """Return the partition, or say why it cannot be used."""
        if self.deleted:
            raise EntityNotFound(f"{self.entity.name} was deleted")
        if self.partition is None:
            raise PartitionOffline(
                f"partition {self.index} of {self.entity.name} is offline: {self.offline}"
            )
        return self.partition

    def free_bytes(self) -> int:
        """Return how much more the partition takes."""
        partition = self.partition or self.online()
        return partition.settings.max_size_bytes - partition.log.live_bytes - self.pending_bytes


class Entity:
    """A queue or a topic, with its partitions; or a subscription, in those of its topic."""

    def __init__(
        self,
        incarnation: int,
        name: str,
        settings: AnySettings,
        created: int,
        stores: list[str],
        topic: Entity | None = None,
        rules: list[Rule] | None = None,
    ) -> None:
        self.incarnation = incarnation
        self.name = name
        self.settings = settings
        self.created = created
        self.stores = stores
        self.seats: list[Seat] = [] if topic is None else topic.seats
        #: the topic of a subscription
        self.topic = topic
        #: which subscription of its partitions it receives from: its own, or a queue's only one
        self.number = 0 if topic is None else incarnation
        #: the subscriptions of a topic, by their numbers
        self.subscriptions: dict[int, Entity] = {}
        self.rules: list[Rule] = []
        self.compiled: list[CompiledRule] = []
        self.set_rules(rules or [])
        #: those who read its log, or its outcomes, by name (R2)
        self.readers: dict[str, NamedReader] = {}
        self.next_send = 0
        self.next_receive = 0
        self.waiters: deque[Waiter] = deque()
        #: when there are so many waiters, those who have left are looked for
        self.waiters_swept = 16
        #: sends that take their turn (broker/turns.py); None where all are done at once
        self.lane: deque[Turn] | None = None
        self._rule_steps: tuple[int, int] | None = None
        self.last_used = 0
        #: what has happened here since the bus was opened
        self.tally = Tally()

    @property
    def kind(self) -> str:
        return KINDS[type(self.settings)]

    @property
    def forwards(self) -> bool:
        """Tell whether messages or dead letters go on to another entity by themselves."""
        settings = self.settings
        return settings.forward_to is not None or settings.forward_dead_letters_to is not None

    @property
    def log_settings(self) -> LogSettings:
        """The settings of a queue or a topic."""
        assert not isinstance(self.settings, SubscriptionSettings)
        return self.settings

    @property
    def partitioned(self) -> bool:
        return (self.topic or self).log_settings.enable_partitioning

    def set_rules(self, rules: list[Rule]) -> None:
        """Take the rules of a subscription, compiled once for all its partitions."""
        self.rules = rules
        self.compiled = [compile_rule(rule) for rule in rules]
        if self.topic is not None:
            self.topic.rules_changed()

    def join_topic(self) -> None:
        """A subscription is there."""
        assert self.topic is not None
        self.topic.subscriptions[self.number] = self
        self.topic.rules_changed()

    def leave_topic(self) -> None:
        """A subscription is gone."""
        assert self.topic is not None
        self.topic.subscriptions.pop(self.number, None)
        self.topic.rules_changed()

    def rules_changed(self) -> None:
        """A subscription of this topic has other rules, or is new or gone."""
        self._rule_steps = None

    def rule_steps(self) -> tuple[int, int]:
        """Return the steps of all rules of a topic on one message, and how many can take more."""
        if self._rule_steps is None:
            works = [rule.work for one in self.subscriptions.values() for rule in one.compiled]
            self._rule_steps = sum(one.steps for one in works), sum(one.costly for one in works)
        return self._rule_steps

    def outlets(self) -> Iterable[Entity]:
        """Return those from whom messages of these partitions are received."""
        return self.subscriptions.values() if self.kind == TOPIC else (self,)

    def outlet_settings(self) -> OutletSettings:
        """Return the settings of what messages are received from, or refuse a topic."""
        if isinstance(self.settings, TopicSettings):
            raise InvalidOperation(f"{self.name} is a topic: receive from one of its subscriptions")
        return self.settings

    def subscribe(self, partition: Partition) -> None:
        """Let a subscription have its part of a partition of its topic."""
        assert isinstance(self.settings, SubscriptionSettings)
        part = partition.subscribe(self.number, self.settings, self.compiled)
        part.tally = self.tally

    def part_of(self, partition: Partition) -> Subscription:
        """Return what it has in a partition; who still has a deleted entity is told so."""
        found = partition.subscriptions.get(self.number)
        if found is None:
            raise EntityNotFound(f"{self.name} was deleted")
        return found

    def keep_for_reader(self, partition: Partition, index: int, reader: NamedReader) -> None:
        """Keep in a partition what a reader has not passed."""
        position = reader.positions[index]
        if reader.log == MESSAGES:
            partition.keep_for(reader.name, position)
        elif self.number in partition.subscriptions:
            partition.subscriptions[self.number].outcomes.readers[reader.name] = position
            partition.keep_outcomes()

    def keep_no_more(self, partition: Partition, reader: NamedReader) -> None:
        """Keep in a partition nothing for a reader any more."""
        if reader.log == MESSAGES:
            partition.readers.pop(reader.name, None)
        elif self.number in partition.subscriptions:
            partition.subscriptions[self.number].outcomes.readers.pop(reader.name, None)
            partition.keep_outcomes()

    def send_away(self, error: OnibusError) -> None:
        """Tell those who wait for messages that none will come."""
        for waiter in self.waiters:
            fail(waiter.reply, error)
            waiter.let_go()
        self.waiters.clear()
