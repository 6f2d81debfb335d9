"""Staged sends as the promises describe them: published once, whatever is retried (R6)."""

from __future__ import annotations

from collections.abc import Sequence

from onibus.core.errors import BatchTooOld, Busy, NotStaged, PartitionOffline
from onibus.core.message import Message
from onibus.testing.model_bus import BusModel
from onibus.testing.model_parts import EntityModel, Op
from onibus.testing.model_rows import prepare
from onibus.testing.model_works import Note, WorkModel, WorkPart


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
        if self._not_too_old(entity, producer, batch) == batch:
            op.resolve(None)
            op.outcome = lambda: (0, 0, True)
            return
        op.publishes = (entity.uid, producer)
        if any(other.publishes == op.publishes for other in self.ops if other is not op):
            op.publishes = None
            raise Busy(producer)
        staged: dict[tuple[int, int], WorkModel] = {}
        passed_over = []
        for work in self.works.values():
            note = work.note
            if note is None or work.staging or work.decided:
                continue
            if 0 < work.deciding <= op.begun_at:
                continue
            if (note.entity, note.producer) == op.publishes and note.batch <= batch:
                passed_over.append(work)
                if note.batch == batch:
                    staged[note.task, note.attempt] = work
        if any(attempt not in staged for attempt in attempts):
            op.publishes = None
            raise NotStaged(producer)
        if not self.namespace.online:
            op.publishes = None
            raise PartitionOffline(producer)
        chosen = [staged[attempt] for attempt in attempts]
        for work in passed_over:
            work.passed_over = work not in chosen
        op.left = len(chosen)
        op.needs["namespace"] = self.namespace.last_commit
        for work in chosen:
            work.op = op
        op.value = None
        op.outcome = lambda: _count(chosen)


def _count(works: list[WorkModel]) -> tuple[int, int, bool]:
    sent = [one for work in works for one in work.sent]
    dropped = sum(duplicate is not None for _, duplicate in sent)
    return len(sent) - dropped, dropped, False
