"""Claims, as calls of the bus: messages reserved for a named reader under a durable number.

    claim = await bus.claim("orders", "nightly", 10_000)
    if claim is not None:
        messages = await bus.read_claim("orders", "nightly", claim.number)
        await bus.commit_claim("orders", "nightly", claim.number)

The same number returns the same messages, even after a crash, until the claim is committed or
released. So an interrupted program lists its claims and continues with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from onibus.api.claims import Claim, ClaimReaderInfo
from onibus.calls.caller import Caller
from onibus.core.limits import CLAIM_LEASE_MS_DEFAULT
from onibus.core.message import ReceivedMessage
from onibus.directory import claim_holding, claim_reading, claim_settling
from onibus.gateway import claim_waiting

if TYPE_CHECKING:
    import pyarrow as pa


class ClaimCalls(Caller):
    """Operations on claims. `entity` is a queue, or a subscription by its full name.

    With the `incarnation` of a claim, a deleted and recreated entity is rejected.
    """

    async def claim(
        self,
        entity: str,
        reader: str,
        limit: int,
        *,
        lease_ms: int = CLAIM_LEASE_MS_DEFAULT,
        max_bytes: int | None = None,
        token: str | None = None,
        incarnation: int | None = None,
        wait_ms: int = 0,
    ) -> Claim | None:
        """Reserve up to `limit` active messages, or that many bytes; return None if none is active.

        Wait up to `wait_ms` for the first message.

        A claim that is not read within `lease_ms` is released. With a `token`, a program that lost
        its hold of the reader (`hold_claims`) is rejected.
        """
        made: Claim | None = await self.ask(
            lambda reply: claim_waiting.claim(
                self.broker, entity, reader, limit, lease_ms, max_bytes, reply, token,
                wait_ms, incarnation,
            )
        )  # fmt: skip
        return made

    async def read_claim(
        self,
        entity: str,
        reader: str,
        number: int,
        *,
        partition: int | None = None,
        incarnation: int | None = None,
        token: str | None = None,
    ) -> list[ReceivedMessage]:
        """Return the messages of a claim, of all partitions or of one, in order within each.

        The claim then belongs to its reader until it is committed or released.
        """

        def page(_: int, received: list[ReceivedMessage]) -> list[ReceivedMessage]:
            return received

        pages: list[list[ReceivedMessage]] = await self.ask(
            lambda reply: claim_reading.read(
                self.broker.claims,
                entity,
                reader,
                number,
                partition,
                incarnation,
                page,
                reply,
                token,
            )
        )
        return [message for messages in pages for message in messages]

    async def read_claim_arrow(
        self,
        entity: str,
        reader: str,
        number: int,
        *,
        partition: int | None = None,
        incarnation: int | None = None,
        token: str | None = None,
    ) -> list[pa.RecordBatch]:
        """Return the messages of a claim as record batches (core/claimed_rows.py).

        Each batch has messages of one partition; otherwise like `read_claim`.
        """
        from onibus.core.claimed_rows import claimed_rows

        batches: list[pa.RecordBatch] = await self.ask(
            lambda reply: claim_reading.read(
                self.broker.claims,
                entity,
                reader,
                number,
                partition,
                incarnation,
                claimed_rows,
                reply,
                token,
            )
        )
        return batches

    async def commit_claim(
        self,
        entity: str,
        reader: str,
        number: int,
        *,
        dead_letters: Mapping[int, tuple[str | None, str | None]] | None = None,
        incarnation: int | None = None,
    ) -> None:
        """Complete the messages of a claim; repeating this is harmless.

        `dead_letters` names those to dead-letter instead: sequence number → (reason, description).
        """
        await self.ask(
            lambda reply: claim_settling.commit(
                self.broker.claims, entity, reader, number, dead_letters, incarnation, reply
            )
        )

    async def release_claim(
        self, entity: str, reader: str, number: int, *, incarnation: int | None = None
    ) -> None:
        """Release the messages of a claim without counting a delivery."""
        await self.ask(
            lambda reply: claim_settling.release(
                self.broker.claims, entity, reader, number, incarnation, reply
            )
        )

    async def hold_claims(
        self,
        entity: str,
        reader: str,
        *,
        token: str | None = None,
        after: int = 0,
        query: str | None = None,
        first: int = 0,
    ) -> ClaimReaderInfo:
        """Assign a reader to the program with this token; return its progress.

        Claims and reads with a different token are then rejected. Raise if a claim above `after`,
        the last that this program knows, was read: another program works on it. Without a token
        nothing changes. The holder may name the `query` whose checkpoint begins with claim `first`:
        raise if that query began with a different claim before.
        """
        found: ClaimReaderInfo = await self.ask(
            lambda reply: claim_holding.hold(
                self.broker.claims, entity, reader, token, after, reply, query, first
            )
        )
        return found

    def claims(self, entity: str) -> list[Claim]:
        """Return an entity's claims, by reader and number (R8)."""
        return self.tell(lambda: self.broker.claims.listed(entity))
