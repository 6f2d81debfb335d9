"""Staged sends as the promises describe them: published once, whatever is retried (R6)."""

from __future__ import annotations

from collections.abc import Sequence

from onibus.core.errors import BatchChanged, BatchTooOld, Busy, NotStaged, PartitionOffline
from onibus.core.message import Message
from tests.simulator.model_bus import BusModel
from tests.simulator.model_parts import EntityModel, Op
from tests.simulator.model_rows import prepare
from tests.simulator.model_works import Note, WorkModel, WorkPart


class ProducersModel(BusModel):
    """The whole bus, with producers that stage and publish."""

    def stage_for(
        self,
        op: Op,
        name: str,
        messages: Sequence[Message],
        note: Note,
    ) -> None:
        """Keep messages for their producer."""
        entity = self.sendable(name)
        batch = [prepare(message, entity.settings) for message in messages]
        routed = self.route(entity, batch)
        self._not_too_old(entity, note.producer, note.batch)
        parts = {
            (entity, index): WorkPart([batch[place] for place in places], places)
            for index, places in routed.items()
        }
        op.value = None
        self.stage(op, parts, note)

    def _not_too_old(self, entity: EntityModel, producer: str, batch: int) -> int:
        last = self.namespace.producers.get((entity.uid, producer), -1)
        if batch < last:
            raise BatchTooOld(producer)
        return last

    def _staged(self, op: Op, key: tuple[int, str, int]) -> list[WorkModel]:
        """Return what a producer has staged of a batch, and of those before it."""
        found = []
        for work in self.works.values():
            note = work.note
            if note is None or work.staging or work.decided:
                continue
            if 0 < work.deciding <= op.begun_at:
                continue
            if (note.entity, note.producer) == key[:2] and note.batch <= key[2]:
                found.append(work)
        return found

    def _same(self, op: Op, key: tuple[int, str, int], attempts: list[tuple[int, int]]) -> None:
        """Refuse rows that are not those that were published under that number."""
        staged = _by_attempt(self._staged(op, key), key[2])
        content, published = self.contents[key]
        there = [attempt in staged for attempt in attempts]
        if attempts == published and not any(there):
            return
        if not all(there):
            raise NotStaged(key[1])
        if _content([staged[attempt] for attempt in attempts]) != content:
            raise BatchChanged(key[1])

    def publish_batch(
        self,
        op: Op,
        name: str,
        producer: str,
        batch: int,
        attempts: Sequence[tuple[int, int]],
    ) -> None:
        """Make what the named attempts staged visible."""
        entity = self.sendable(name)
        key = (entity.uid, producer, batch)
        if self._not_too_old(entity, producer, batch) == batch:
            self._same(op, key, list(attempts))
            op.resolve(None)
            op.outcome = lambda: (0, 0, True)
            return
        op.publishes = (entity.uid, producer)
        if any(other.publishes == op.publishes for other in self.ops if other is not op):
            op.publishes = None
            raise Busy(producer)
        if not self.namespace.online:
            op.publishes = None
            raise PartitionOffline(producer)
        passed_over = self._staged(op, key)
        staged = _by_attempt(passed_over, batch)
        if any(attempt not in staged for attempt in attempts):
            op.publishes = None
            raise NotStaged(producer)
        chosen = [staged[attempt] for attempt in attempts]
        self.contents[key] = (_content(chosen), list(attempts))
        for work in passed_over:
            work.passed_over = work not in chosen
        op.left = len(chosen)
        op.needs["namespace"] = self.namespace.last_commit
        for work in chosen:
            work.op = op
        op.value = None
        op.outcome = lambda: _count(chosen)


def _by_attempt(works: list[WorkModel], batch: int) -> dict[tuple[int, int], WorkModel]:
    notes = [(work.note, work) for work in works if work.note is not None]
    return {(note.task, note.attempt): work for note, work in notes if note.batch == batch}


def _content(works: list[WorkModel]) -> list[bytes]:
    return sorted(one for work in works if work.note is not None for one in work.note.content)


def _count(works: list[WorkModel]) -> tuple[int, int, bool]:
    sent = [one for work in works for one in work.sent]
    dropped = sum(duplicate is not None for _, duplicate in sent)
    return len(sent) - dropped, dropped, False
