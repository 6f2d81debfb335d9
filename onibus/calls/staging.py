"""What happens whole or not at all: transactions, resubmissions, staged sends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onibus.api.delivery import Resubmitted
from onibus.api.staging import ProducerInfo, Published, Staged
from onibus.broker.producers import Note
from onibus.broker.replies import Reply
from onibus.broker.resubmitting import Resubmission
from onibus.calls.caller import Caller
from onibus.core.errors import InvalidArgument
from onibus.core.inspection import Filter
from onibus.core.limits import STAGED_LEASE_MS_DEFAULT
from onibus.core.message import Message
from onibus.transaction import Transaction

if TYPE_CHECKING:
    import pyarrow as pa


class StagingCalls(Caller):
    """What touches several partitions at once."""

    def transaction(self) -> Transaction:
        """Begin a transaction: what is sent and settled in it happens whole or not at all."""
        self.check_alive()
        return Transaction(self, self.broker.namespace.quotas.transaction_messages)

    async def resubmit(
        self,
        entity: str,
        numbers: Sequence[int] | None = None,
        *,
        where: Filter | None = None,
        to: str | None = None,
        dry_run: bool = False,
    ) -> Resubmitted:
        """Send dead letters again, to where they came from or to another entity.

        By their numbers, all or none; or all that a filter means. Where a MessageId is still
        remembered the message gets a new one.
        """
        if (numbers is None) == (where is None):
            raise InvalidArgument("say which dead letters: give numbers, or a filter as `where`")

        def command(reply: Reply) -> None:
            source = self.broker.find(entity)
            source.outlet_settings()
            resubmission = Resubmission(self.broker, source, to, dry_run, reply)
            if numbers is not None:
                resubmission.by_numbers(numbers)
            elif where is not None:
                resubmission.by_filter(where)

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
        """Keep messages, invisible and without numbers, until their producer publishes them.

        A task that has much may stage it in pieces, numbered from 0. What is not published within
        its lease goes.
        """
        note = Note(0, producer, batch, task, attempt, piece, 0, 0)
        await self.ask(
            lambda reply: self.broker.producers.stage(entity, messages, note, lease_ms, reply)
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
        """Keep the rows of a batch in Arrow as `stage` keeps messages."""
        note = Note(0, producer, batch, task, attempt, piece, 0, 0)
        admission = await self._admit_arrow(entity, rows, to_stage=True)
        await self.ask(
            lambda reply: self.broker.producers.stage(entity, admission, note, lease_ms, reply)
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
        """Make what the named attempts staged visible, in their order, once; the rest goes.

        An attempt is (task, attempt), or (task, attempt, pieces). Publishing the producer's last
        batch again does nothing if its rows are the same, and is an error if they differ and
        `any_content` is false. An older batch is an error. A producer that names its checkpoint
        counts from 0 without a gap, and another checkpoint under its name is an error.
        """
        named = list(attempts)
        result: Published = await self.ask(
            lambda reply: self.broker.producers.publish(
                entity, producer, batch, named, reply, checkpoint, any_content
            )
        )
        return result

    async def discard(self, entity: str, *, producer: str, batch: int | None = None) -> int:
        """Forget what a producer has staged, of one batch or of all; return how many pieces."""
        count: int = await self.ask(
            lambda reply: self.broker.producers.discard(entity, producer, batch, reply)
        )
        return count

    def staged(self, entity: str) -> list[Staged]:
        """Return what is staged and not published."""
        return self.tell(lambda: self.broker.producers.staged(entity))

    def producers(self, entity: str) -> list[ProducerInfo]:
        """Return who has published to an entity, and how far each has come."""
        return self.tell(lambda: self.broker.producers.known(entity))

    async def forget_producer(self, entity: str, producer: str) -> bool:
        """Forget how far a producer has come, and what it staged; return whether it was known.

        Its next batch is published whatever its number, as if it had never been there.
        """
        known: bool = await self.ask(
            lambda reply: self.broker.producers.forget_one(entity, producer, reply)
        )
        return known
