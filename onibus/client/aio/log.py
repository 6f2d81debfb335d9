"""The log and the outcomes of messages as Arrow, named readers and replay (R1 to R4, X7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from onibus.api.delivery import Counted
from onibus.api.log import LogPositions, Reach, ReaderInfo, ReaderReport, Readers
from onibus.api.wire import ARROW
from onibus.client.aio.caller import AsyncCaller
from onibus.client.asking import Ask, get, path_of, post, without_none
from onibus.client.convert import arrow_table, filter_json
from onibus.core.inspection import Filter

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of the log per request.
PAGE_BYTES = 16 << 20


class AsyncLogCalls(AsyncCaller):
    """Operations on logs."""

    async def log_positions(
        self, entity: str, *, log: str = "messages", since_ms: int | None = None
    ) -> LogPositions:
        """Return the range of sequence numbers that each partition's log can be read from.

        With `since_ms`, also return the first sequence number of that time or later.
        """
        ask = get(path_of("entities", entity, "log"), log=log, since_ms=since_ms)
        told: LogPositions = await self.ask(ask, LogPositions)
        return told

    async def plan_read(
        self,
        entity: str,
        positions: Sequence[int],
        *,
        log: str = "messages",
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
        body = without_none(
            log=log,
            positions=list(positions),
            until=None if until is None else list(until),
            limit=limit,
            limit_bytes=limit_bytes,
            since_ms=since_ms,
            wait_ms=wait_ms,
            incarnation=incarnation,
        )
        path = path_of("entities", entity, "log", "plan")
        ask = post(path, body, wait_ms=wait_ms, changes=False)
        told: LogPositions = await self.ask(ask, LogPositions)
        return told

    async def log_reach(self, entity: str, partition: int, start: int, limit_bytes: int) -> int:
        """Return the end of a range, exclusive, with that many bytes of messages."""
        path = path_of("entities", entity, "log", "messages", partition, "reach")
        told: Reach = await self.ask(get(path, start=start, limit_bytes=limit_bytes), Reach)
        return told.end

    async def read_log(
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
    ) -> AsyncIterator[pa.RecordBatch]:
        """Yield the rows of a partition between two sequence numbers, the end exclusive (R3).

        Repeated reads return the same rows, in order and complete; a missing row raises LogGap.
        Without `end`, read up to the current end. Pages are requested as they are needed.
        """
        if end is None:
            end = (await self.log_positions(entity)).latest[partition]
        path = path_of("entities", entity, "log", "messages", partition)
        given: dict[str, Any] = {
            "incarnation": incarnation,
            "reader": reader,
            "columns": None if columns is None else ",".join(columns),
            "limit_bytes": PAGE_BYTES,
        }
        left = limit
        # Ask at least once, even if the range is empty: only the server knows whether the entity
        # was recreated.
        while left != 0:
            ask = get(path, start=start, end=end, limit=left, **given)
            table = await self._table(ask)
            if table.num_rows == 0:
                return
            for batch in table.to_batches():
                yield batch
            # Sequence numbers have no gaps, so the number of rows gives the next one.
            start += table.num_rows
            left = None if left is None else left - table.num_rows
            if end is not None and start >= end:
                return

    async def read_outcomes(
        self,
        entity: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        incarnation: int | None = None,
        reader: str | None = None,
    ) -> pa.Table:
        """Return the outcomes of messages between two sequence numbers, the end exclusive (R4)."""
        path = path_of("entities", entity, "log", "outcomes", partition)
        return await self._table(
            get(path, start=start, end=end, incarnation=incarnation, reader=reader)
        )

    async def _table(self, ask: Ask) -> pa.Table:
        return arrow_table((await self.answer(ask.accepting(ARROW))).body)

    async def create_reader(
        self,
        entity: str,
        name: str,
        *,
        log: str = "messages",
        start: str | Sequence[int] = "earliest",
        idle_ms: int | None = None,
        token: str | None = None,
        address: str | None = None,
    ) -> ReaderInfo:
        """Create a named reader: the broker retains messages until it has read them (R2).

        `start` is earliest, latest, or a sequence number for each partition. A reader unused for
        `idle_ms` is removed. With a `token`, only calls with that token move the reader. `address`
        describes the program that reads.
        """
        given = start if isinstance(start, str) else list(start)
        body = without_none(log=log, start=given, idle_ms=idle_ms, token=token, address=address)
        ask = post(path_of("entities", entity, "readers", name), body, method="PUT")
        told: ReaderInfo = await self.ask(ask, ReaderInfo)
        return told

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
        body = without_none(held=list(held), token=token, address=address, idle_ms=idle_ms)
        ask = post(path_of("entities", entity, "readers", name, "take"), body)
        told: ReaderInfo = await self.ask(ask, ReaderInfo)
        return told

    async def move_reader(
        self,
        entity: str,
        name: str,
        positions: Sequence[int],
        incarnation: int,
        token: str | None = None,
    ) -> None:
        """Set a reader's position: the next sequence number in each partition, forward only."""
        body = without_none(positions=list(positions), incarnation=incarnation, token=token)
        await self.answer(post(path_of("entities", entity, "readers", name, "move"), body))

    async def report_reader(self, entity: str, name: str, report: ReaderReport) -> None:
        """Report what the lake behind a reader has, or the verdict of its audit.

        The server keeps the last reports with the reader and does not verify them.
        """
        body = msgspec.to_builtins(report)
        await self.answer(post(path_of("entities", entity, "readers", name, "report"), body))

    async def readers(self, entity: str) -> list[ReaderInfo]:
        """Return the named readers of an entity, with positions, lag and losses (R8)."""
        told: Readers = await self.ask(get(path_of("entities", entity, "readers")), Readers)
        return told.readers

    async def delete_reader(self, entity: str, name: str) -> None:
        """Remove a named reader; messages retained only for it can then be deleted."""
        await self.answer(post(path_of("entities", entity, "readers", name), method="DELETE"))

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
        """Send messages of the log again, to the same or another entity; return how many (X7)."""
        body = without_none(
            partition=partition,
            start=start,
            end=end,
            where=filter_json(where),
            to=to,
            incarnation=incarnation,
        )
        ask = post(path_of("entities", entity, "log", "replay"), body, repeats=False)
        told: Counted = await self.ask(ask, Counted)
        return told.count
