"""A broker that tells the model what it does by itself: bring partitions up to the present, open
stores, decide, forward, and set messages aside for claims.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from onibus.core.commands import Claim, Command, CompleteClaimed, ReleaseClaimed
from onibus.core.handlers import HANDLERS
from onibus.core.records import CLAIMS, PRODUCERS, WORKS, WriteBatch
from onibus.directory.entity import Entity
from onibus.directory.turns import Turn, Turns
from onibus.directory.work import Publication, Work
from onibus.directory.works import Works
from onibus.gateway import settling
from onibus.gateway.broker import Broker
from onibus.gateway.forwarding import Forwarding, Key
from onibus.gateway.moving import Move
from onibus.shard.partition import PARTITIONS_MAX, ShardPartition
from onibus.shard.replies import KeptReply, Reply
from onibus.shard.runner import Steps
from onibus.shard.shard import Shard
from onibus.store.interface import Store
from tests.simulator.mismatch import Mismatch, check
from tests.simulator.model_claims import ClaimsModel
from tests.simulator.model_moves import FORWARD_SLICE
from tests.simulator.model_parts import Op
from tests.simulator.trace import shown

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation

T = TypeVar("T")
_PURGE: Any = settling._purge


def watch_claims(simulation: Simulation) -> None:
    """Tell a simulation's model whatever is done to messages under the name of a claim."""
    for kind, original in _CLAIMING.items():

        def told(partition: Any, command: Any, *given: Any, original: Any = original) -> Any:
            result = original(partition, command, *given)
            model = simulation.model
            incarnation, index = divmod(partition.id, PARTITIONS_MAX)
            entity = model.by_uid(command.subscription or incarnation)
            if entity is None:
                return result
            owner, limit = command.owner, command.limit
            try:
                if isinstance(command, Claim):
                    model.set_aside(entity, index, owner, limit, result.count)
                elif isinstance(command, ReleaseClaimed):
                    model.release_claimed(entity, index, owner, limit)
                else:
                    model.complete_claimed(entity, index, owner, command.dead_letters, limit)
            except Mismatch as mismatch:
                # The bus would take it for its own failure, and the partition offline.
                simulation.mismatch = mismatch
                raise
            return result

        HANDLERS[kind] = told


#: The handlers of the commands that claims give.
_CLAIMING = {kind: HANDLERS[kind] for kind in (Claim, ReleaseClaimed, CompleteClaimed)}


def watch_purges(simulation: Simulation) -> None:
    """Tell a simulation's model when a purge continues: a claim may hold or release in between."""

    def purge(*given: Any) -> Steps[int]:
        steps = _PURGE(*given)
        continued: Any = None
        while True:
            try:
                step = steps.send(continued)
            except StopIteration as end:
                return int(end.value)
            finally:
                if continued is not None:
                    simulation.model.purge_continues(given[4])
            yield step
            continued = ()

    settling._purge = purge  # type: ignore[assignment]


def stop_watching() -> None:
    """Undo `watch_claims` and `watch_purges`: later users of the bus have no model to tell."""
    HANDLERS.update(_CLAIMING)
    settling._purge = _PURGE


class SimulatedWorks(Works):
    """Works that tell the model when a store, or the namespace's own, is open again."""

    def __init__(self, broker: SimulatedBroker) -> None:
        super().__init__(broker)
        self._simulated = broker

    def _begin(self, decider: str, *given: Any) -> Work:
        work = super()._begin(decider, *given)
        namespace = self._simulated.model.namespace
        namespace.last_number, namespace.last_decider = work.id, decider
        return work

    def _put_in_order(self, works: list[Work]) -> None:
        super()._put_in_order(works)
        orders = [work.order for work in works]
        check(orders == sorted(orders), "works are not published in the order they were named")
        namespace = self._simulated.model.namespace
        for work in works:
            namespace.orders[namespace.known[work.id].number] = work.order

    def _abort(self, work: Work) -> None:
        super()._abort(work)
        self._simulated.model.gives_up(work.id)

    def _publish_all(self, works: list[Work]) -> None:
        super()._publish_all(works)
        self._simulated.model.publish_later([one.id for one in works if not one.decided])

    def _decided(self, work: Work) -> None:
        super()._decided(work)
        model = self._simulated.model
        model.publish_now(work.id)
        if work.decider:
            model.store_has_decided(work.id)

    def open(self, store: Store) -> None:
        model = self._simulated.model
        # Publishing what was decided brings partitions up to the present, with the rules read.
        model.namespace_read()
        super().open(store)
        if not model.namespace.online:
            # What a claim in doubt held is given back then: perhaps after somebody gave up.
            self._simulated.opened_now = True
            model.namespace_opened()

    def store_opened(self, store: Shard, staged: Any) -> None:
        model = self._simulated.model
        if not model.stores[store.name].online:
            self._simulated.opened_now = True
            model.store_opened(store.name)
        super().store_opened(store, staged)
        model.works_opened(store.name)


