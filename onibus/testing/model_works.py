"""Works as the promises describe them: changes of several partitions, whole or not at all.

What is in one store is one commit. Otherwise a part is staged in each store, one row of the
namespace's own store decides, and each store carries its part out once that row is durable. Parts
are kept with their partitions (`PartitionModel.staged`), so a snapshot of a partition has them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from onibus.core.errors import OnibusError, PartitionOffline, Unknown
from onibus.testing.mismatch import check
from onibus.testing.model import PartitionModel, Prepared, Row, changed
from onibus.testing.model_commits import Commits
from onibus.testing.model_parts import EntityModel, Op
from onibus.testing.model_topics import TopicPartition

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


class WorkModel:
    """A work over several stores that is under way."""

    def __init__(self, number: int, parts: dict[Place, WorkPart], op: Op) -> None:
        self.number, self.parts, self.op = number, parts, op
        #: the commits that stage it: store → which
        self.staging: dict[str, int] = {}
        self.left = dict.fromkeys(parts)
        self.decided = False


class NamespaceModel:
    """What the namespace's own store has decided, and what is on its way to it."""

    def __init__(self) -> None:
        self.online = True
        self.decided: set[int] = set()
        self.gathering: list[WorkModel] = []
        self.flying: list[WorkModel] | None = None
        #: decided just now, or in doubt until the store is open again
        self.to_publish: list[WorkModel] = []
        self.in_doubt: list[WorkModel] = []
        #: works by the numbers that the bus has given them
        self.known: dict[int, WorkModel] = {}
        self.last_number = 0


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

    def do_work(self, op: Op, parts: dict[Place, WorkPart]) -> None:
        """Carry out a work at once where one store has all of it, or stage it."""
        for entity, index in parts:
            if not self.online(entity, index):
                raise PartitionOffline(entity.name)
        if len({entity.stores[index] for entity, index in parts}) == 1:
            for (entity, index), part in parts.items():
                self.carry_out(entity, index, part, op)
            op.left = 0
            return
        self.last_work += 1
        work = self.works[self.last_work] = WorkModel(self.last_work, parts, op)
        self.namespace.known[self.namespace.last_number] = work
        for (entity, index), part in parts.items():
            partition = self.part(entity, index)
            partition.staged[work.number] = part
            for change in part.changes:
                outlet = outlet_of(partition, change.uid)
                assert outlet is not None
                outlet.pin(outlet.rows[change.ordinal], work.number)
            store = entity.stores[index]
            work.staging[store] = self.stores[store].started + 1

    def carry_out(self, entity: EntityModel, index: int, part: WorkPart, op: Op) -> None:
        """Do what a part says to its partition."""
        partition = self.part(entity, index, op)
        now, wall = self.time.now(), self.time.wall()
        for place, prepared in zip(part.places, part.batch, strict=True):
            op.value[place] = partition.send(prepared, now, wall)
        partition.arrived(now, wall)
        for change in part.changes:
            outlet = outlet_of(partition, change.uid)
            if outlet is not None:
                _change(outlet, outlet.rows[change.ordinal], change, now)

    # The steps of a work over several stores

    def commit_started(self, name: str) -> None:
        if name in self.stores:
            super().commit_started(name)
        else:
            self.namespace.flying, self.namespace.gathering = self.namespace.gathering, []

    def commit_finished(self, name: str) -> None:
        if name in self.stores:
            super().commit_finished(name)
            for work in self.works.values():
                if work.staging.get(name, 1 << 62) <= self.stores[name].finished:
                    del work.staging[name]
            return
        flying, self.namespace.flying = self.namespace.flying, None
        assert flying is not None
        self.namespace.decided |= {work.number for work in flying}
        self.namespace.to_publish += flying

    def namespace_written(self, numbers: list[int]) -> None:
        """The bus is about to decide works, those with these numbers of its own."""
        for number in numbers:
            work = self.namespace.known[number]
            check(not work.staging, f"{work.op.words}: decided before all of it was staged")
            self.namespace.gathering.append(work)

    def go_on(self, name: str) -> None:
        super().go_on(name)
        for work in [one for one in self.works.values() if not (one.staging or one.decided)]:
            if not self.namespace.online and work not in self.namespace.in_doubt:
                self.abort(work, PartitionOffline)
        chosen, self.namespace.to_publish = self.namespace.to_publish, []
        for work in chosen:
            self.publish(work)

    def abort(self, work: WorkModel, error: type[OnibusError]) -> None:
        """A work will not happen: what was staged of it is forgotten."""
        del self.works[work.number]
        work.op.fail(error)
        for entity, index in work.parts:
            if self._is_there(entity) and self.online(entity, index):
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
                self.publish_part(entity, index, work.number)
        self._finished(work)

    def publish_part(self, entity: EntityModel, index: int, number: int) -> None:
        self.advance(entity, index)
        part = self.part(entity, index).staged.pop(number)
        work = self.works.get(number)
        op = Op("a work of before") if work is None else work.op
        if work is None:
            op.value = [None] * 1_000
        self.carry_out(entity, index, part, op)
        if work is not None:
            del work.left[entity, index]
            self._finished(work)

    def _finished(self, work: WorkModel) -> None:
        if not work.left and self.works.pop(work.number, None) is not None:
            work.op.left = 0

    def _is_there(self, entity: EntityModel) -> bool:
        return self.entities.get(entity.name) is entity

    # Faults

    def store_failed(self, name: str, kept: bool) -> None:
        if name in self.stores:
            super().store_failed(name, kept)
            for work in [one for one in self.works.values() if name in one.staging]:
                self.abort(work, PartitionOffline)
            return
        namespace = self.namespace
        flying, gathering = namespace.flying or [], namespace.gathering
        if kept:
            namespace.decided |= {work.number for work in flying}
        namespace.online, namespace.flying, namespace.gathering = False, None, []
        namespace.in_doubt += [*flying, *gathering]
        for work in (*flying, *gathering):
            work.op.fail(Unknown)

    def namespace_opened(self) -> None:
        """The namespace's store is open again: what was in doubt is so no more."""
        self.namespace.online = True
        works, self.namespace.in_doubt = self.namespace.in_doubt, []
        for work in works:
            if work.number not in self.namespace.decided:
                self.abort(work, Unknown)
        for work in works:
            if work.number in self.namespace.decided:
                self.publish(work)

    def works_opened(self, name: str) -> None:
        """A store was read back: what is decided is done, what nobody knows is forgotten."""
        for entity in self.logs():
            for index, place in enumerate(entity.stores):
                for number in sorted(entity.parts[index].staged) if place == name else ():
                    work = self.works.get(number)
                    if work is not None and not work.decided:
                        continue
                    if number in self.namespace.decided:
                        self.publish_part(entity, index, number)
                    else:
                        self.unstage(entity, index, number)

    def crashed(self, kept: dict[str, bool], *given: Any) -> None:
        namespace = self.namespace
        if kept.get("namespace"):
            namespace.decided |= {work.number for work in namespace.flying or ()}
        decided, self.namespace = namespace.decided, NamespaceModel()
        self.namespace.decided = decided
        self.works = {}
        super().crashed(kept, *given)


def _change(outlet: PartitionModel, row: Row, change: Change, now: int) -> None:
    if change.verb in ("complete", "move"):
        del outlet.rows[row.ordinal]
        return
    row = changed(row, change.properties)
    if change.verb == "dead-letter":
        outlet.kill(row, "why", "so")
    else:
        outlet.give_back(row, now, change.delay, defer=change.verb == "defer")
