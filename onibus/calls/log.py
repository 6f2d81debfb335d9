"""Calls of the bus that read the log and outcomes, manage named readers and replay messages.

    positions = bus.log_positions("orders")
    async for batch in bus.read_log("orders", 0, positions.earliest[0], positions.latest[0]):
        table = pyarrow.Table.from_batches([batch])

An entity retains completed messages for its `retention_ms`, and until its named readers have read
them. core/log_batch.py documents the columns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from onibus.api.log import LogPositions, ReaderInfo, ReaderReport
from onibus.calls.caller import Caller
from onibus.core.inspection import Filter
from onibus.directory import readers
from onibus.directory.named_reader import MESSAGES
from onibus.gateway import read_planning, replaying
from onibus.gateway.reading import LogReading, OutcomeReading
from onibus.shard.replies import Reply
from onibus.shard.runner import run

if TYPE_CHECKING:
    import pyarrow as pa


class LogCalls(Caller):
    """Operations on logs."""

    def log_positions(
        self, entity: str, *, log: str = MESSAGES, since_ms: int | None = None
    ) -> LogPositions:
        """Return the range of sequence numbers that each partition's log can be read from.

        `log` is messages or outcomes. With `since_ms`, also return the first sequence number of
        that time or later.
        """
        return self.tell(lambda: readers.positions_of(self.broker, entity, log, since_ms))

    async def plan_read(
        self,
        entity: str,
        positions: Sequence[int],
        *,
        log: str = MESSAGES,
        until: Sequence[int] | None = None,
        limit: int | None = None,
        limit_bytes: int | None = None,
        since_ms: int | None = None,
        wait_ms: int = 0,
        incarnation: int | None = None,
    ) -> LogPositions:
        """Return the ends of the log, and in `until` those of a read from `positions`.

        Wait up to `wait_ms` for the first row. `limit` and `limit_bytes` bound the rows, and the
        bytes of messages, of all partitions together; such a read ends at about the same time in
        each. It does not pass the numbers in `until`. `incarnation` rejects a recreated entity.
        """
        planned: LogPositions = await self.ask(
            lambda reply: read_planning.plan(
                self.broker, entity, positions, reply,
                log=log, until=until, limit=limit, limit_bytes=limit_bytes,
                since_ms=since_ms, wait_ms=wait_ms, incarnation=incarnation,
            )
        )  # fmt: skip
        return planned

    def log_reach(self, entity: str, partition: int, start: int, limit_bytes: int) -> int:
        """Return the end of a range from `start`, exclusive, with that many bytes of messages.

        The range has at least one message, if there is one.
        """
        return self.tell(
            lambda: readers.reach_of(self.broker, entity, partition, start, limit_bytes)
        )

    def read_log(
        self,
        entity: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        incarnation: int | None = None,
        reader: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        limit_bytes: int | None = None,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Return the rows of a partition between two sequence numbers, the end exclusive (R3).

        Repeated reads return the same rows, in order and complete; a missing row raises LogGap.
        Without `end`, read up to the current end. `limit` bounds the number of rows. `limit_bytes`
        bounds their bytes, though the first block is always returned. `incarnation` rejects a
        recreated entity; `reader` counts as a use of that named reader, and raises its losses.
        """
        # pyarrow is slow to import: load it on first use.
        from onibus.core.log_batch import BatchMaker, schema_of

        schema = schema_of(columns)
        reading = self.tell(
            lambda: LogReading(self.broker, entity, partition, incarnation, reader).between(
                start, end, limit, limit_bytes
            )
        )
        make = BatchMaker(partition, reading.partition.numbering, schema)
        return self._read(lambda reply: reading.next_slice(make, reply))

    def read_outcomes(
        self,
        entity: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        incarnation: int | None = None,
        reader: str | None = None,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Return the outcomes of messages between two numbers, the end exclusive (R4).

        Of a queue or a subscription; of a topic, the outcomes of its scheduled messages.
        """
        from onibus.core.log_batch import outcome_batch

        reading = self.tell(
            lambda: OutcomeReading(self.broker, entity, partition, incarnation, reader).between(
                start, end
            )
        )
        numbering, below = reading.partition.numbering, reading.end
        return self._read(
            lambda reply: reading.next_slice(
                lambda rows: [outcome_batch(rows, start, below, numbering)], reply
            )
        )

    async def _read(self, next_slice: Callable[[Reply], None]) -> AsyncIterator[pa.RecordBatch]:
        while (batches := await self.ask(next_slice)) is not None:
            for batch in batches:
                yield batch

    # Named readers

    async def create_reader(
        self,
        entity: str,
        name: str,
        *,
        log: str = MESSAGES,
        start: str | Sequence[int] = readers.EARLIEST,
        idle_ms: int | None = None,
        token: str | None = None,
        address: str | None = None,
    ) -> ReaderInfo:
        """Create a named reader of a log: the broker retains rows until it has read them (R2).

        `log` is messages or outcomes. The reader starts at the earliest complete row, at the latest
        (rows from now on), or at a number for each partition. A reader unused for `idle_ms` is
        removed. With a `token`, only calls with that token move it. `address` describes the program
        that reads.
        """
        info: ReaderInfo = await self.ask(
            lambda reply: readers.create(
                self.broker, entity, name, log, start, idle_ms, reply, token, address
            )
        )
        return info

    async def take_reader(
        self,
        entity: str,
        name: str,
        *,
        held: Sequence[str] = (),
        token: str | None = None,
        address: str | None = None,
        idle_ms: int | None = None,
    ) -> ReaderInfo:
        """Take a reader over: from then on only calls with the new token move it.

        If the reader has a token, pass it in `held`, or as `token`. None leaves a value unchanged.
        """
        info: ReaderInfo = await self.ask(
            lambda reply: readers.take(
                self.broker, entity, name, reply,
                held=held, token=token, address=address, idle_ms=idle_ms,
            )
        )  # fmt: skip
        return info

    async def move_reader(
        self,
        entity: str,
        name: str,
        positions: Sequence[int],
        incarnation: int,
        token: str | None = None,
    ) -> None:
        """Set a reader's position: the next sequence number in each partition, forward only."""
        await self.ask(
            lambda reply: readers.move(
                self.broker, entity, name, positions, incarnation, reply, token
            )
        )

    async def report_reader(self, entity: str, name: str, report: ReaderReport) -> None:
        """Report what the lake behind a reader has, or the verdict of its audit.

        The broker keeps the last reports with the reader and does not verify them. Only a server
        keeps a page.
        """
        await self.ask(lambda reply: readers.report(self.broker, entity, name, report, reply))

    def readers(self, entity: str) -> list[ReaderInfo]:
        """Return the named readers of an entity, with positions, lag and losses (R8)."""
        return self.tell(lambda: readers.listed(self.broker, entity))

    async def delete_reader(self, entity: str, name: str) -> None:
        """Remove a named reader; messages retained only for it can then be deleted."""
        await self.ask(lambda reply: readers.delete(self.broker, entity, name, reply))

    # Replay

    async def replay(
        self,
        entity: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        where: Filter | None = None,
        to: str | None = None,
        incarnation: int | None = None,
    ) -> int:
        """Send messages of the log again, to the same or another entity; return how many (X7).

        Each has its old number as `enqueued_sequence_number`, and gets a new MessageId if its old
        one is still recorded.
        """
        count: int = await self.ask(
            lambda reply: run(
                replaying.replay(
                    self.broker,
                    LogReading(self.broker, entity, partition, incarnation).between(
                        start, end, None, None
                    ),
                    to or entity,
                    where or Filter(),
                ),
                reply,
            )
        )
        return count