class SimulatedForwarding(Forwarding):
    """Forwarding that tells the model when it looks for what goes on, and when that has ended."""

    def __init__(self, broker: SimulatedBroker) -> None:
        super().__init__(broker)
        self._simulated = broker
        self._asked = 0
        #: how many messages it examined, and how many it forwards at once
        self._looked_at = self._fits = 0

    def planning(self) -> set[int]:
        """Return the sources that wait until the rules of their destination have run."""
        return {incarnation for incarnation, _, _ in self._planning}

    def _ready(self, *given: Any) -> list[int]:
        found = super()._ready(*given)
        self._looked_at = len(found)
        return found

    def _plans(self, source: Entity, key: Key, target: Entity, move: Move) -> bool:
        self._fits = len(move.messages)
        return super()._plans(source, key, target, move)

    def _forward(self, source: Entity, partition: ShardPartition, target: str, dead: bool) -> None:
        key = (source.incarnation, partition.id, dead)
        if key in self._planning:
            return
        before = key in self._moving
        self._looked_at = self._fits = FORWARD_SLICE
        self._asked += 1
        asked = self._asked
        super()._forward(source, partition, target, dead)
        if key in self._planning or asked != self._asked:
            # Rules of the destination run first; or they have run, and the model knows the rest.
            return
        model = self._simulated.model
        entity = model.entities[source.name]
        op = Op(f"forward {source.name} {partition.index} dead={dead}")
        op.stores = model.all_stores()
        begun = model.forward(op, entity, partition.index, dead, self._looked_at, self._fits)
        check(begun == (key in self._moving and not before), f"{op.words}: model says {begun}")
        if begun:
            model.ops.append(op)
            self._simulated.note(op.words)

    def _moved(self, source: Entity, key: tuple[int, int, bool], kept: KeptReply) -> None:
        model = self._simulated.model
        op = model.moving.pop((key[0], key[1] % PARTITIONS_MAX, key[2]))
        self._simulated.note(f"end of {op.words}: {shown(kept.error)}")
        if kept.error is not None:
            op.reply.set_exception(kept.error)
        else:
            # The numbers show where the messages are: nobody was told them.
            op.value = None
            op.reply.set_result(None)
        super()._moved(source, key, kept)


class SimulatedTurns(Turns):
    """Sends that take turns, and tell the model when they run."""

    def __init__(self, broker: SimulatedBroker) -> None:
        super().__init__(broker)
        self._simulated = broker
        #: slices that the simulation does when it likes
        self.slices: deque[Callable[[], None]] = deque()
        self.soon = self.slices.append

    def take(self, turn: Turn) -> None:
        if isinstance(turn.reply, Publication):
            self._simulated.model.publication_waits(turn.reply)
        if turn.entities:
            self._simulated.model.takes_turn(turn.reply)
        super().take(turn)

    def run(self, turn: Turn) -> None:
        try:
            super().run(turn)
        finally:
            if turn.entities:
                self._simulated.model.turn_came(turn.reply, turn.planned)


class SimulatedShard(Shard):
    """A shard that tells the model when it brings a partition up to the present."""

    host: SimulatedBroker

    def advance(self, partition: ShardPartition, now: int) -> None:
        super().advance(partition, now)
        model = self.host.model
        entity = model.entities.get(partition.entity.name)
        if entity is not None and entity.uid == partition.entity.incarnation:
            model.advance(entity, partition.index)

    def apply_together(
        self,
        commands: Mapping[ShardPartition, Command[T]],
        now: int,
        records: WriteBatch | None = None,
    ) -> dict[ShardPartition, T]:
        results = super().apply_together(commands, now, records)
        if records is not None:
            works: Any = records.tables[WORKS]
            for (work,) in works:
                self.host.model.store_decides(self.name, work)
        return results


class SimulatedBroker(Broker):
    """A broker that tells the model when it brings a partition up to the present."""

    shard_type = SimulatedShard
    model: ClaimsModel
    turns: SimulatedTurns
    forwarding: SimulatedForwarding
    #: adds a line to the trace
    note: Callable[[str], None]
    #: a store was opened since the answers were looked at last
    opened_now = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.turns = SimulatedTurns(self)
        self.works = SimulatedWorks(self)
        self.forwarding = SimulatedForwarding(self)
        commit = self.namespace.commit

        def told(records: WriteBatch, reply: Reply, value: Any = None) -> None:
            namespace = self.model.namespace
            if namespace.online:
                namespace.last_commit = namespace.started + 1
                namespace.told += 1
                rows: Any = records.tables.get(WORKS, {})
                last: Any = records.tables.get(PRODUCERS, {})
                self.model.namespace_written(
                    {
                        work: None if row is None else msgspec.msgpack.decode(row[1])[0]
                        for (work,), row in rows.items()
                    },
                    {
                        key: None if row is None else msgspec.msgpack.decode(row[2])[0]
                        for key, row in last.items()
                    },
                )
                claim_rows: Any = records.tables.get(CLAIMS, {})
                self.model.claims_written(
                    {
                        key: None if row is None else msgspec.json.decode(row[3])
                        for key, row in claim_rows.items()
                        if key[2]
                    }
                )
            commit(records, reply, value)

        self.namespace.commit = told  # type: ignore[method-assign]

    def take_up(self, partition: ShardPartition) -> None:
        if not self.model.stores[partition.store.name].online:
            self.opened_now = True
            self.model.store_opened(partition.store.name)
        super().take_up(partition)
