"""Entities and where their partitions sit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from onibus.core.clock_offsets import ClockOffsets
from onibus.core.commands import KeepFor, KeepNoLonger, Subscribe
from onibus.core.errors import InvalidOperation, OnibusError
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
from onibus.directory.named_reader import MESSAGES, NamedReader
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import TOLD, Reply, fail

if TYPE_CHECKING:
    from onibus.directory.turns import Turn

#: Tries once to get messages for a receiver; on success completes the reply and returns True.
Fetch = Callable[["Waiter"], bool]
#: Receivers of one kind wait for the same: if one finds no message, none does.
Kind = tuple[Any, ...]

QUEUE = "queue"
TOPIC = "topic"
SUBSCRIPTION = "subscription"
#: What an entity is, by the kind of its settings.
KINDS: dict[type[Any], str] = {
    QueueSettings: QUEUE,
    TopicSettings: TOPIC,
    SubscriptionSettings: SUBSCRIPTION,
}


class Waiter:
    """A receiver that waits. `nothing` is its result when its wait time is over."""

    __slots__ = ("among", "attempt_id", "entity", "fetch", "kind", "nothing", "reply")

    def __init__(
        self,
        entity: Entity,
        fetch: Fetch,
        nothing: Any,
        reply: Reply,
        kind: Kind | None = None,
        attempt_id: str | None = None,
        among: Waiters | None = None,
    ) -> None:
        self.entity = entity
        #: those with whom it waits
        self.among: Waiters = entity if among is None else among
        self.fetch = fetch
        self.nothing = nothing
        self.reply = reply
        #: None if no other receiver waits for the same
        self.kind = kind
        #: a receive under the same id, in the meantime, is repeated for it (F9)
        self.attempt_id = attempt_id

    def let_go(self) -> None:
        """Drop the reply: lists and timers keep a finished waiter until they are swept."""
        self.reply, self.fetch = TOLD, _nothing_more


def _nothing_more(waiter: Waiter) -> bool:
    """Fetch nothing for a waiter that has its reply."""
    return False


class Waiters:
    """Receivers that wait, in the order in which they came."""

    def __init__(self) -> None:
        self.waiters: dict[Waiter, None] = {}
        #: at this number of waiters, cancelled ones are removed
        self.waiters_swept = 16

    def send_away(self, error: OnibusError) -> None:
        """Fail all of them."""
        for waiter in self.waiters:
            fail(waiter.reply, error)
            waiter.let_go()
        self.waiters.clear()


class Entity(Waiters):
    """A queue or a topic, with its partitions; or a subscription, in those of its topic.

    Its waiters are receivers of messages.
    """

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
        super().__init__()
        #: programs that wait for rows of its log or its outcomes
        self.log_waiters = Waiters()
        self.incarnation = incarnation
        self.name = name
        self.settings = settings
        self.created = created
        self.stores = stores
        self.partitions: list[ShardPartition] = [] if topic is None else topic.partitions
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
        #: in a queue or topic: those with waiters, and outlets that forward
        self.listening: dict[int, Entity] = {}
        #: sends that take their turn (directory/turns.py); None where all are done at once
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

    def listen(self) -> None:
        """Watch for changes while clients wait for them, or messages are forwarded."""
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
        for partition in self.partitions:
            partition.store.shape += 1

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

    def subscribe(self) -> Subscribe:
        """Return the command that adds a subscription to a partition of its topic."""
        assert isinstance(self.settings, SubscriptionSettings)
        return Subscribe(self.number, self.settings, self.rules)

    def tally_of(self, number: int) -> Tally:
        """Return where a queue, a topic or its subscription with that number counts."""
        return self.subscriptions[number].tally if number else self.tally

    def online_partitions(self) -> Iterator[ShardPartition]:
        """Yield the partitions that can be used."""
        return (partition for partition in self.partitions if partition.is_online)

    def check_online(self) -> None:
        """Reject if a partition cannot be used."""
        for partition in self.partitions:
            partition.check_online()

    def keep_for_reader(self, index: int, reader: NamedReader) -> KeepFor:
        """Return the command that keeps what a reader has not passed in a partition."""
        return KeepFor(reader.name, reader.positions[index], self._outcomes_of(reader))

    def keep_no_longer(self, reader: NamedReader) -> KeepNoLonger:
        """Return the command that keeps nothing for a reader any longer."""
        return KeepNoLonger(reader.name, self._outcomes_of(reader))

    def _outcomes_of(self, reader: NamedReader) -> int | None:
        return None if reader.log == MESSAGES else self.number


def new_partition(
    partition: ShardPartition, pages: Pages, secret: bytes, boot: int, offsets: ClockOffsets
) -> Partition:
    """Return an empty partition with the settings and subscriptions of its entity.

    The thread that opens a store calls it while other threads may change entities.
    """
    entity: Entity = partition.entity
    given = (entity.log_settings, pages, secret, boot)
    core = Partition(partition.id, partition.index, *given, offsets=offsets)
    core.tallies = entity.tally_of
    core.subscription.tally = entity.tally
    core.returns = partition.store.returns
    for outlet in list(entity.subscriptions.values()):
        core.apply(outlet.subscribe(), 0, 0, WriteBatch())
    for one, reader in _readers(entity):
        core.apply(one.keep_for_reader(partition.index, reader), 0, 0, WriteBatch())
    return core


def positions_in(partition: ShardPartition) -> list[tuple[int, str, int]]:
    """Return how far each named reader is in a partition."""
    return [
        (one.incarnation, reader.name, reader.positions[partition.index])
        for one, reader in _readers(partition.entity)
    ]


def _readers(entity: Entity) -> list[tuple[Entity, NamedReader]]:
    """Return the named readers of an entity's log, and of its outlets' outcomes."""
    entities = (entity, *list(entity.subscriptions.values()))
    return [(one, reader) for one in entities for reader in list(one.readers.values())]
