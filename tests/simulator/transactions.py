"""Seeded transactions: sends and settlements that happen together, over several stores (B5)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from onibus.core.commands import Settlement, Verb
from onibus.core.errors import (
    Busy,
    EntityExists,
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    LockLost,
    OnibusError,
    PartitionOffline,
)
from onibus.core.message import Message
from onibus.core.rules.rule import Rule
from onibus.core.settings import TopicSettings
from onibus.directory.entity_rules import without_rule
from onibus.gateway.transacting import OpenTransaction
from tests.simulator.client_parts import Held, Session, brief, model_of, real_of
from tests.simulator.mismatch import check
from tests.simulator.model_bus import BusModel
from tests.simulator.model_parts import EntityModel, Op
from tests.simulator.model_rows import Prepared, Row, prepare
from tests.simulator.model_topics import RULES
from tests.simulator.model_works import Change, Place, WorkPart
from tests.simulator.owners import Owners

LIMIT = 6
OPEN_MS = 120_000


class TransactionModel:
    """What a transaction has gathered."""

    def __init__(self, model: BusModel) -> None:
        self.model = model
        self.deadline = model.time.now() + OPEN_MS
        self.sends: list[tuple[EntityModel, Prepared]] = []
        self.settlements: list[tuple[EntityModel, Held, Change, Session | None]] = []
        self.keys: dict[str, str] = {}
        #: rules that are added or removed, in order
        self.rules: dict[EntityModel, list[str]] = {}
        self.ended = False

    def open(self) -> None:
        if self.ended or self.model.time.now() >= self.deadline:
            self.ended = True
            raise InvalidOperation("it has ended")

    def send(self, name: str, messages: list[Message]) -> None:
        self.open()
        entity = self.model.sendable(name)
        batch = [prepare(message, entity.settings) for message in messages]
        for one in batch if entity.settings.enable_partitioning else ():
            if one.key is None or self.keys.setdefault(name, one.key) != one.key:
                self.ended = True
                raise InvalidOperation("two keys, or none (P8)")
        self.sends += [(entity, one) for one in batch]

    def settle(self, held: Held, change: Change, session: Session | None) -> None:
        self.open()
        entity = self.model.find(held.name)
        self.reach(Op(""), entity, held)
        row = self.find(entity, held, session)
        if change.verb == "dead-letter" and row.dead:
            raise InvalidOperation("it is a dead letter")
        if any(other.token == held.token for _, other, _, _ in self.settlements):
            raise InvalidArgument("settled twice")
        self.settlements.append((entity, held, change, session))

    def change_rule(self, name: str, rule: str, remove: bool) -> None:
        self.open()
        entity = self.model.find(name)
        if entity.topic is None:
            raise InvalidOperation(name)
        if entity.topic.settings.enable_partitioning:
            self.ended = True
            raise InvalidOperation(name)
        changes = [*self.rules.get(entity, ()), f"-{rule}" if remove else rule]
        self.rules_after(entity, changes)
        self.rules[entity] = changes

    def rules_after(self, entity: EntityModel, changes: list[str]) -> list[str]:
        """Return the rules that a subscription has then."""
        assert entity.topic is not None
        rules = list(entity.topic.rules[entity.uid])
        for change in changes:
            name = change.removeprefix("-")
            if change.startswith("-") and name not in rules:
                raise EntityNotFound(name)
            if not change.startswith("-") and name in rules:
                raise EntityExists(name)
            rules = [one for one in rules if one != name] if name in rules else [*rules, name]
        return rules

    def reach(self, op: Op, entity: EntityModel, held: Held) -> None:
        """Refuse what is not there, or offline."""
        index = entity.index_of(held.proof[1])
        if isinstance(entity.settings, TopicSettings):
            raise InvalidOperation(entity.name)
        if index >= len(entity.log.parts):
            raise LockLost(entity.name)
        self.model.still_there(op, entity)
        self.model.part(entity, index)

    def find(self, entity: EntityModel, held: Held, session: Session | None) -> Row:
        """Return the message that a token holds, for a receiver that holds its session."""
        uid, number, lock = held.proof
        partition = entity.partition(entity.index_of(number))
        if uid != entity.uid:
            raise LockLost(entity.name)
        if session is not None:
            partition.held_session(session.id, session.lock)
        return partition.held(number, lock)

    def commit(self, op: Op) -> None:
        self.open()
        self.model.after_turn(op, lambda: self._commit(op))

    def _commit(self, op: Op) -> None:
        entities = dict.fromkeys(entity for entity, _ in self.sends)
        self.model.take_in((one, index) for one in entities for index in range(len(one.parts)))
        parts: dict[Place, WorkPart] = {}
        for entity, held, _, _ in self.settlements:
            self.reach(op, entity, held)
        for entity, held, change, session in self.settlements:
            row = self.find(entity, held, session)
            index = entity.index_of(held.proof[1])
            part = parts.setdefault((entity.log, index), WorkPart())
            known = Change(entity.uid, row.ordinal, change.verb, change.delay, change.properties)
            part.changes = [*part.changes, known]
        for place, (entity, prepared) in enumerate(self.sends):
            self.model.still_there(op, entity)
            self.model.sendable(entity.name)
            index = self.model.index_of(entity, prepared)
            self.model.part(entity, index)
            part = parts.setdefault((entity, index), WorkPart())
            part.batch, part.places = [*part.batch, prepared], [*part.places, place]
        rules = {}
        for entity, changes in self.rules.items():
            self.model.still_there(op, entity)
            if self.model.is_changing(entity):
                raise Busy(entity.name)
            rules[entity] = self.rules_after(entity, changes)
            self.model.part(entity, 0)
        if rules and not self.model.namespace.online:
            raise PartitionOffline("namespace")
        op.value = [None] * len(self.sends)
        if parts or rules:
            # What is refused here may be tried again.
            self.model.do_work(op, parts, rules)
        else:
            op.left = 0
        self.ended = True


class Transactions(Owners):
    """Draws transactions: most are committed at once, some later, some never."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.unfinished: list[tuple[OpenTransaction, TransactionModel]] = []

    def transact(self) -> None:
        """Open a transaction, gather, and end it or leave it open."""
        sim = self.sim
        pair = (OpenTransaction(sim.broker, LIMIT), TransactionModel(sim.model))
        sim.step("transaction")
        for _ in range(self.random.randrange(1, 5)):
            self._gather(*pair)
        if self.random.random() < 0.2 and len(self.unfinished) < 3:
            self.unfinished.append(pair)
        else:
            self._end(*pair)

    def end_transaction(self) -> None:
        """Go on with a transaction that was left open."""
        if self.unfinished:
            pair = self.unfinished.pop(0)
            if self.random.random() < 0.5:
                self._gather(*pair)
            self._end(*pair)

    def _both(self, words: str, real: Callable[[], None], model: Callable[[], None]) -> None:
        """Do something to both at once; they refuse alike."""
        self.sim.step(words)
        errors: list[OnibusError | None] = []
        for act in (real, model):
            try:
                act()
                errors.append(None)
            except OnibusError as error:
                errors.append(error)
        alike = isinstance(errors[0], type(errors[1])) if errors[1] else errors[0] is None
        check(alike, f"{words}: bus {errors[0]!r}, model {errors[1]!r}")

    def _gather(self, real: OpenTransaction, model: TransactionModel) -> None:
        rules = sum(map(len, model.rules.values()))
        if len(model.sends) + len(model.settlements) + rules >= LIMIT - 2:
            return
        held = self.token()
        if self.random.random() < 0.15:
            self._gather_rule(real, model)
            return
        if held is None or self.random.random() < 0.5:
            name = self.target()
            messages = [self.message(name) for _ in range(self.random.randrange(1, 3))]
            for message in messages if self.random.random() < 0.9 else ():
                if message.session_id is None:
                    message.partition_key = "k1"
                elif self.random.random() < 0.9:
                    message.session_id = message.partition_key = "s1"
            self._both(
                f"  send {name} {[brief(message) for message in messages]}",
                lambda: real.send(name, messages),
                lambda: model.send(name, messages),
            )
            return
        words: tuple[Verb, ...] = ("complete", "complete", "abandon", "defer", "dead-letter")
        word = self.random.choice(words)
        delay = self.random.choice((0, 0, 500)) if word in ("abandon", "defer") else 0
        given = self.properties() if word != "complete" else None
        reason, text = ("why", "so") if word == "dead-letter" else (None, None)
        told = Settlement(word, delay, reason, text, given)
        session = self.holder(held)
        self._both(
            f"  {word} {held.name} {held.proof} of {model_of(session)}",
            lambda: real.settle(held.name, [held.token], told, real_of(session)),
            lambda: model.settle(held, Change(0, 0, word, delay, given), session),
        )

    def _gather_rule(self, real: OpenTransaction, model: TransactionModel) -> None:
        """Add a rule to a subscription, or remove one (P11)."""
        name = self.random.choice([one for one in self.sources if "/" in one] or self.sources)
        entity = self.sim.model.entities.get(name)
        if entity is None:
            return
        there = [] if entity.topic is None else entity.topic.rules[entity.uid]
        rule, remove = self.random.choice(list(RULES)), self.random.random() < 0.2
        if there and (len(there) > 3 or self.random.random() < 0.4):
            rule, remove = self.random.choice(there), True
        change = partial(without_rule, name=rule) if remove else partial(_with, rule)
        self._both(
            f"  rule {rule} of {name} remove={remove}",
            lambda: real.change_rules(name, change),
            lambda: model.change_rule(name, rule, remove),
        )

    def _end(self, real: OpenTransaction, model: TransactionModel) -> None:
        if self.random.random() < 0.1:
            self.sim.step("  roll back")
            real.rollback()
            model.ended = True
            return
        self.sim.do("commit transaction", real.commit, model.commit)


def _with(name: str, rules: list[Rule]) -> list[Rule]:
    return [*rules, RULES[name].rule]
