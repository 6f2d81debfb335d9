"""Works: multi-partition operations, which are atomic.

If one store has all partitions, a work is one store commit. Otherwise:

    stage     each other store keeps its parts, invisible and unnumbered (table `staged`)
    decide    one store carries out its own parts, and writes a row (table `works`): it will happen
    publish   each other store carries its parts out, and deletes them in the same store commit

The store that gets the most bytes of messages decides. The namespace's store decides staged sends,
and works that change rules.

A crash before the decision leaves undecided parts, each with the name of the store that decides:
once that store is open, the broker deletes the parts that have no row there, and releases the
messages that they held. After a decision it carries them out then. A store that fails after the
decision does its parts when it is open again; a pending call that sends to it fails with `Unknown`.

The content of a `works` row is the MessagePack of `WorkRow`. A row that says `decided` stays until
every partition has done its part. Ids of works rise. After a crash the broker may reuse an id that
only parts in an offline store have: the row lists the partitions of its work, which distinguishes
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from onibus.core.commands import (
    CarryOut,
    FindRepeats,
    Publish,
    ReadStaged,
    Stage,
    Unstage,
)
from onibus.core.errors import EntityNotFound, OnibusError, PartitionOffline, Refused, Unknown
from onibus.core.path.work import forget as forget_part
from onibus.core.records import WORKS, WriteBatch
from onibus.core.staged import Part
from onibus.directory.discarding import Discarding
from onibus.directory.turns import Turn, is_large
from onibus.directory.work import (
    Noted,
    Parts,
    Publication,
    Results,
    Work,
    WorkRow,
    check_disks,
    decider_of,
    decode_row,
    encode_row,
)
from onibus.shard.opening import count_boot
from onibus.shard.replies import KeptReply, Reply, answer, fail
from onibus.shard.runner import Steps, all_of, durable, run, turn_over

if TYPE_CHECKING:
    from onibus.directory.entity import Entity
    from onibus.directory.host import Host
    from onibus.directory.namespace import RuleDecision
    from onibus.shard.partition import ShardPartition
    from onibus.shard.shard import Shard
    from onibus.store.interface import Store

#: Parts that wait to be published are kept in memory up to this many bytes, for all works together;
#: other parts are read back from their stores.
KEPT_BYTES_MAX = 128 << 20
#: Rows that are published before other commands get their turn.
SLICE_ROWS = 5_000


class Works:
    """All works over several stores that are staged, decided or being published."""

    def __init__(self, broker: Host) -> None:
        self._broker = broker
        self._works: dict[int, Work] = {}
        #: those with a note, by their owners
        self.noted = Noted()
        self._kept = 0
        self._next = 0
        #: parts that wait for their turn to be published, and replies that wait for them
        self._in_turn = 0
        self._waiting: list[Reply] = []
        #: works that stores have turned out to have decided, by their names
        self._fresh: dict[str, list[Work]] = {}
        self._discarding = Discarding(broker)

    def open(self, store: Store) -> None:
        """Read the works that were staged or decided when the namespace's store was last open."""
        scanned: Any = store.scan(WORKS)
        rows = dict(scanned)
        self._drop_lost("", rows)
        for work in self._take_up("", rows):
            self._decided(work)

    def count_opening(self, store: Store) -> None:
        """Count this opening: no id is used again, not even one of a part in an offline store."""
        self._next = max(self._next, count_boot(store) << 32)

    def read(self, store: Shard) -> None:
        """Take up what a store had decided when it was last open; `store_opened` publishes it."""
        self._fresh[store.name] = self._take_up(store.name, store.works)

    def _take_up(self, decider: str, rows: Mapping[int, bytes]) -> list[Work]:
        """Take up the works that a store has; return those that it turns out to have decided."""
        found = []
        read = {work_id: decode_row(content) for work_id, content in rows.items()}
        for work_id, row in sorted(read.items(), key=lambda one: one[1].order or one[0]):
            self._next = max(self._next, work_id, row.order)
            work = self._works.get(work_id)
            if work is None:
                parts: dict[int, Part | None] = dict.fromkeys(row.partitions)
                work = self._add(Work(work_id, decider, parts, row.note, KeptReply()))
                work.recorded = True
            work.deciding = False
            work.order = row.order or work_id
            if row.decided and not work.decided:
                work.decide()
                found.append(work)
        return found

    def _drop_lost(self, decider: str, rows: Container[int]) -> None:
        """Drop the works whose rows were on their way when their store failed, and got lost."""
        for work in [one for one in self._works.values() if one.decider == decider]:
            if work.recorded and not work.decided and work.id not in rows:
                self._abort(work)

    def when_published(self, reply: Reply) -> None:
        """Reply once open stores show what was decided before they were opened.

        A store that fails over it is not waited for: it publishes when it is open again.
        """
        if self._in_turn:
            self._waiting.append(reply)
            return
        decided = [one for one in self._works.values() if one.decided]
        partitions = [partition for one in decided for partition in self._partitions(one.waiting)]
        stores = dict.fromkeys(partition.store for partition in partitions if partition.is_online)

        def steps() -> Steps[None]:
            for store in stores:
                if store.online:
                    with contextlib.suppress(Unknown):
                        yield durable([store])

        run(steps(), reply)

    # A work, from its first step

    def do(self, parts: Parts, now: int, reply: Reply, rules: RuleDecision | None = None) -> None:
        """Carry out a work; the reply gets `Results` when all of it is durable.

        The caller has brought the partitions to `now`, and found the changes at that moment. The
        row that decides changes `rules` too: messages that the work sends follow the new ones.
        """
        stores = list(dict.fromkeys(partition.store for partition in parts))
        for partition in parts:
            partition.check_online()
        at_once = len(stores) == 1 and rules is None
        check_disks(parts, 1 if at_once else 2)
        if at_once:
            self._at_once(stores[0], parts, now, reply)
        else:
            run(self._over_stores(parts, now, rules, reply), reply)

    def _over_stores(
        self, parts: Parts, now: int, rules: RuleDecision | None, reply: Reply
    ) -> Steps[Results]:
        """Stage, decide and publish a work."""
        decider = decider_of(parts) if rules is None else None
        own = {partition: part for partition, part in parts.items() if partition.store is decider}
        others = {partition: part for partition, part in parts.items() if partition not in own}
        # The deciding store needs no copy of messages that it stores as it decides.
        pinned = {
            partition: Part(changes=part.changes) for partition, part in own.items() if part.changes
        }
        work = self._begin("" if decider is None else decider.name, pinned, others, None, reply)
        work.reserve(parts)
        if rules is not None:
            work.rules = rules
            rules.begin()
        boot = 0 if decider is None else decider.boot
        yield from self._stage(work, pinned, others, now)
        if decider is None:
            if not parts:
                # The caller knows its id before it is decided.
                yield turn_over(self._broker.call_soon)
            yield from self._record(work)
        else:
            yield from self._decide_in(work, decider, boot, own)
        if decider is not None and not any(len(part.batch) for part in others.values()):
            # Nothing that the caller waits for is left to do.
            work.reply = KeptReply()
            self._decided(work)
            results = work.results | {partition.id: [] for partition in others}
        else:
            results = yield partial(self._publish_decided, work)
        gone = [partition for partition in parts if partition.id not in results]
        if gone:
            raise Unknown(f"{gone[0].entity.name} was deleted during the operation")
        return {partition: results[partition.id] for partition in parts}

    def _at_once(self, store: Shard, parts: Parts, now: int, reply: Reply) -> None:
        """Everything is in one store: one commit."""
        broker = self._broker
        commands = {
            partition: CarryOut(part, part.take(broker.apply(partition, FindRepeats(part), now)))
            for partition, part in parts.items()
        }
        results: Results = store.apply_together(commands, now)
        store.answer_after(reply, results)

    def stage(self, parts: Parts, now: int, note: Any, reply: Reply) -> None:
        """Stage a work that waits for `decide`; the reply gets its id when it is staged."""
        run(self._wait_for_decision(parts, now, note, reply), reply)

    def _wait_for_decision(self, parts: Parts, now: int, note: Any, reply: Reply) -> Steps[int]:
        work = self._begin("", {}, parts, note, reply)
        yield from self._stage(work, {}, parts, now)
        if work.id in self._works:
            yield from self._record(work)
        if work.id in self._works:
            self._keep(work)
        elif work.recorded:
            # The entity was deleted after the row was begun.
            self._delete_row(work)
        return work.id

    def _begin(self, decider: str, own: Parts, others: Parts, note: Any, reply: Reply) -> Work:
        """Return a new work: what it holds in the store that decides, and its other parts."""
        self._next += 1
        by_id: dict[int, Part | None] = {partition.id: part for partition, part in others.items()}
        work = self._add(Work(self._next, decider, by_id, note, reply))
        work.own = [partition.id for partition in own]
        work.size = sum(part.size for part in others.values())
        self._broker.disk.staged += work.size
        return work

    def _stage(self, work: Work, own: Parts, others: Parts, now: int) -> Steps[None]:
        """Hold what the work changes; wait until other stores have staged their parts."""
        try:
            for partition, part in (*own.items(), *others.items()):
                command = Stage(work.id, part, work.decider)
                work.blocks[partition.id] = self._broker.apply(partition, command, now)
            if others:
                yield durable(partition.store for partition in others)
        except OnibusError as error:
            self._abort(work)
            if isinstance(error, Unknown):
                # Nothing was decided, so nothing has happened, nor will.
                raise PartitionOffline(f"nothing changed: {error}") from error
            raise

    def _record(self, work: Work) -> Steps[None]:
        """Write the row of a staged work to the namespace's store; without a note, it decides."""
        row = WorkRow(work.note is None, list(work.parts), work.note)
        batch = WriteBatch()
        batch.put(WORKS, (work.id, encode_row(row)))
        if work.rules is not None:
            work.rules.write(batch)
        work.recorded = True
        try:
            yield partial(self._broker.namespace.commit, batch)
        except Unknown:
            # Whether the row is there shows when the namespace's store is open again.
            if work.rules is not None:
                work.rules.end()
                work.rules = None
            raise
        except OnibusError:
            self._abort(work)
            raise
        if work.rules is not None:
            work.rules.decided()

    def _decide_in(self, work: Work, store: Shard, boot: int, own: Parts) -> Steps[None]:
        """Decide a staged work in one commit with the parts that the deciding store has."""
        batch, now = WriteBatch(), self._broker.clock.now()
        batch.put(WORKS, (work.id, encode_row(WorkRow(True, list(work.parts)))))
        try:
            if not store.online or store.boot != boot:
                # It holds no longer what the work changes.
                raise PartitionOffline(f"nothing changed: store {store.name} failed")
            there = {partition: part for partition, part in own.items() if not partition.deleted}
            for partition in there:
                self._broker.advance(partition, now)
            commands = {
                partition: CarryOut(part, None, work.id) for partition, part in there.items()
            }
            work.results |= {
                partition.id: sent
                for partition, sent in store.apply_together(commands, now, batch).items()
            }
            for partition in own:
                work.free(partition.id)
        except OnibusError:
            self._abort(work)
            raise
        work.recorded = True
        # After a failure, the row shows whether it is decided when the store is open again.
        yield durable([store])

    def _publish_decided(self, work: Work, reply: Reply) -> None:
        """Publish the parts of a work; the reply gets the results of all."""
        work.reply = reply
        self._decided(work)

    def _keep(self, work: Work) -> None:
        """Keep the parts of a work that waits in memory too, as long as there is room."""
        size = sum(part.kept_bytes for part in work.parts.values() if part is not None)
        if self._kept + size <= KEPT_BYTES_MAX:
            work.kept = size
            self._kept += size
        else:
            work.parts = dict.fromkeys(work.parts)

    def _add(self, work: Work) -> Work:
        self._works[work.id] = work
        self.noted.add(work)
        return work

    def _take_out(self, work_id: int) -> Work | None:
        """Remove a work and return it."""
        work = self._works.pop(work_id, None)
        if work is not None:
            self.noted.remove(work)
            self._kept -= work.kept
            self._broker.disk.staged -= work.size
            for partition_id in list(work.reserved):
                work.free(partition_id)
        return work

    def _abort(self, work: Work) -> None:
        """Drop a work that will not happen, and delete its staged parts."""
        self._take_out(work.id)
        if work.rules is not None:
            work.rules.end()
        self._unstage(work)

    def _unstage(self, work: Work) -> None:
        for partition in self._partitions([*work.own, *work.parts]):
            with contextlib.suppress(OnibusError):
                self._broker.apply(partition, Unstage(work.id, [0], self._blocks(partition, work)))

    # Publishing

    def is_staged(self, work_id: int) -> bool:
        """Return whether a work waits for the decision of its owner."""
        work = self._works.get(work_id)
        return work is not None and work.is_staged

    def decide(
        self, chosen: Iterable[int], dropped: Iterable[int], records: WriteBatch
    ) -> Steps[list[Work]]:
        """Decide staged works and forget others, with one commit and these records.

        Returns the works to publish.
        """
        works = [self._works[work] for work in chosen]
        lost = [self._works[work] for work in dropped]
        self._put_in_order(works)
        for work in works:
            row = WorkRow(True, list(work.parts), work.note, work.order)
            records.put(WORKS, (work.id, encode_row(row)))
        for work in lost:
            records.delete(WORKS, (work.id,))

        def commit(reply: Reply) -> None:
            self._broker.namespace.commit(records, reply)
            for work in (*works, *lost):
                work.deciding = True

        yield commit
        for work in lost:
            self._take_out(work.id)
            self._unstage(work)
        return works

    def _put_in_order(self, works: list[Work]) -> None:
        for work in works:
            self._next += 1
            work.order = self._next

    def publish(self, works: list[Work], reply: Reply) -> None:
        """Publish decided works; the reply gets the results of each, by their partitions."""

        def take(work: Work, reply: Reply) -> None:
            work.reply = reply

        all_of([partial(take, work) for work in works])(reply)
        self._publish_all(works)

    def _publish_all(self, works: list[Work]) -> None:
        """Publish decided works in their order, a slice at a time."""
        rows = 0
        for at, work in enumerate(works):
            if rows >= SLICE_ROWS:
                self._in_turn += 1
                self._broker.turns.soon(partial(self._publish_rest, works[at:]))
                return
            for part in work.parts.values():
                rows += SLICE_ROWS if part is None else len(part.batch)
            # The namespace's store may have been reopened in between, and have found it.
            if not work.decided:
                self._decided(work)

    def _publish_rest(self, works: list[Work]) -> None:
        if not self._broker.closed:
            self._publish_all(works)
        self._turn_over()

    def _turn_over(self) -> None:
        self._in_turn -= 1
        if not self._in_turn:
            waiting, self._waiting = self._waiting, []
            for reply in waiting:
                self.when_published(reply)

    @property
    def publishing(self) -> bool:
        """Whether decided parts wait for their turn."""
        return self._in_turn > 0

    def _decided(self, work: Work) -> None:
        """Publish the parts of a decided work, if their partitions are in use."""
        if not work.decided:
            work.decide()
        for partition_id in list(work.waiting):
            partition = self._broker.partition(partition_id)
            if partition is None:
                # Its entity is gone, and everything in it.
                self._published(work, partition_id, KeptReply())
            elif not partition.is_online or partition_id not in self._broker.partitions:
                self._late(work, partition)
            elif partition_id not in work.begun:
                self._publish(work, partition, 0, work.parts[partition_id])
        if not work.parts:
            self._finish(work)

    def _late(self, work: Work, partition: ShardPartition) -> None:
        where = f"partition {partition.index} of {partition.entity.name}"
        fail(work.reply, Unknown(f"committed; {where} applies its part when it is online again"))

    def _publish(
        self, work: Work, partition: ShardPartition, piece: int, part: Part | None
    ) -> None:
        """Carry out a decided part, after what waits before it; costly rules run first."""
        work.begun.add(partition.id)
        try:
            content, now = part, self._broker.clock.now()
            if content is None:
                content = self._broker.apply(partition, ReadStaged(work.id, piece), now)
            if content is None:
                # It was done before; only the row of the work was left.
                self._published(work, partition.id, KeptReply())
                return
            rules = not content.only and content.plan is None
            large = rules and is_large(partition.entity, content.batch)
            if not len(content.batch) or (partition.entity.lane is None and not large):
                self._carry_out(work, partition, piece, content)
                return
            if content.rename:
                # Messages get their new ids now: a plan is for the messages that it has seen.
                content.take(self._broker.apply(partition, FindRepeats(content), now))
        except OnibusError:
            self._late(work, partition)
            return
        self._publish_in_turn(work, partition, piece, content, rules)

    def _publish_in_turn(
        self, work: Work, partition: ShardPartition, piece: int, part: Part, rules: bool
    ) -> None:
        opening = partition.opening
        planned = [(partition, part.batch, partial(setattr, part, "plan"))] if rules else []

        def run() -> None:
            if partition.deleted:
                self._published(work, partition.id, KeptReply())
            elif not partition.is_online:
                self._late(work, partition)
            elif partition.opening == opening:
                self._carry_out(work, partition, piece, part)
            # Otherwise its store was reopened, and publishes the parts it finds.
            self._turn_over()

        self._in_turn += 1
        turn = Turn(
            [partition.entity], planned, run, Publication(work.id, partition.id), stops=False
        )
        self._broker.turns.take(turn)

    def _carry_out(self, work: Work, partition: ShardPartition, piece: int, part: Part) -> None:
        try:
            work.results[partition.id] = self._broker.apply(
                partition, Publish(work.id, piece, part)
            )
        except OnibusError:
            self._late(work, partition)
            return
        work.free(partition.id)
        kept = KeptReply(partial(self._published, work, partition.id))
        partition.store.answer_after(kept, None)

    def _published(self, work: Work, partition_id: int, kept: KeptReply) -> None:
        """Record that a partition has done its part; delete the work's row when all have."""
        if kept.error is not None:
            fail(work.reply, kept.error)
            return
        work.waiting.pop(partition_id, None)
        if not work.waiting:
            self._finish(work)

    def _finish(self, work: Work) -> None:
        """Complete a work that every partition has done, and delete its row."""
        if self._take_out(work.id) is None:
            return
        answer(work.reply, work.results)
        # If this is lost, the next opening finds no partition with a part of it.
        self._delete_row(work)

    def _delete_row(self, work: Work) -> None:
        batch = WriteBatch()
        batch.delete(WORKS, (work.id,))
        if not work.decider:
            with contextlib.suppress(Refused):
                self._broker.namespace.commit(batch, KeptReply())
        else:
            self._broker.stores[work.decider].write(batch)

    def forget(self, entity: Entity) -> None:
        """Drop the parts staged in the partitions of an entity that is being deleted."""
        partitions = {partition.id: partition for partition in entity.partitions}
        for work in list(self._works.values()):
            mine = [one for one in (*work.own, *work.parts) if one in partitions]
            for partition_id in mine:
                out = WriteBatch()
                with contextlib.suppress(OnibusError):
                    blocks = self._blocks(partitions[partition_id], work)
                    forget_part(work.id, partition_id, [0], blocks, out)
                    partitions[partition_id].store.write(out)
            if mine and work.note is not None and not (work.decided or work.deciding):
                # It was staged to be published to that entity.
                self._take_out(work.id)
                fail(work.reply, EntityNotFound(f"{entity.name} was deleted"))
        self._discarding.forget(partitions)

    # Stores that are opened

    def store_opened(self, store: Shard, staged: dict[int, dict[int, list[int]]]) -> None:
        """Continue the parts that a store had staged: partition → work → pieces."""
        self._drop_lost(store.name, store.works)
        fresh = self._fresh.pop(store.name, [])
        for partition in list(store.partitions.values()):
            parts = staged.get(partition.id, {})
            for work_id in sorted(parts, key=self._order):
                self._go_on(partition, work_id, parts[work_id])
        for work in fresh:
            self._decided(work)
        for (doubtful, work_id), pieces in self._discarding.take(store.name).items():
            if work_id not in self._works:
                # That store has not decided it.
                self._discarding.discard(doubtful, work_id, pieces)
        for work in [one for one in self._works.values() if one.decided]:
            for partition_id in list(work.waiting):
                place, left = self._broker.partition(partition_id), staged.get(partition_id, {})
                if place is None or (place.store is store and work.id not in left):
                    self._published(work, partition_id, KeptReply())

    def _order(self, work_id: int) -> int:
        work = self._works.get(work_id)
        return work_id if work is None else work.order

    def _go_on(self, partition: ShardPartition, work_id: int, pieces: list[int]) -> None:
        work = self._works.get(work_id)
        if work is not None and partition.id in work.parts:
            # A part in memory reads its blocks from the store as it was before.
            work.parts[partition.id] = None
            for piece in pieces if work.decided else ():
                self._publish(work, partition, piece, None)
        elif work is None or work.decided or partition.id not in work.own:
            self._discarding.discard(partition, work_id, pieces)

    def _blocks(self, partition: ShardPartition, work: Work) -> list[int]:
        """Return the blocks that have the messages of a part."""
        if partition.id in work.blocks:
            return work.blocks[partition.id]
        return self._discarding.facts(partition, work.id, [0])[0].blocks

    def _partitions(self, ids: Iterable[int]) -> list[ShardPartition]:
        found = [self._broker.partition(partition_id) for partition_id in ids]
        return [partition for partition in found if partition is not None]
