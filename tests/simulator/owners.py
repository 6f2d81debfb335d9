"""Seeded commands of owners: create, change and delete entities, rules; look and tidy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onibus.core import settings as core_settings
from onibus.core.errors import (
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    OnibusError,
    PartitionOffline,
    Unchangeable,
)
from onibus.core.inspection import Filter
from onibus.core.records import ENTITIES
from onibus.core.settings import QueueSettings, SubscriptionSettings, TopicSettings
from onibus.directory.entity_rows import kept_of
from onibus.directory.entity_rules import without_rule
from onibus.directory.namespace import NAME
from onibus.gateway import settling
from tests.simulator.client_parts import TOPICS, given_for
from tests.simulator.compare import compare_row
from tests.simulator.counters import set_counter
from tests.simulator.mismatch import same
from tests.simulator.model_parts import EntityModel, Op, SubscriptionModel, meant
from tests.simulator.model_topics import RULES
from tests.simulator.session_clients import SessionClients

HOUR = 3_600_000
FORWARDS = ("forward_to", "forward_dead_letters_to")


class Owners(SessionClients):
    """Draws the commands of owners."""

    def crash(self) -> None:
        """Lose all memory, and start again."""
        raise NotImplementedError

    def _decide(
        self,
        words: str,
        ask: Callable[[Any], None],
        expect: Callable[[], None],
        carried_out: Callable[[], None],
        may_crash: bool = True,
    ) -> None:
        """Create, change or delete: decided by one commit, which a crash may keep or lose (P10)."""
        sim = self.sim
        if sim.model.changes_rules():
            # A transaction has a subscription to itself until it is decided.
            return
        while NAME in sim.busy():
            sim.finish(NAME)
        if sim.model.changes_rules():
            # One that waited had its turn.
            return
        op = sim.begin(words)
        sim.model.ops.append(op)
        try:
            ask(op.reply)
        except OnibusError as error:
            op.reply.set_exception(error)
        try:
            expect()
            if not sim.model.namespace.online:
                raise PartitionOffline(NAME)
        except OnibusError as error:
            op.errors.add(type(error))
        op.resolve(None)
        if NAME in sim.busy():
            if may_crash and self.random.random() < 0.05:
                work, _ = sim.writers[NAME].take()
                if self.random.random() < 0.5:
                    work()
                    carried_out()
                self.crash()
                return
            sim.finish(NAME, carried_out)
        sim.settle_down()

    def _targets_there(self, settings: Any) -> None:
        """Refuse what forwards to an entity that is not there."""
        for name in FORWARDS:
            target = settings.get(name)
            if target is not None and target not in self.sim.model.entities:
                raise EntityNotFound(target)

    def _all_online(self, stores: list[str]) -> None:
        for store in stores:
            if not self.sim.model.stores[store].online:
                raise PartitionOffline(store)

    def create(self, name: str) -> None:
        """Create a queue or a topic, or a subscription of a topic that is there."""
        sim, given = self.sim, given_for(name)
        if "/" in name:
            self._subscribe(name, given)
            return
        kind = TopicSettings if name in TOPICS else QueueSettings

        def expect() -> None:
            self._targets_there(given)
            self._all_online(list(sim.model.stores))

        def created() -> None:
            entity = kept_of(max(sim.tables[NAME][ENTITIES].values()))
            wanted = core_settings.make(given, kind)
            sim.model.entities[name] = EntityModel(entity.incarnation, name, wanted, entity.stores)

        self._decide(
            f"create {name}",
            lambda reply: sim.broker.namespace.create(name, kind, given, reply),
            expect,
            created,
        )

    def _subscribe(self, name: str, given: dict[str, Any]) -> None:
        sim = self.sim
        topic_name, _, own_name = name.partition("/subscriptions/")
        topic = sim.model.entities.get(topic_name)
        if topic is None:
            return
        rules = list(TOPICS[topic_name].subscriptions[own_name][1])

        def expect() -> None:
            self._targets_there(given)
            self._all_online(topic.stores)

        def created() -> None:
            wanted = core_settings.make(given, SubscriptionSettings)
            (uid,) = max(sim.tables[NAME][ENTITIES])
            sim.model.subscribe(SubscriptionModel(int(str(uid)), name, wanted, topic), rules)

        self._decide(
            f"create {name}",
            lambda reply: sim.broker.namespace.create_subscription(
                topic_name, own_name, given, [RULES[rule].rule for rule in rules], reply
            ),
            expect,
            created,
        )

    def change_rules(self) -> None:
        """Add a rule to a subscription, or take one away (P11)."""
        sim, name = self.sim, self.random.choice(self.sources)
        entity = sim.model.entities.get(name)
        if entity is None or entity.topic is None:
            return
        topic, uid = entity.topic, entity.uid
        rules = topic.rules[uid]
        chosen = self.random.choice(list(RULES))
        if chosen in rules:
            wanted = [rule for rule in rules if rule != chosen]
            self._decide(
                f"delete rule {chosen} of {name}",
                lambda reply: sim.broker.namespace.change_rules(
                    name, lambda there: without_rule(there, chosen), reply
                ),
                lambda: self._all_online(topic.stores),
                lambda: topic.rules.update({uid: wanted}),
            )
        elif len(rules) < 4:

            def expect() -> None:
                partitioned = topic.settings.enable_partitioning
                if chosen == "moved" and partitioned and entity.settings.requires_session:
                    raise InvalidOperation("its session would be in two partitions")
                self._all_online(topic.stores)

            self._decide(
                f"create rule {chosen} of {name}",
                lambda reply: sim.broker.namespace.change_rules(
                    name, lambda there: [*there, RULES[chosen].rule], reply
                ),
                expect,
                lambda: topic.rules.update({uid: [*rules, chosen]}),
            )

    def recreate(self) -> None:
        """Delete an entity, and create it again, now or later."""
        sim, name = self.sim, self.entity()
        entity = sim.model.entities.get(name)
        if entity is None:
            if all(store.online for store in sim.model.stores.values()):
                self.create(name)
            return
        if any(op.steps is not None or op.deadline is not None for op in sim.model.ops):
            return
        self._decide(
            f"delete {name}",
            lambda reply: sim.broker.namespace.delete(name, reply),
            lambda: self._all_online(entity.stores),
            lambda: sim.model.delete(name),
        )
        if self.random.random() < 0.7:
            self.recreate()

    def change(self) -> None:
        """Change an entity's settings."""
        sim, name = self.sim, self.entity()
        entity = sim.model.entities.get(name)
        if entity is None:
            return
        given: dict[str, Any] = self.random.choice(
            (
                {"status": "send-disabled"},
                {"status": "receive-disabled"},
                {"status": "disabled"},
                {"status": "active"},
                {"status": "active"},
                {"status": "active"},
                {"max_delivery_count": self.random.randrange(1, 5)},
                {"dead_letter_on_expiration": self.random.random() < 0.5},
                {"default_time_to_live_ms": self.random.choice((None, 5_000, 50_000))},
                {"retry_backoff_ms": self.random.choice((0, 250))},
                {"forward_to": self.random.choice((None, given_for(name).get("forward_to")))},
                {"duplicate_detection_window_ms": self.random.choice((20_000, 45_000, HOUR))},
            )
        )
        window = "duplicate_detection_window_ms" in given
        if not set(given) <= set(entity.settings.__struct_fields__):
            return
        if window and entity.settings.fifo:
            return
        sim.finish_all(flush=True)
        wanted = core_settings.change(entity.settings, given)

        def expect() -> None:
            self._targets_there({name: getattr(wanted, name) for name in FORWARDS})
            self._all_online(entity.stores)

        self._decide(
            f"change {name} {given}",
            lambda reply: sim.broker.namespace.change(name, lambda _: given, reply),
            expect,
            lambda: sim.model.change(entity, wanted),
            may_crash=not window,
        )
        if window:
            sim.finish_all(flush=True)

    def bad_settings(self) -> None:
        """Ask for what cannot be: refused, and nothing changes."""
        sim, name = self.sim, self.entity()
        entity = sim.model.entities.get(name)
        if entity is None or sim.model.changes_rules():
            return
        choices: list[tuple[dict[str, Any], type[OnibusError]]] = [
            # (a topic has no such setting, and a subscription not the other one)
            ({"duplicate_detection_window_ms": 19_999}, InvalidArgument),
            ({"lock_duration_ms": 10**9}, InvalidArgument),
        ]
        if entity.log is entity:
            other = not entity.settings.enable_partitioning
            choices.append(({"enable_partitioning": other}, Unchangeable))
        given, error = self.random.choice(choices)

        def refused(op: Op) -> None:
            raise error

        sim.do(
            f"change {name} {given}",
            lambda reply: sim.broker.namespace.change(name, lambda _: given, reply),
            refused,
        )

    def filter(self) -> Filter:
        random = self.random
        return Filter(
            state=random.choice((None, "active", "deferred", "scheduled", "dead-lettered")),
            session_id=random.choice((None, None, None, "s1")),
            message_id=random.choice((None, None, None, "id1")),
            enqueued_before_ms=random.choice((None, None, self.sim.clock.wall() - 5_000)),
        )

    def purge(self) -> None:
        """Delete what a filter means."""
        sim, name, wanted = self.sim, self.entity(), self.filter()
        forget = self.random.random() < 0.2
        sim.do(
            f"purge {name} {wanted} forget={forget}",
            lambda reply: settling.purge_all(sim.broker, name, wanted, forget, reply),
            lambda op: sim.model.purge(op, name, wanted, forget),
        )

    def set_counter(self) -> None:
        """Bring a counter to a few numbers before it rolls over (S8)."""
        sim, name = self.sim, self.random.choice(self.targets)
        entity = sim.model.entities.get(name)
        if entity is None:
            return
        index, left = self.random.randrange(len(entity.parts)), self.random.randrange(1, 8)
        part = entity.parts[index]
        counter = (1 << part.bits) - left
        # Of ordinals there are no more than for two rounds of the widest counter.
        if not sim.model.online(entity, index) or (part.rolled and part.bits == 63):
            return
        if part.counter >= counter:
            return
        sim.step(f"set counter {name} {index} to {counter}")
        ordinal = sim.broker.find(name).partitions[index].online().log.next_ordinal
        same(f"counter of {name} {index}", ordinal % (1 << part.bits), part.counter)
        set_counter(sim.broker, name, ordinal - part.counter + counter, index)
        sim.model.part(entity, index).set_counter(counter)
        sim.settle_down()

    def start_of_peek(self, entity: EntityModel) -> tuple[int, int]:
        """Return an ordinal of the first partition, and the number from which a peek starts."""
        if not self.sim.sets_counters:
            start = self.random.randrange(20)
            return start, start
        log, partition = entity.log.parts[0], entity.partition(0)
        rows = [row for row in partition.rows.values() if row.ordinal >= log.hole]
        row = self.random.choice([None, *rows])
        if row is None or not row.number:
            # 0 stands for the beginning.
            return 0, 0
        before = partition.by_number(row.number - 1)
        if log.rolled and before is not None:
            return before.ordinal + 1, row.number
        return row.ordinal, row.number

    def peek(self) -> None:
        """Look at messages through a filter, from somewhere on (P7, X5)."""
        sim, name, wanted = self.sim, self.entity(), self.filter()
        entity = sim.model.entities.get(name)
        if entity is None or not sim.model.online(entity, 0):
            return
        dead = wanted.state in (None, "dead-lettered") and self.random.random() < 0.3
        first, start = self.start_of_peek(entity)
        limit = self.limit()
        real = settling.peek_all(sim.broker, name, start, limit, wanted, dead)
        expected: list[Any] = []
        for index, partition in enumerate(entity.partitions):
            sim.model.advance(entity, index)
            if expected or not sim.model.online(entity, index):
                continue
            expected = [
                row
                for row in partition.rows.values()
                if (index or row.ordinal >= first)
                and row.ordinal < partition.shown
                and meant(row, wanted, dead)
            ][:limit]
        words = f"peek {name} {start} {wanted} dead={dead}"
        same(
            words,
            [one.sequence_number for one in real],
            [row.number for row in expected],
        )
        for one, row in zip(real, expected, strict=True):
            compare_row(words, one, row)
