"""Staged sends: messages that stay invisible until their producer publishes them (R6)."""

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
    """Operations of a producer of batches."""

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
        """Stage messages, without sequence numbers, until their producer publishes them.

        The client generates no ids: a message staged again must be the same.
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
        """Stage Arrow rows as `stage` does messages."""
        whose = _whose(producer, batch, task, attempt, piece, lease_ms)
        self.stage_stream(entity, arrow_bytes(rows), whose)

    def stage_stream(self, entity: str, stream: bytes, whose: Mapping[str, str]) -> None:
        """Stage rows that are already an Arrow IPC stream, unchanged; the client generates no ids.

        `whose` has producer, batch, task, attempt, piece and lease_ms, as strings.
        """
        self.answer(post_arrow(path_of("entities", entity, "staged"), stream, query=whose))

    def staged(self, entity: str) -> list[Staged]:
        """Return the staged pieces that are not published."""
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
        """Publish the rows of the named attempts, in their order, exactly once; delete the others.

        An attempt is (task, attempt), or (task, attempt, pieces). Publishing the producer's last
        batch again has no effect if its rows are the same. If they differ it is an error, unless
        `any_content` is true. An older batch is an error. The batches of a producer that names its
        checkpoint count from 0 without a gap; a different checkpoint under its name is an error.
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
        """Delete the staged rows of a producer, of one batch or of all; return how many pieces."""
        body = without_none(producer=producer, batch=batch)
        told: Counted = self.ask(
            post(path_of("entities", entity, "staged", "discard"), body), Counted
        )
        return told.count

    def producers(self, entity: str) -> list[ProducerInfo]:
        """Return the producers of an entity, and the progress of each."""
        told: Producers = self.ask(get(path_of("entities", entity, "producers")), Producers)
        return told.producers

    def forget_producer(self, entity: str, producer: str) -> bool:
        """Reset a producer's progress and delete its staged rows; return whether it existed.

        Its next batch is published whatever its number.
        """
        ask = post(path_of("entities", entity, "producers", producer), method="DELETE")
        told: Forgotten = self.ask(ask, Forgotten)
        return told.known


def _whose(
    producer: str, batch: int, task: int, attempt: int, piece: int, lease_ms: int
) -> dict[str, str]:
    """Return the query that identifies the rows' producer."""
    numbers = {"batch": batch, "task": task, "attempt": attempt, "piece": piece}
    told = {name: str(value) for name, value in numbers.items()}
    return told | {"producer": producer, "lease_ms": str(lease_ms)}
