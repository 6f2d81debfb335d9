"""The calls of the bus that read what was: the log, the outcomes, named readers, replay.

    positions = bus.log_positions("orders")
    async for batch in bus.read_log("orders", 0, positions.earliest[0], positions.latest[0]):
        table = pyarrow.Table.from_batches([batch])

An entity keeps completed messages for as long as its `retention_ms` says, and for as long as a
named reader has not passed them. Columns are documented in core/log_batch.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from onibus.api.log import LogPositions, ReaderInfo
from onibus.broker import readers, replaying
from onibus.broker.named_reader import MESSAGES
from onibus.broker.reading import LogReading, OutcomeReading
from onibus.broker.replies import Reply
from onibus.calls.caller import Caller
from onibus.core.inspection import Filter

if TYPE_CHECKING:
    import pyarrow as pa


class LogCalls(Caller):
    """What can be done with logs."""

    def log_positions(
        self, entity: str, *, log: str = MESSAGES, since_ms: int | None = None
    ) -> LogPositions:
        """Return between which numbers each partition's log can be read.

        `log` is messages, or outcomes. With `since_ms`, also from which number on rows are of that
        time or later.
        """
        return self.tell(lambda: readers.positions_of(self.broker, entity, log, since_ms))

    def log_reach(self, entity: str, partition: int, start: int, limit_bytes: int) -> int:
        """Return the number up to which, without it, so many bytes of messages reach from `start`.

        One message at least is reached, if there is one.
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
        """Return the rows of a partition from one sequence number up to, without, another (R3).

        The same rows each time, in order and without a hole: a hole is a LogGap. Without `end`, up
        to what is there now. `limit` ends it after so many rows, `limit_bytes` before the block,
        the first aside, that would make it more bytes. `incarnation` refuses an entity that was
        made again; `reader` counts as a use of that named reader, and tells it what it has lost.
        """
        # pyarrow takes its time to import: not before somebody wants it.
        from onibus.core.log_batch import BatchMaker, schema_of

        schema = schema_of(columns)
        reading = self.tell(
            lambda: LogReading(self.broker, entity, partition, incarnation, reader).between(
                start, end, limit, limit_bytes
            )
        )
        make = BatchMaker(partition, reading.seat.online().numbering, schema)
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
        """Return what became of messages, from one outcome's number up to, without, another (R4).

        Of a queue or a subscription; of a topic, what became of its scheduled messages.
        """
        from onibus.core.log_batch import outcome_batch

        reading = self.tell(
            lambda: OutcomeReading(self.broker, entity, partition, incarnation, reader).between(
                start, end
            )
        )
        numbering, below = reading.seat.online().numbering, reading.end
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
        """Make a named reader of a log, messages or outcomes: what it has not passed is kept (R2).

        It starts at the earliest complete row, at the latest (what comes from now on), or at one
        number for each partition. Unused for `idle_ms`, it is removed. With a
        `token`, only calls that give it move the reader. `address` says what reads with it.
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
        """Take a reader over: only moves with the new token count from then on.

        A reader that has a token is taken with one of the `held` tokens, or with `token` itself.
        None leaves a value as it is.
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
        """Tell how far a reader has come: the next number in each partition, forward only."""
        await self.ask(
            lambda reply: readers.move(
                self.broker, entity, name, positions, incarnation, reply, token
            )
        )

    def readers(self, entity: str) -> list[ReaderInfo]:
        """Return the named readers of an entity, with positions, lag and losses (R8)."""
        return self.tell(lambda: readers.listed(self.broker, entity))

    async def delete_reader(self, entity: str, name: str) -> None:
        """Remove a named reader; what was kept for it alone may go."""
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

        Each tells its old number as its `enqueued_sequence_number`, and gets a new MessageId where
        its old one is still remembered.
        """
        count: int = await self.ask(
            lambda reply: replaying.replay(
                self.broker,
                LogReading(self.broker, entity, partition, incarnation).between(
                    start, end, None, None
                ),
                to or entity,
                where or Filter(),
                reply,
            )
        )
        return count
