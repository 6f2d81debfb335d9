"""Seeded producers: they stage, publish, retry, and now and then come with an old batch (R6)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from onibus.core.arrow_block import SCHEMA, columns_of
from onibus.core.message import Message, encode
from onibus.directory.producers import Note
from onibus.gateway.broker import Broker
from onibus.gateway.bulk_sending import Admission
from onibus.shard.runner import run
from tests.simulator.client_parts import brief
from tests.simulator.model_works import Note as NoteModel
from tests.simulator.transactions import Transactions

PRODUCERS = ("p", "q")


def _in_columns(broker: Broker, name: str, messages: list[Message]) -> Admission:
    """Admit messages as columns, whose rows are staged as blocks."""
    batch = pa.RecordBatch.from_arrays(columns_of(messages), schema=SCHEMA)
    admission = Admission(broker, name, batch, to_stage=True)
    admission.admit()
    return admission


Attempts = dict[tuple[int, int], list[Message]]


class Producing(Transactions):
    """Draws what producers do."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        #: the batch that each producer works on, and what it knows to be staged
        self.batches: dict[tuple[str, str], int] = {}
        self.attempts: dict[tuple[str, str], Attempts] = {}
        #: the attempts that it named last
        self.named: dict[tuple[str, str], Attempts] = {}

    def stage(self) -> None:
        """Stage what a task has; the same attempt comes once."""
        name = self.target()
        key = (name, self.random.choice(PRODUCERS))
        batch = self.batches.setdefault(key, 1)
        known = self.attempts.setdefault(key, {})
        attempt = (self.random.randrange(3), self.bodies)
        messages = [self.message(name) for _ in range(self.random.randrange(1, 4))]
        if self.random.random() < 0.05:
            batch = max(batch - 2, 0)
        else:
            known[attempt] = messages
        self._stage(key, batch, attempt, messages)

    def _stage(
        self,
        key: tuple[str, str],
        batch: int,
        attempt: tuple[int, int],
        messages: list[Message],
    ) -> None:
        sim, (name, producer) = self.sim, key
        lease = self.random.choice((1_000, 60_000, 3_600_000))
        told = Note(0, producer, batch, *attempt, 0, 0, 0)
        entity = sim.model.entities.get(name)
        until = sim.model.time.now() + lease
        content = tuple(map(encode, messages))
        note = NoteModel(entity.uid if entity else 0, producer, batch, *attempt, until, content)

        def stage(reply: Any) -> None:
            given = _in_columns(sim.broker, name, messages) if attempt[1] % 2 else messages
            run(sim.broker.producers.stage(name, given, told, lease), reply)

        sim.do(
            f"stage {name} {producer} {batch} {attempt} {[brief(message) for message in messages]}",
            stage,
            lambda op: sim.model.stage_for(op, name, messages, note),
        )

    def publish(self) -> None:
        """Publish the next batch; then perhaps again, as after a lost answer, or an older one."""
        if not self.batches:
            return
        key = self.random.choice(list(self.batches))
        batch, known = self.batches[key], self.attempts[key]
        # Of each task one attempt is chosen, as Spark does; sometimes one that was never staged.
        attempts = list(dict(known.keys()).items()) if self.random.random() < 0.95 else [(7, 7)]
        self.batches[key] += 1
        self.attempts[key] = {}
        self.named[key] = {attempt: known.get(attempt, []) for attempt in attempts}
        self._publish(key, batch, attempts)
        if self.random.random() < 0.4:
            self.sim.finish_all()
            if self.random.random() < 0.5:
                attempts = self._stage_again(key, batch)
            self._publish(key, max(batch - self.random.choice((0, 0, 1, 2)), 0), attempts)

    def _stage_again(self, key: tuple[str, str], batch: int) -> list[tuple[int, int]]:
        """Stage what was published once more, as a job does that was started again.

        The rows come in another order and from another task; sometimes they are not the same.
        """
        messages = [message for given in self.named[key].values() for message in given][::-1]
        if self.random.random() < 0.3:
            messages = messages[1:] if self.random.random() < 0.5 else [*messages, *messages[:1]]
        if not messages:
            return []
        attempt = (self.random.randrange(3), self.bodies)
        self.bodies += 1
        self._stage(key, batch, attempt, messages)
        self.sim.finish_all()
        return [attempt]

    def publish_again(self) -> None:
        """A job that does not know whether its last batch was published does it again."""
        for key, batch in self.batches.items():
            if self.random.random() < 0.5:
                self._publish(key, max(batch - 1, 0), list(self.named.get(key, {})))

    def _publish(self, key: tuple[str, str], batch: int, attempts: list[tuple[int, int]]) -> None:
        sim, (name, producer) = self.sim, key
        sim.do(
            f"publish {name} {producer} {batch} {attempts}",
            lambda reply: run(sim.broker.producers.publish(name, producer, batch, attempts), reply),
            lambda op: sim.model.publish_batch(op, name, producer, batch, attempts),
        )
