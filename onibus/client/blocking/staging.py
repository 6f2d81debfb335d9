"""Staged sends: messages kept invisible until their producer publishes them (R6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from onibus.api.delivery import Counted
from onibus.api.staging import Forgotten, ProducerInfo, Producers, Published, Staged, StagedOut
from onibus.client.asking import get, path_of, post, post_arrow, without_none
from onibus.client.blocking.caller import Caller
from onibus.client.convert import arrow_bytes, message_json
from onibus.core.limits import STAGED_LEASE_MS_DEFAULT
from onibus.core.message import Message

if TYPE_CHECKING:
    import pyarrow as pa


class StagingCalls(Caller):
    """What a producer of batches does."""

    def stage(
        self,
        entity: str,
        messages: Sequence[Message],
        *,
        producer: str,
        batch: int,
        task: int,
        attempt: int,
        piece: int = 0,
        lease_ms: int = STAGED_LEASE_MS_DEFAULT,
    ) -> None:
        """Keep messages, invisible and without numbers, until their producer publishes them.

        None is given an id: one that is staged again must be the same.
        """
        body = {"messages": [message_json(one) for one in messages]}
        whose = _whose(producer, batch, task, attempt, piece, lease_ms)
        self.answer(post(path_of("entities", entity, "staged"), body, query=whose))

    def stage_arrow(
        self,
        entity: str,
        rows: pa.RecordBatch | pa.Table,
        *,
        producer: str,
        batch: int,
        task: int,
        attempt: int,
        piece: int = 0,
        lease_ms: int = STAGED_LEASE_MS_DEFAULT,
    ) -> None:
        """Keep rows in Arrow as `stage` keeps messages."""
        whose = _whose(producer, batch, task, attempt, piece, lease_ms)
        self.stage_stream(entity, arrow_bytes(rows), whose)

    def stage_stream(self, entity: str, stream: bytes, whose: Mapping[str, str]) -> None:
        """Keep rows that are an Arrow IPC stream already, as they are: none is given an id.

        `whose` has producer, batch, task, attempt, piece and lease_ms, as texts.
        """
        self.answer(post_arrow(path_of("entities", entity, "staged"), stream, query=whose))

    def staged(self, entity: str) -> list[Staged]:
        """Return what is staged and not published."""
        told: StagedOut = self.ask(get(path_of("entities", entity, "staged")), StagedOut)
        return told.staged

    def publish(
        self,
        entity: str,
        *,
        producer: str,
        batch: int,
        attempts: Iterable[tuple[int, ...]],
        checkpoint: str | None = None,
        any_content: bool = False,
    ) -> Published:
        """Make what the named attempts staged visible, in their order, once; the rest goes.

        An attempt is (task, attempt), or (task, attempt, pieces). Publishing the producer's last
        batch again does nothing if its rows are the same, and is an error if they differ and
        `any_content` is false. An older batch is an error. A producer that names its checkpoint
        counts from 0 without a gap, and another checkpoint under its name is an error.
        """
        named = [list(attempt) for attempt in attempts]
        body = without_none(
            producer=producer,
            batch=batch,
            attempts=named,
            checkpoint=checkpoint,
            any_content=any_content or None,
        )
        ask = post(path_of("entities", entity, "staged", "publish"), body)
        told: Published = self.ask(ask, Published)
        return told

    def discard(self, entity: str, *, producer: str, batch: int | None = None) -> int:
        """Forget what a producer has staged, of one batch or of all; return how many pieces."""
        body = without_none(producer=producer, batch=batch)
        told: Counted = self.ask(
            post(path_of("entities", entity, "staged", "discard"), body), Counted
        )
        return told.count

    def producers(self, entity: str) -> list[ProducerInfo]:
        """Return who has published to an entity, and how far each has come."""
        told: Producers = self.ask(get(path_of("entities", entity, "producers")), Producers)
        return told.producers

    def forget_producer(self, entity: str, producer: str) -> bool:
        """Forget how far a producer has come, and what it staged; return whether it was known.

        Its next batch is published whatever its number, as if it had never been there.
        """
        ask = post(path_of("entities", entity, "producers", producer), method="DELETE")
        told: Forgotten = self.ask(ask, Forgotten)
        return told.known


def _whose(
    producer: str, batch: int, task: int, attempt: int, piece: int, lease_ms: int
) -> dict[str, str]:
    """Return the query that tells whose rows these are."""
    numbers = {"batch": batch, "task": task, "attempt": attempt, "piece": piece}
    told = {name: str(value) for name, value in numbers.items()}
    return told | {"producer": producer, "lease_ms": str(lease_ms)}
