"""Works as the promises describe them: changes of several partitions, whole or not at all.

What is in one store is one commit. Otherwise a part is staged in each store, one row of the
namespace's own store decides, and each store carries its part out once that row is durable. Parts
are kept with their partitions (`PartitionModel.staged`), so a snapshot of a partition has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from onibus.core.errors import EntityNotFound, OnibusError, PartitionOffline, Unknown
from onibus.directory.work import Publication
from onibus.shard.partition import PARTITIONS_MAX
from tests.simulator.mismatch import check
from tests.simulator.model import PartitionModel
from tests.simulator.model_commits import Commits
from tests.simulator.model_parts import EntityModel, Op
from tests.simulator.model_rows import Prepared, Row, changed
from tests.simulator.model_topics import TopicPartition

Place = tuple[EntityModel, int]


class Change(msgspec.Struct, frozen=True):
    """What becomes of one message that is there."""

    #: the entity that it is in, and its ordinal there
    uid: int
    ordinal: int
    #: complete, abandon, defer, dead-letter or move
    verb: str
    delay: int = 0
    properties: dict[str, Any] | None = None


class WorkPart(msgspec.Struct):
    """What a work does to one partition; `places` are those of its messages in the answer."""

    batch: list[Prepared] = []
    places: list[int] = []
    changes: list[Change] = []


class Note(msgspec.Struct, frozen=True):
    """Whose a staged work is (R6), and until when it is kept."""

    entity: int
    producer: str
    batch: int
    task: int
    attempt: int
    until: int
    #: the messages as they were given
    content: tuple[bytes, ...] = ()


class WorkModel:
    """A work over several stores that is under way, or one that waits to be published."""

    def __init__(
        self, number: int, parts: dict[Place, WorkPart], op: Op, note: Note | None
    ) -> None:
        self.number, self.parts, self.op, self.note = number, parts, op, note
        #: the store that decides it; empty: that of the namespace
        self.decider = ""
        #: how often that store had failed when it began
        self.failures = 0
        #: its place among the commands of several commits, by when it was staged
        self.turn = 0
        #: the commits that stage it: store → which
        self.staging: dict[str, int] = {}
        self.left = dict.fromkeys(parts)
        self.decided = False
        #: its row is durable, and does not decide
        self.recorded = False
        #: it was not chosen when its producer published
        self.passed_over = False
        #: since which commit of the namespace's store it is being decided what becomes of it
        self.deciding = 0
        self.sent: list[tuple[int, int | None]] = []
        #: the rules that subscriptions have once it is decided (P11)
        self.rules: dict[EntityModel, list[str]] = {}

    def is_kept(self, store: str, part: WorkPart) -> bool:
        """Return whether a store keeps a part until the work is decided.

        The store that decides keeps only what the part holds: its sends come with the decision.
        """
        return store != self.decider or bool(part.changes)


class Written(msgspec.Struct, frozen=True):
    """Something that is written into the namespace's own store."""

    #: decide, record or drop a work; or the last batch of a producer
    kind: str
    work: WorkModel | None = None
    key: tuple[int, str] = (0, "")
    batch: int = 0
    #: who waits for it
    op: Any = None


class NamespaceModel:
    """What the namespace's own store has decided, and what is on its way to it."""

    def __init__(self) -> None:
        self.online = True
        self.started = self.finished = 0
        self.decided: set[int] = set()
        self.gathering: list[Written] = []
        self.flying: list[Written] | None = None
        #: durable just now, or in doubt until the store is open again
        self.to_do: list[Written] = []
        self.in_doubt: list[Written] = []
        #: works by the numbers that the bus has given them
        self.known: dict[int, WorkModel] = {}
        self.last_number = self.last_commit = self.told = 0
        self.last_decider = ""
        #: which work comes first where several are published at once, by their numbers here
        self.orders: dict[int, int] = {}
        #: the number that the bus gives a work, by its number here
        self.bus_numbers: dict[int, int] = {}
        #: the last batch of each producer, as it is known and as it is on the disk
        self.producers: dict[tuple[int, str], int] = {}
        self.kept: dict[tuple[int, str], int] = {}

    def order(self, number: int) -> int:
        """Return the place of a work among those that are published at once."""
        return self.orders[number]

    def keep(self, written: list[Written]) -> None:
        """These rows are durable."""
        for one in written:
            if one.kind == "producer":
                self.kept[one.key] = one.batch
            elif one.kind == "no producer":
                self.kept.pop(one.key, None)
            elif one.work is not None and one.kind == "decide":
                self.decided.add(one.work.number)
            elif one.work is not None:
                one.work.recorded = one.kind == "record"

    def use_rules(self, written: list[Written]) -> None:
        """The bus knows that these are durable: rules that they decided hold from now on."""
        for one in written:
            if one.work is not None and one.work.number in self.decided:
                for entity, rules in one.work.rules.items():
                    assert entity.topic is not None
                    if entity.uid in entity.topic.rules:
                        entity.topic.rules[entity.uid] = rules


