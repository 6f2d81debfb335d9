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
        #: the steps of its rules on one message, and how many of the rules can take more
        self.own_rule_steps = (0, 0)
        self.set_rules(rules or [])
        #: the named readers of its log or its outcomes (R2)
        self.readers: dict[str, NamedReader] = {}
        self.next_send = 0
        self.next_receive = 0
        #: receivers that wait, in the order in which they came
        self.waiters: dict[Waiter, None] = {}
        #: in a queue or topic: outlets with waiters, or that forward
        self.listening: dict[int, Entity] = {}
        #: at this number of waiters, cancelled ones are removed
        self.waiters_swept = 16
        #: sends that take their turn (broker/turns.py); None where all are done at once
        self.lane: deque[Turn] | None = None
        self._rule_steps: tuple[int, int] | None = None
        self.last_used = 0
        #: the counters since the bus was opened
        self.tally = Tally()

    @property
    def kind(self) -> str:
        return KINDS[type(self.settings)]

    @property
    def forwards(self) -> bool:
        """Return whether the broker forwards its messages or dead-lettered messages."""
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
        # Compiled now: it takes long, and sends wait for it otherwise.
        works = [rule.compiled.work for rule in rules]
        self.own_rule_steps = sum(one.steps for one in works), sum(one.costly for one in works)
        if self.topic is not None:
            self.topic.rules_changed()

    def add_waiter(self, waiter: Waiter) -> None:
        """Let a receiver wait behind the others."""
        self.waiters[waiter] = None
        self.listen()

    def listen(self) -> None:
        """Watch for new messages while receivers wait for them or they are forwarded."""
        (self.topic or self).listening[self.number] = self

    def join_topic(self) -> None:
        """Add a subscription to its topic."""
        assert self.topic is not None
        self.topic.subscriptions[self.number] = self
        self.topic.rules_changed()

    def leave_topic(self) -> None:
        """Remove a subscription from its topic."""
        assert self.topic is not None
        self.topic.subscriptions.pop(self.number, None)
        self.topic.listening.pop(self.number, None)
        self.topic.rules_changed()

    def rules_changed(self) -> None:
        """Note that a subscription of this topic was added, changed or deleted."""
        self._rule_steps = None
        for seat in self.seats:
            seat.store.shape += 1

    def rule_steps(self) -> tuple[int, int]:
        """Return the steps of all rules of a topic on one message, and how many can take more."""
        if self._rule_steps is None:
            each = [one.own_rule_steps for one in self.subscriptions.values()]
            self._rule_steps = sum(steps for steps, _ in each), sum(costly for _, costly in each)
        return self._rule_steps

    def outlets(self) -> Iterable[Entity]:
        """Return those from whom messages of these partitions are received."""
        return self.subscriptions.values() if self.kind == TOPIC else (self,)

    def outlet_settings(self) -> OutletSettings:
        """Return the settings of a queue or subscription; reject a topic."""
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
        """Return its subscription in a partition; raise EntityNotFound if it was deleted."""
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
        """Fail all waiting receivers."""
        for waiter in self.waiters:
            fail(waiter.reply, error)
            waiter.let_go()
        self.waiters.clear()


def new_partition(
    seat: Seat, pages: Pages, secret: bytes, boot: int, offsets: ClockOffsets
) -> Partition:
    """Return an empty partition with the settings and subscriptions of its entity.

    The thread that opens a store calls it while other threads may change entities.
    """
    entity: Entity = seat.entity
    given = (entity.log_settings, pages, secret, boot)
    partition = Partition(seat.id, seat.index, *given, offsets=offsets)
    partition.subscription.tally = entity.tally
    partition.returns = seat.store.returns
    for outlet in list(entity.subscriptions.values()):
        outlet.subscribe(partition)
    for one, reader in _readers(entity):
        partition.apply(one.keep_for_reader(seat.index, reader), 0, 0, WriteBatch())
    return partition


def positions_in(seat: Seat) -> list[tuple[int, str, int]]:
    """Return how far each named reader is in a partition."""
    return [
        (one.incarnation, reader.name, reader.positions[seat.index])
        for one, reader in _readers(seat.entity)
    ]


def _readers(entity: Entity) -> list[tuple[Entity, NamedReader]]:
    """Return the named readers of an entity's log, and of its outlets' outcomes."""
    entities = (entity, *list(entity.subscriptions.values()))
    return [(one, reader) for one in entities for reader in list(one.readers.values())]
