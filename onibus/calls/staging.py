"""Atomic operations: transactions, resubmissions and staged sends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onibus.api.delivery import MOVES_MAX, Resubmitted
from onibus.api.staging import ProducerInfo, Published, Staged
from onibus.calls.caller import Caller
from onibus.core.checks import check_whole
from onibus.core.errors import InvalidArgument
from onibus.core.inspection import Filter
from onibus.core.lifecycle import State
from onibus.core.limits import STAGED_LEASE_MS_DEFAULT
from onibus.core.message import Message
from onibus.directory.producers import Note
from onibus.gateway.resubmitting import NO_LIMIT, Resubmission
from onibus.shard.replies import Reply
from onibus.shard.runner import run
from onibus.transaction import Transaction

if TYPE_CHECKING:
    import pyarrow as pa


class StagingCalls(Caller):
    """Operations on several partitions at once."""

    def transaction(self) -> Transaction:
        """Begin a transaction, whose sends and settlements happen atomically."""
        self.check_alive()
        return Transaction(self, self.broker.namespace.quotas.transaction_messages)

    async def resubmit(
        self,
        entity: str,
        numbers: Sequence[int] | None = None,
        *,
        where: Filter | None = None,
        to: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Resubmitted:
        """Resubmit dead-lettered messages, to their own entity or another one.

        Select them by sequence number, atomically, or by a filter. A message whose MessageId is
        still recorded gets a new one. With a `limit`, the call ends once that many messages were
        resubmitted or rejected.
        """
        if limit is not None:
            check_whole("limit", limit, 1)
        most = NO_LIMIT if limit is None else limit
        return await self._resubmit(entity, numbers, where, to, dry_run, most=most)

    async def move(
        self,
        entity: str,
        to: str,
        numbers: Sequence[int] | None = None,
        *,
        where: Filter | None = None,
        limit: int = MOVES_MAX,
        dry_run: bool = False,
    ) -> Resubmitted:
        """Move active messages that no receiver holds to another queue or topic.

        Select them by sequence number, atomically, or by a filter. A message whose MessageId is
        recorded at the destination gets a new one.
        """
        check_whole("limit", limit, 1, MOVES_MAX)
        return await self._resubmit(entity, numbers, where, to, dry_run, State.ACTIVE, limit)

    async def _resubmit(
        self,
        entity: str,
        numbers: Sequence[int] | None,
        where: Filter | None,
        to: str | None,
        dry_run: bool,
        state: State = State.DEAD_LETTERED,
        most: int = NO_LIMIT,
    ) -> Resubmitted:
        if (numbers is None) == (where is None):
            raise InvalidArgument("choose the messages: pass numbers, or a filter as `where`")

        def command(reply: Reply) -> None:
            source = self.broker.find(entity)
            source.outlet_settings()
            resubmission = Resubmission(self.broker, source, to, dry_run, state, most)
            if numbers is not None:
                run(resubmission.by_numbers(numbers), reply)
            elif where is not None:
                run(resubmission.by_filter(where), reply)

        result: Resubmitted = await self.ask(command)
        return result

    async def stage(
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

        A task may stage its rows in pieces, numbered from 0. Unpublished rows are deleted when
        their lease expires.
        """
        note = Note(0, producer, batch, task, attempt, piece, 0, 0)
        await self.ask(
            lambda reply: run(self.broker.producers.stage(entity, messages, note, lease_ms), reply)
        )

    async def stage_arrow(
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
        """Stage the rows of an Arrow batch as `stage` does messages."""
        note = Note(0, producer, batch, task, attempt, piece, 0, 0)
        admission = await self.admit_arrow(entity, rows, to_stage=True)
        await self.ask(
            lambda reply: run(self.broker.producers.stage(entity, admission, note, lease_ms), reply)
        )

    async def publish(
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
        named = list(attempts)
        result: Published = await self.ask(
            lambda reply: run(
                self.broker.producers.publish(
                    entity, producer, batch, named, checkpoint, any_content
                ),
                reply,
            )
        )
        return result

    async def discard(self, entity: str, *, producer: str, batch: int | None = None) -> int:
        """Delete the staged rows of a producer, of one batch or of all; return how many pieces."""
        count: int = await self.ask(
            lambda reply: run(self.broker.producers.discard(entity, producer, batch), reply)
        )
        return count

    def staged(self, entity: str) -> list[Staged]:
        """Return the staged pieces that are not published."""
        return self.tell(lambda: self.broker.producers.staged(entity))

    def producers(self, entity: str) -> list[ProducerInfo]:
        """Return the producers of an entity, and the progress of each."""
        return self.tell(lambda: self.broker.producers.known(entity))

    async def forget_producer(self, entity: str, producer: str) -> bool:
        """Reset a producer's progress and delete its staged rows; return whether it existed.

        Its next batch is published whatever its number.
        """
        known: bool = await self.ask(
            lambda reply: run(self.broker.producers.forget_one(entity, producer), reply)
        )
        return known
