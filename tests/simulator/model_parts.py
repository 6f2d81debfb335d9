"""The parts of the model of a bus: commands under way, entities, and what their stores have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from onibus.core.inspection import Filter
from onibus.core.settings import AnySettings, TopicSettings
from onibus.shard.replies import KeptReply
from tests.simulator.model import PartitionModel
from tests.simulator.model_rows import Prepared, Row
from tests.simulator.model_topics import TopicPartition

#: A message that is given out: entity, partition, row, the lock's end as shown (None: no lock).
Given = tuple["EntityModel", int, Row, int | None]


class Op:
    """A command under way: how it may be answered, and not before which commits."""

    def __init__(self, words: str, told: Callable[[Op], None] | None = None) -> None:
        self.words = words
        #: gets the command when it is answered
        self._told = told
        self.reply = KeptReply(self._answered)
        self.answered = False
        self.value: Any = None
        #: 1 while its answer is not known yet
        self.left = 1
        self.errors: set[type[BaseException]] = set()
        #: errors that may be answered, and need not
        self.tolerated: set[type[BaseException]] = set()
        self.needs: dict[str, int] = {}
        self.finished: dict[str, int] = {}
        self.fetch: Callable[[], bool] | None = None
        self.deadline: int | None = None
        #: when the broker last tried to get messages for it
        self.tried_at = -1
        #: a command of several commits: yields the store whose next commit it waits for
        self.steps: Iterator[str] | None = None
        self.awaits = ("", 0)
        self.turn = 0
        self.stores: dict[str, Any] = {}
        #: the producer that publishes with it (R6)
        self.publishes: tuple[int, str] | None = None
        #: how many commits of the namespace's store had been asked for when it began
        self.begun_at = 0
        #: checks its value, where the bus alone knows what it must be; the claim that it is about
        self.audit: Callable[[Any], None] | None = None
        self.claim: tuple[int, str, int] | None = None
        #: gives its value, where that is known at the end only
        self.outcome: Callable[[], Any] | None = None
        #: that a receiver waits for
        self.entity: EntityModel | None = None
        #: the session that a client receives from
        self.session: Any = None

    def _answered(self, _: KeptReply) -> None:
        self.answered = True
        self.finished = {name: store.finished for name, store in self.stores.items()}
        if self._told is not None:
            self._told(self)

    def fail(self, kind: type[BaseException]) -> None:
        """It cannot be done; what is known first is what is told."""
        if not self.errors:
            self.errors.add(kind)

    def resolve(self, value: Any) -> None:
        self.value = value
        self.left -= 1


class Request:
    """Messages for one partition that wait for the next commit to start."""

    def __init__(
        self,
        op: Op,
        entity: EntityModel,
        index: int,
        places: list[int],
        batch: list[Prepared],
        keyless: bool,
    ) -> None:
        self.op, self.entity, self.index = op, entity, index
        self.places, self.batch, self.keyless = places, batch, keyless


class StoreModel:
    """What is durable in a store, and what is on its way."""

    def __init__(self) -> None:
        self.online = True
        self.started = self.finished = 0
        self.committed: dict[tuple[int, int], PartitionModel] = {}
        self.flying: dict[tuple[int, int], PartitionModel] | None = None
        self.below: dict[tuple[int, int], int] = {}
        self.dirty: set[tuple[int, int]] = set()
        self.inbox: list[Request] = []


class EntityModel:
    """A queue or a topic."""

    topic: EntityModel | None = None

    def __init__(self, uid: int, name: str, settings: AnySettings, stores: list[str]) -> None:
        self.uid, self.name, self.stores = uid, name, stores
        self.settings: Any = settings
        self.next_send = self.next_receive = 0
        #: the rules of a topic's subscriptions, by their uids
        self.rules: dict[int, list[str]] = {}
        self.parts = [self.empty(index) for index in range(len(stores))]

    @property
    def log(self) -> EntityModel:
        """Whose log it is: of a subscription, its topic's."""
        return self

    @property
    def partitions(self) -> list[PartitionModel]:
        """What it has of each partition."""
        return self.parts

    def partition(self, index: int) -> PartitionModel:
        """Return what it has of one partition."""
        return self.parts[index]

    def empty(self, index: int) -> PartitionModel:
        base, bits = (index << 48, 48) if self.settings.enable_partitioning else (0, 63)
        if isinstance(self.settings, TopicSettings):
            return TopicPartition(self.settings, base, bits, self.rules)
        return PartitionModel(self.settings, base, bits)

    def index_of(self, number: int) -> int:
        return number >> 48 if self.log.settings.enable_partitioning else 0


class SubscriptionModel(EntityModel):
    """A subscription of a topic; its partitions are in those of the topic."""

    topic: EntityModel

    def __init__(self, uid: int, name: str, settings: AnySettings, topic: EntityModel) -> None:
        self.uid, self.name, self.stores, self.topic = uid, name, topic.stores, topic
        self.settings = settings
        self.next_receive = 0
        topic.rules[uid] = []

    @property
    def log(self) -> EntityModel:
        return self.topic

    @property
    def partitions(self) -> list[PartitionModel]:
        return [self.partition(index) for index in range(len(self.topic.parts))]

    def partition(self, index: int) -> PartitionModel:
        part = self.topic.parts[index]
        assert isinstance(part, TopicPartition)
        return part.outlets[self.uid]


def meant(row: Row, wanted: Filter, dead: bool = False) -> bool:
    """Tell whether a filter means a message (X2, X5)."""
    if wanted.state is None:
        if row.dead != dead:
            return False
    elif wanted.state == "dead-lettered":
        if not row.dead:
            return False
    elif row.dead or ("active" if row.state == "delayed" else row.state) != wanted.state:
        return False
    return (
        wanted.session_id in (None, row.message.session_id)
        and wanted.message_id in (None, row.message.message_id)
        and (wanted.enqueued_before_ms is None or row.stamp < wanted.enqueued_before_ms)
    )