def outlet_of(partition: PartitionModel, uid: int) -> PartitionModel | None:
    """Return what an entity has of a partition; None for a subscription that is no more."""
    return partition.outlets.get(uid) if isinstance(partition, TopicPartition) else partition


class Works(Commits):
    """Works, on top of commits."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.namespace = NamespaceModel()
        self.works: dict[int, WorkModel] = {}
        self.last_work = 0
        #: the messages and attempts of each batch of each producer, as they were published last
        #: decided works that the bus publishes a little later
        self.later: set[int] = set()
        #: parts that wait for their turn to be published, by work and partition
        self.publications: dict[tuple[int, int], Publication] = {}
        #: what stores decide with their next commit, and with the one under way
        self.deciding: dict[str, list[WorkModel]] = {}
        self.deciding_now: dict[str, list[WorkModel]] = {}
        #: how often each store has failed
        self.failed: dict[str, int] = {}
        self.contents: dict[tuple[int, str, int], tuple[list[bytes], list[tuple[int, int]]]] = {}

    def all_stores(self) -> dict[str, Any]:
        """Return the stores whose commits an answer may wait for."""
        return {**self.stores, "namespace": self.namespace}

    def do_work(
        self,
        op: Op,
        parts: dict[Place, WorkPart],
        rules: dict[EntityModel, list[str]] | None = None,
    ) -> None:
        """Carry out a work at once where one store has all of it, or stage it.

        What changes rules is always decided by the namespace's store (P11).
        """
        for entity, index in parts:
            if not self.online(entity, index):
                raise PartitionOffline(entity.name)
        if rules:
            self.stage(op, parts, None)
            self.works[self.last_work].rules = rules
            return
        if len({entity.stores[index] for entity, index in parts}) == 1:
            for (entity, index), part in parts.items():
                self.carry_out(entity, index, part, op)
            op.left = 0
            return
        self.stage(op, parts, None)

    def stage(self, op: Op, parts: dict[Place, WorkPart], note: Note | None) -> None:
        """Keep the parts of a work until it is decided."""
        self.last_work += 1
        work = self.works[self.last_work] = WorkModel(self.last_work, parts, op, note)
        work.decider = self.namespace.last_decider
        work.failures = self.failed.get(work.decider, 0)
        self.turns += 1
        work.turn = self.turns
        self.namespace.known[self.namespace.last_number] = work
        self.namespace.orders[work.number] = self.namespace.last_number
        self.namespace.bus_numbers[work.number] = self.namespace.last_number
        for (entity, index), part in parts.items():
            partition = self.part(entity, index)
            if work.is_kept(entity.stores[index], part):
                partition.staged[work.number] = part
            for change in part.changes:
                outlet = outlet_of(partition, change.uid)
                assert outlet is not None
                outlet.pin(outlet.rows[change.ordinal], work.number)
            store = entity.stores[index]
            if store != work.decider:
                work.staging[store] = self.stores[store].started + 1

    def changes_rules(self) -> bool:
        """Return whether a transaction that changes rules is under way."""
        return any(work.rules for work in self.works.values())

    def is_changing(self, entity: EntityModel) -> bool:
        """Return whether a transaction that changes a subscription's rules is not decided yet."""
        doubted = [one.work for one in self.namespace.in_doubt]
        return any(
            entity in work.rules and not work.decided and work not in doubted
            for work in self.works.values()
        )

    def carry_out(
        self, entity: EntityModel, index: int, part: WorkPart, op: Op
    ) -> list[tuple[int, int | None]]:
        """Do what a part says to its partition; return what was sent."""
        partition = self.part(entity, index, op)
        at = self.time.at()
        sent = [partition.send(prepared, at) for prepared in part.batch]
        partition.arrived(at)
        for place, one in zip(part.places, sent, strict=True):
            if op.value is not None:
                op.value[place] = one
        for change in part.changes:
            outlet = outlet_of(partition, change.uid)
            if outlet is not None:
                _change(outlet, outlet.rows[change.ordinal], change, at.now)
        return sent

    # The steps of a work over several stores

    # Works that a message store decides

    def store_decides(self, name: str, number: int) -> None:
        """The bus decides a work, in the commit that carries out the store's own parts."""
        work = self.namespace.known[number]
        check(not work.staging, f"{work.op.words}: decided before all of it was staged")
        check(work.failures == self.failed.get(name, 0), f"{work.op.words}: its holds were lost")
        self.deciding.setdefault(name, []).append(work)
        work.op.needs[name] = self.stores[name].started + 1
        for entity, index in list(work.left):
            if entity.stores[index] != name:
                continue
            if self._is_there(entity):
                self.publish_part(entity, index, work.number)
            else:
                work.op.tolerated.add(Unknown)
                work.left.pop((entity, index))

    def store_has_decided(self, number: int) -> None:
        """The bus publishes what a message store has decided."""
        work = self.namespace.known.get(number)
        if work is None or work.number not in self.works or work.decided:
            return
        check(work.number in self.namespace.decided, f"{work.op.words}: published undecided")
        if not any(part.batch for place, part in work.parts.items() if place in work.left):
            # The bus replies: nothing that the caller waits for is left to do.
            work.op.left -= 1
            work.op = Op("published after its answer")
        self.publish(work)

    def gives_up(self, number: int) -> None:
        """The bus aborts a work: its store has failed, so it is not decided."""
        work = self.namespace.known.get(number)
        if work is None or not work.decider or work.number not in self.works:
            return
        check(work.number not in self.namespace.decided, f"{work.op.words}: aborted, yet decided")
        failed = work.failures != self.failed.get(work.decider, 0)
        check(failed, f"{work.op.words}: aborted without a reason")
        self.abort(work, PartitionOffline)

    def commit_started(self, name: str) -> None:
        if name in self.stores:
            super().commit_started(name)
            self.deciding_now[name] = self.deciding.pop(name, [])
        else:
            self.namespace.started += 1
            self.namespace.flying, self.namespace.gathering = self.namespace.gathering, []

    def commit_finished(self, name: str) -> None:
        if name in self.stores:
            super().commit_finished(name)
            self.keep_decisions(name)
            for work in self.works.values():
                if work.staging.get(name, 1 << 62) <= self.stores[name].finished:
                    del work.staging[name]
            return
        namespace = self.namespace
        flying, namespace.flying = namespace.flying, None
        assert flying is not None
        namespace.finished = namespace.started
        namespace.keep(flying)
        namespace.to_do += flying

    def keep_decisions(self, name: str) -> None:
        """What a store decides with its commit under way is durable."""
        self.namespace.decided |= {work.number for work in self.deciding_now.pop(name, [])}

    def namespace_written(
        self, rows: dict[int, bool | None], producers: dict[tuple[int, str], int | None]
    ) -> None:
        """The bus is about to write rows of works: decided or not, or None where they go."""
        for number, decided in rows.items():
            work = self.namespace.known.get(number)
            if decided is None:
                if work is not None and work.number in self.works and not work.decided:
                    work.deciding = self.namespace.told
                    self.namespace.gathering.append(Written("drop", work))
                continue
            assert work is not None
            check(not work.staging, f"{work.op.words}: written before all of it was staged")
            kind = "decide" if decided else "record"
            work.deciding = self.namespace.told if decided else 0
            self.namespace.gathering.append(Written(kind, work, op=work.op))
        for key, batch in producers.items():
            kind = "no producer" if batch is None else "producer"
            self.namespace.gathering.append(Written(kind, None, key, batch or 0))

    def go_on(self, name: str) -> None:
        super().go_on(name)
        to_do, self.namespace.to_do = self.namespace.to_do, []
        if name not in self.stores:
            self.namespace.producers = dict(self.namespace.kept)
        for one in to_do:
            if one.work is not None and one.kind == "drop":
                self.drop(one.work)
        for one in to_do:
            if one.work is not None and one.kind == "decide":
                self.namespace.use_rules([one])
                if one.work.number not in self.later:
                    self.publish(one.work)
            elif one.work is not None and one.kind == "record":
                one.op.left = 0

    def next_steps(self, name: str) -> list[tuple[int, Callable[[], None]]]:
        """Add the works that are staged and that nothing can decide: they fail in their turn."""
        steps = super().next_steps(name)
        if self.namespace.online:
            return steps
        doubted = [one.work for one in self.namespace.in_doubt]
        return steps + [
            (work.turn, partial(self.abort, work, PartitionOffline))
            for work in self.works.values()
            if not (work.decider or work.staging or work.decided)
            and not (work.recorded or work in doubted)
        ]

    def drop(self, work: WorkModel) -> None:
        """What was staged goes: nobody chose it, or its lease is over."""
        if work.number not in self.works:
            return
        assert work.note is not None
        over = work.note.until <= self.time.now()
        check(over or work.passed_over, f"{work.op.words}: dropped, while it could be published")
        # The call that staged it succeeds: its row came first, in this commit at the latest.
        self.forget(work)

    def abort(self, work: WorkModel, error: type[OnibusError]) -> None:
        """Fail a multi-partition operation and discard its staged parts."""
        work.op.fail(error)
        self.forget(work)

    def forget(self, work: WorkModel) -> None:
        """Discard the staged parts of a multi-partition operation."""
        del self.works[work.number]
        for (entity, index), part in work.parts.items():
            kept = work.is_kept(entity.stores[index], part)
            if kept and self._is_there(entity) and self.online(entity, index):
                self.unstage(entity, index, work.number)

    def unstage(self, entity: EntityModel, index: int, number: int) -> None:
        self.advance(entity, index)
        partition = self.part(entity, index)
        partition.staged.pop(number, None)
        outlets = [partition]
        if isinstance(partition, TopicPartition):
            outlets += partition.outlets.values()
        for outlet in outlets:
            outlet.unpin(number)
        self.advance(entity, index)

    def publish(self, work: WorkModel) -> None:
        """It is decided: every partition that is up does its part."""
        work.decided = True
        for entity, index in list(work.left):
            if not self._is_there(entity):
                work.op.tolerated.add(Unknown)
                del work.left[entity, index]
            elif not self.online(entity, index):
                work.op.fail(Unknown)
            else:
                self.publish_in_turn(entity, index, work.number)
        self._finished(work)

    def publish_later(self, numbers: list[int]) -> None:
        """The bus publishes these works, by its own numbers, after others had their turn."""
        self.later |= {self.namespace.known[one].number for one in numbers}

    def publish_now(self, number: int) -> None:
        """The bus publishes a work now, perhaps one that waited."""
        work = self.namespace.known.get(number)
        if work is not None and work.number in self.later:
            self.later.discard(work.number)
            self.publish(work)

    def publication_waits(self, publication: Publication) -> None:
        """The bus lets a part wait for its turn to be published."""
        self.publications[publication.work, publication.partition] = publication

    def publish_in_turn(self, entity: EntityModel, index: int, number: int) -> None:
        """Publish a part now, or when the bus does."""
        key = (self.namespace.bus_numbers[number], entity.uid * PARTITIONS_MAX + index)
        publication = self.publications.get(key)
        if publication not in self.waiting:
            self.came.discard(publication)
            self.publish_part(entity, index, number)
            return

        def publish() -> bool:
            work = self.works.get(number)
            if self.publications.get(key) is not publication:
                # Its store was reopened in between.
                return True
            if not self._is_there(entity):
                if work is not None:
                    work.op.tolerated.add(Unknown)
                    work.left.pop((entity, index), None)
                    self._finished(work)
            elif self.online(entity, index):
                self.publish_part(entity, index, number)
            elif work is not None:
                work.op.fail(Unknown)
            return True

        self.waiting[publication] = publish

    def publish_part(self, entity: EntityModel, index: int, number: int) -> None:
        self.advance(entity, index)
        staged, work = self.part(entity, index).staged, self.works.get(number)
        # The deciding store may have nothing of it staged.
        part = staged.pop(number) if number in staged else self.works[number].parts[entity, index]
        sent = self.carry_out(entity, index, part, Op("before") if work is None else work.op)
        if work is not None:
            work.sent += sent
            del work.left[entity, index]
            self._finished(work)

    def _finished(self, work: WorkModel) -> None:
        if not work.left and self.works.pop(work.number, None) is not None:
            work.op.left -= 1

    def _is_there(self, entity: EntityModel) -> bool:
        return self.entities.get(entity.name) is entity

    def delete(self, name: str) -> None:
        uid = self.entities[name].uid
        for work in list(self.works.values()):
            if work.decided or work.number in self.later:
                continue
            if work.note is not None and work.note.entity == uid:
                del self.works[work.number]
                work.op.fail(EntityNotFound)
        for op in self.ops:
            if op.publishes is not None and op.publishes[0] == uid:
                op.tolerated.add(Unknown)
        super().delete(name)

    # Faults

    def store_failed(self, name: str, kept: bool) -> None:
        if name in self.stores:
            super().store_failed(name, kept)
            self.failed[name] = self.failed.get(name, 0) + 1
            if kept:
                self.keep_decisions(name)
            self.deciding.pop(name, None)
            self.deciding_now.pop(name, None)
            for work in [one for one in self.works.values() if name in one.staging]:
                self.abort(work, PartitionOffline)
            return
        namespace = self.namespace
        lost = [*(namespace.flying or []), *namespace.gathering]
        if kept:
            namespace.keep(namespace.flying or [])
        namespace.online, namespace.flying, namespace.gathering = False, None, []
        for op in self.ops:
            if op.needs.get("namespace", 0) > namespace.finished and not op.answered:
                op.fail(Unknown)
        namespace.finished = namespace.started
        namespace.in_doubt += lost
        for one in lost:
            if one.kind in ("decide", "record"):
                one.op.fail(Unknown)

    def namespace_read(self) -> None:
        """The bus has read its entities again: rules that were in doubt hold if they are there."""
        self.namespace.use_rules(self.namespace.in_doubt)

    def namespace_opened(self) -> None:
        """The namespace's store is open again: what was in doubt is so no more."""
        namespace = self.namespace
        namespace.online = True
        namespace.producers = dict(namespace.kept)
        doubted, namespace.in_doubt = namespace.in_doubt, []
        works = list(dict.fromkeys(one.work for one in doubted if one.work is not None))
        works.sort(key=lambda work: namespace.order(work.number))
        for work in works:
            work.deciding = 0
            if work.number in self.works and not (
                work.recorded or work.number in namespace.decided
            ):
                self.abort(work, Unknown)
        for work in works:
            if work.number in namespace.decided and not work.decided:
                self.publish(work)

    def works_opened(self, name: str) -> None:
        """A store was read back: what is decided is done, what nobody knows is forgotten."""
        for entity in self.logs():
            for index, place in enumerate(entity.stores):
                staged = sorted(entity.parts[index].staged, key=self.namespace.order)
                for number in staged if place == name else ():
                    work = self.works.get(number)
                    if work is not None and not work.decided:
                        continue
                    if number in self.namespace.decided:
                        self.publish_in_turn(entity, index, number)
                    else:
                        self.unstage(entity, index, number)

    def crashed(self, kept: dict[str, bool]) -> None:
        before = self.namespace
        if kept.get("namespace"):
            before.keep(before.flying or [])
        for name in [name for name in self.stores if kept.get(name)]:
            self.keep_decisions(name)
        self.deciding, self.deciding_now = {}, {}
        before.use_rules([*before.to_do, *(before.flying or []), *before.in_doubt])
        namespace = self.namespace = NamespaceModel()
        namespace.decided, namespace.kept = before.decided, before.kept
        namespace.orders, namespace.bus_numbers = before.orders, before.bus_numbers
        self.later, self.publications = set(), {}
        namespace.producers = dict(before.kept)
        self.works = {
            number: work
            for number, work in self.works.items()
            if work.recorded and number not in namespace.decided
        }
        for work in self.works.values():
            # The crash lost the pending decision: it waits to be published as before.
            work.deciding = 0
        namespace.known = {
            number: work for number, work in before.known.items() if work.number in self.works
        }
        super().crashed(kept)


def _change(outlet: PartitionModel, row: Row, change: Change, now: int) -> None:
    if change.verb in ("complete", "move"):
        del outlet.rows[row.ordinal]
        return
    row = changed(row, change.properties)
    if change.verb == "dead-letter":
        outlet.kill(row, "why", "so")
    else:
        outlet.give_back(row, now, change.delay, defer=change.verb == "defer")
