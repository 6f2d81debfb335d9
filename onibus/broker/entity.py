"""Entities and where their partitions sit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from onibus.broker.named_reader import MESSAGES, NamedReader
from onibus.core.clock_offsets import ClockOffsets
from onibus.core.commands import KeepFor, KeepNoLonger
from onibus.core.errors import EntityNotFound, InvalidOperation, OnibusError
from onibus.core.pages import Pages
from onibus.core.partition import Partition
from onibus.core.records import WriteBatch
from onibus.core.rules.rule import Rule
from onibus.core.settings import (
    AnySettings,
    LogSettings,
    OutletSettings,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from onibus.core.tally import Tally
from onibus.shard.replies import fail
from onibus.shard.seat import Seat

if TYPE_CHECKING:
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
        """Take the rules of a subscription."""
        self.rules = rules
        for rule in rules:
            # Compiled now: it takes long, and sends wait for it otherwise.
            _ = rule.compiled
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
            works = [
                rule.compiled.work for one in self.subscriptions.values() for rule in one.rules
            ]
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
        compiled = [rule.compiled for rule in self.rules]
        part = partition.subscribe(self.number, self.settings, compiled)
        part.tally = self.tally

    def part_of(self, partition: Partition) -> Subscription:
        """Return what it has in a partition; who still has a deleted entity is told so."""
        found = partition.subscriptions.get(self.number)
        if found is None:
            raise EntityNotFound(f"{self.name} was deleted")
        return found

    def keep_for_reader(self, index: int, reader: NamedReader) -> KeepFor:
        """Return the command that keeps what a reader has not passed in a partition."""
        return KeepFor(reader.name, reader.positions[index], self._outcomes_of(reader))

    def keep_no_longer(self, reader: NamedReader) -> KeepNoLonger:
        """Return the command that keeps nothing for a reader any longer."""
        return KeepNoLonger(reader.name, self._outcomes_of(reader))

    def _outcomes_of(self, reader: NamedReader) -> int | None:
        return None if reader.log == MESSAGES else self.number

    def send_away(self, error: OnibusError) -> None:
        """Tell those who wait for messages that none will come."""
        for waiter in self.waiters:
            fail(waiter.reply, error)
            waiter.let_go()
        self.waiters.clear()


def new_partition(seat: Seat, pages: Pages, secret: bytes, offsets: ClockOffsets) -> Partition:
    """Return the partition of a seat with its settings and subscriptions, still empty."""
    entity: Entity = seat.entity
    given = (entity.log_settings, pages, secret, seat.store.boot)
    partition = Partition(seat.id, seat.index, *given, offsets=offsets)
    partition.subscription.tally = entity.tally
    partition.returns = seat.store.returns
    for outlet in entity.subscriptions.values():
        outlet.subscribe(partition)
    for one in (entity, *entity.subscriptions.values()):
        for reader in one.readers.values():
            partition.apply(one.keep_for_reader(seat.index, reader), 0, 0, WriteBatch())
    return partition
