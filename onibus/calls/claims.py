"""Claims, as calls of the bus: messages set aside for a named reader under a durable number.

    claim = await bus.claim("orders", "nightly", 10_000)
    if claim is not None:
        messages = await bus.read_claim("orders", "nightly", claim.number)
        await bus.commit_claim("orders", "nightly", claim.number)

Asking for the same number again gives the same messages, also after a crash, until the claim is
committed or given back. So a program that was interrupted lists its claims and goes on with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from onibus.api.claims import Claim, ClaimReaderInfo
from onibus.broker import claim_holding, claim_reading, claim_settling
from onibus.calls.caller import Caller
from onibus.core.limits import CLAIM_LEASE_MS_DEFAULT
from onibus.core.message import ReceivedMessage
from onibus.core.subscription import Subscription

if TYPE_CHECKING:
    import pyarrow as pa


class ClaimCalls(Caller):
    """What the bus does with claims. `entity` is a queue, or a subscription by its whole name.

    With `incarnation`, as a claim has it, an entity that was deleted and made again is refused.
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
    ) -> Claim | None:
        """Set up to `limit` active messages aside, and so many bytes; None if there are none.

        A claim that is not read within `lease_ms` is released. With a `token`, a program that lost
        its hold of the reader (`hold_claims`) is refused.
        """
        made: Claim | None = await self.ask(
            lambda reply: self.broker.claims.claim(
                entity, reader, limit, lease_ms, max_bytes, reply, token
            )
        )
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
        """Return a claim's messages, of all partitions or of one, in the order of each.

        From then on the claim is its reader's until it is committed or given back.
        """

        def page(subscription: Subscription, ordinals: list[int]) -> list[ReceivedMessage]:
            return [subscription.view(ordinal) for ordinal in ordinals]

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
        """Return a claim's messages as record batches (core/claimed_rows.py).

        Each batch is of one partition; otherwise as `read_claim`.
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
        """Complete a claim's messages; again is harmless.

        `dead_letters` names those that go into the dead-letter queue instead: sequence number →
        (reason, description).
        """
        await self.ask(
            lambda reply: claim_settling.commit(
                self.broker.claims, entity, reader, number, dead_letters, incarnation, reply
            )
        )

    async def release_claim(
        self, entity: str, reader: str, number: int, *, incarnation: int | None = None
    ) -> None:
        """Give a claim's messages back, without counting a delivery."""
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
        """Take hold of a reader for the program with this token; return its progress.

        Claims and reads with another token are refused from then on. It is an error if a claim
        above `after`, the last that this program knows, was read: another program works on it.
        Without a token nothing changes. The holder may name the `query` whose checkpoint begins
        with claim `first`: it is an error if that query has begun with another claim before.
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
