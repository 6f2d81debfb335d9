"""Bus transactions: sends and settlements that happen atomically (B5, P8).

Sends and settlements are gathered here and change nothing yet; message locks keep expiring.
`commit` checks that all of them are possible at the same time, and passes them to the works
(directory/works.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from onibus.core.commands import CheckExists, FindHeld, HeldSession, Settlement
from onibus.core.errors import (
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    OnibusError,
    QuotaExceeded,
    Refused,
)
from onibus.core.limits import TRANSACTION_MS_MAX
from onibus.core.message import Message, Sent
from onibus.core.path.admit import Prepared, admit
from onibus.core.path.plan import Plan
from onibus.core.path.route import effective_key
from onibus.core.staged import Change, Part
from onibus.directory.entity import Entity
from onibus.directory.namespace import ChangeRules
from onibus.directory.routing import (
    check_takes,
    open_for_sends,
    partition_of_key,
    partition_of_token,
    route,
)
from onibus.directory.turns import Turn, waits
from onibus.gateway.sending import take_in
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import KeptReply, Reply, answer, fail

if TYPE_CHECKING:
    from onibus.gateway.broker import Broker

#: How a transaction ends. Any other word is why all that it can do is roll back.
COMMITTED, ROLLED_BACK, UNKNOWN = "committed", "rolled back", "unknown"
_ENDED = {
    COMMITTED: "was committed",
    ROLLED_BACK: "was rolled back",
    UNKNOWN: "may have been committed: the outcome is unknown",
}


class _Settled(NamedTuple):
    """A message that the transaction settles."""

    entity: Entity
    token: bytes
    settlement: Settlement
    #: the session that the settling receiver must hold (B9)
    session: HeldSession | None


class OpenTransaction:
    """Sends and settlements, gathered."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self._broker = broker
        self._limit = limit
        self._deadline = broker.clock.now() + TRANSACTION_MS_MAX
        self._sends: list[tuple[Entity, Prepared]] = []
        self._settlements: list[_Settled] = []
        #: changes of the rules of subscriptions, in order
        self._rules: dict[Entity, list[ChangeRules]] = {}
        self._keys: dict[str, str] = {}
        #: fan-outs that were computed before the commit
        self._plans: dict[Entity, Plan] = {}
        #: how it ended, or why it can only be rolled back; empty while all is well
        self.ended = ""

    def send(self, name: str, messages: Sequence[Message]) -> None:
        """Add messages, in order; where an entity is partitioned they have one key (P8)."""
        self._open(len(messages))
        entity = open_for_sends(self._broker, name)
        settings, secret = entity.log_settings, self._broker.namespace.secret
        prepared = [admit(message, settings, secret) for message in messages]
        if entity.partitioned:
            for one in prepared:
                self._check_key(entity, effective_key(one.message, settings))
        self._sends += [(entity, one) for one in prepared]

    def _check_key(self, entity: Entity, key: str | None) -> None:
        known = self._keys.setdefault(entity.name, key) if key is not None else None
        if key is None or known != key:
            self.ended = "has messages with different keys"
            raise InvalidOperation(
                f"{entity.name} is partitioned: its messages in a transaction need the same "
                "partition_key or session_id: roll the transaction back"
            )

    def settle(
        self,
        name: str,
        tokens: Sequence[bytes],
        settlement: Settlement,
        session: HeldSession | None = None,
    ) -> None:
        """Add settlements atomically; tokens must hold their messages now and at the commit.

        So must the receiver hold its `session`.
        """
        self._open(len(tokens))
        entity = self._broker.find(name)
        entity.outlet_settings()
        settled = {one.token for one in self._settlements}
        for token in tokens:
            partition = partition_of_token(entity, token)
            found = self._broker.use(entity, partition, FindHeld(entity.number, token, session))
            if settlement.verb == "dead-letter" and found.is_dead:
                raise InvalidOperation("a dead-lettered message cannot be dead-lettered again")
            if token in settled:
                raise InvalidArgument("the message is already settled in this transaction")
            settled.add(token)
        self._settlements += [_Settled(entity, token, settlement, session) for token in tokens]

    def change_rules(self, name: str, change: ChangeRules) -> None:
        """Add a change of a subscription's rules; not if its topic is partitioned (P11)."""
        self._open(1)
        entity = self._broker.find(name)
        if entity.topic is None:
            raise InvalidOperation(f"{entity.name} is a {entity.kind}: subscriptions have rules")
        if entity.partitioned:
            self.ended = "changes rules of a partitioned topic"
            raise InvalidOperation(
                f"{entity.topic.name} is partitioned: its rules cannot be changed in a "
                "transaction; roll the transaction back"
            )
        several = [*self._rules.get(entity, ()), change]
        self._broker.namespace.rules_after(entity, several)
        self._rules[entity] = several

    def commit(self, reply: Reply) -> None:
        """Do all of it; the reply gets a `Sent` for each message sent, in order."""
        self._open(0)
        if not self._rules:
            self._begin(reply)
            return
        begun = False

        def begin() -> None:
            nonlocal begun
            begun, self.ended = True, ""
            self._begin(reply)

        # As every decision of the namespace: not while a disk hangs.
        self._broker.probing.before(begin, reply)
        if not begun:
            self.ended = COMMITTED

    def _begin(self, reply: Reply) -> None:
        """Commit, at once or after earlier sends to the same entities."""
        sent: dict[Entity, list[Prepared]] = {}
        for entity, prepared in self._sends:
            sent.setdefault(entity, []).append(prepared)
        # All messages to one entity go to one of its partitions (P8).
        partitions = {
            entity: partition_of_key(entity, batch[0].key) for entity, batch in sent.items()
        }
        if not waits(list(sent), [(partitions[entity], batch) for entity, batch in sent.items()]):
            self._commit(reply)
            return

        def run() -> None:
            self.ended = ""
            self._commit(reply)

        parts = [(partitions[one], batch, partial(self._take, one)) for one, batch in sent.items()]
        self._broker.turns.take(Turn(list(sent), parts, run, reply, stops=False))
        # Nothing can be added, and it cannot be rolled back.
        self.ended = COMMITTED

    def _take(self, entity: Entity, plan: Plan) -> None:
        self._plans[entity] = plan

    def _commit(self, reply: Reply) -> None:
        entities = dict.fromkeys(entity for entity, _ in self._sends)
        take_in([partition for entity in entities for partition in entity.partitions])
        now = self._broker.clock.now()
        parts: dict[ShardPartition, Part] = {}
        positions: dict[ShardPartition, list[int]] = {}
        for settlement in self._settlements:
            partition = partition_of_token(settlement.entity, settlement.token)
            parts[partition] = Part()
            self._broker.advance(partition, now)
            # A deleted entity comes before a lost lock: no retry helps there.
            exists = CheckExists(settlement.entity.number)
            self._broker.use(settlement.entity, partition, exists, now)
        for settlement in self._settlements:
            self._find(settlement, parts, now)
        self._route(parts, positions)
        rules = self._broker.namespace.decide_rules(self._rules) if self._rules else None
        for partition in positions:
            self._broker.advance(partition, now)
        self.ended = COMMITTED
        count = len(self._sends)

        def done(kept: KeptReply) -> None:
            if kept.error is not None:
                self._not_committed(kept.error)
                fail(reply, kept.error)
                return
            answers: list[Sent | None] = [None] * count
            for partition, chosen in positions.items():
                for position, sent in zip(chosen, kept.value[partition], strict=True):
                    answers[position] = sent
            answer(reply, answers)

        if not parts and rules is None:
            answer(reply, [])
            return
        try:
            self._broker.works.do(parts, now, KeptReply(done), rules)
        except OnibusError as error:
            self._not_committed(error)
            raise

    def _not_committed(self, error: BaseException) -> None:
        """Reopen a rejected transaction for a commit or rollback; otherwise mark it unknown."""
        self.ended = "" if isinstance(error, Refused) else UNKNOWN

    def _find(self, settled: _Settled, parts: dict[ShardPartition, Part], now: int) -> None:
        entity, token, settlement, session = settled
        partition = partition_of_token(entity, token)
        command = FindHeld(entity.number, token, session)
        found = self._broker.use(entity, partition, command, now)
        parts[partition].changes.append(Change.of(settlement, entity.number, found.ordinal))

    def _route(
        self, parts: dict[ShardPartition, Part], positions: dict[ShardPartition, list[int]]
    ) -> None:
        by_entity: dict[Entity, list[int]] = {}
        for position, (entity, _) in enumerate(self._sends):
            by_entity.setdefault(entity, []).append(position)
        for entity, chosen in by_entity.items():
            if entity.partitions[0].deleted:
                raise EntityNotFound(f"{entity.name} was deleted")
            check_takes(entity)
            batch = [self._sends[position][1] for position in chosen]
            for partition, places, _ in route(entity, batch):
                places = places or list(range(len(batch)))
                part = parts.setdefault(partition, Part())
                part.batch = [batch[place] for place in places]
                part.plan = self._plans.get(entity)
                positions[partition] = [chosen[place] for place in places]

    def spoil(self, why: str) -> None:
        """Note that one of its operations was rejected: it can only be rolled back."""
        self.ended = self.ended or f"contains a rejected operation: {why}"

    def rollback(self) -> None:
        """Roll back: nothing is sent, and message locks stay as they were."""
        if self.ended in (COMMITTED, UNKNOWN):
            raise InvalidOperation(f"this transaction {_ENDED[self.ended]}")
        self._sends.clear()
        self._settlements.clear()
        self._rules.clear()
        self.ended = ROLLED_BACK

    @property
    def has_run_out(self) -> bool:
        """Return whether it was open for too long and can only be rolled back."""
        return self._broker.clock.now() >= self._deadline

    @property
    def room(self) -> int:
        """How many more messages and rules it takes."""
        rules = sum(map(len, self._rules.values()))
        return self._limit - len(self._sends) - len(self._settlements) - rules

    def _open(self, more: int) -> None:
        """Reject the call if the transaction has ended, has expired, or becomes too large."""
        if not self.ended and self.has_run_out:
            self.rollback()
            self.ended = f"was open for longer than {TRANSACTION_MS_MAX // 1_000} s"
        if self.ended:
            raise InvalidOperation(f"this transaction {_ENDED.get(self.ended, self.ended)}")
        if more > self.room:
            raise QuotaExceeded(
                f"too many messages and rules: a transaction has at most {self._limit}"
            )
