"""Claims: messages set aside for a named reader under a durable number (R5, R7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from onibus.api.claims import Claim, Claimed, ClaimReaderInfo, Claims
from onibus.api.messages import Messages
from onibus.api.wire import ARROW
from onibus.client.aio.caller import AsyncCaller
from onibus.client.asking import Ask, get, path_of, post, without_none
from onibus.client.convert import arrow_table, received_of
from onibus.core.limits import CLAIM_LEASE_MS_DEFAULT
from onibus.core.message import ReceivedMessage

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncClaimCalls(AsyncCaller):
    """What can be done with claims. `entity` is a queue, or a subscription by its whole name.

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

        Unless it is read within `lease_ms` the claim is given back. Where the answer is lost
        (Unknown) the claim, if it was made, is in `claims`.
        """
        body = without_none(
            reader=reader, limit=limit, lease_ms=lease_ms, max_bytes=max_bytes, token=token
        )
        ask = post(path_of("entities", entity, "claims"), body, repeats=False)
        told: Claimed = await self.ask(ask, Claimed)
        return told.claim

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
        body = without_none(token=token, after=after, query=query, first=first or None)
        ask = post(path_of("entities", entity, "claims", reader), body)
        found: ClaimReaderInfo = await self.ask(ask, ClaimReaderInfo)
        return found

    async def claims(self, entity: str) -> list[Claim]:
        """Return an entity's claims, by reader and number (R8)."""
        told: Claims = await self.ask(get(path_of("entities", entity, "claims")), Claims)
        return told.claims

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
        ask = _reading(entity, reader, number, partition, incarnation, token)
        told: Messages = await self.ask(ask, Messages)
        return [received_of(one) for one in told.messages]

    async def read_claim_arrow(
        self,
        entity: str,
        reader: str,
        number: int,
        *,
        partition: int | None = None,
        incarnation: int | None = None,
        token: str | None = None,
    ) -> pa.Table:
        """Return a claim's messages as rows; otherwise as `read_claim`."""
        ask = _reading(entity, reader, number, partition, incarnation, token)
        return arrow_table((await self.answer(ask.accepting(ARROW))).body)

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
        dead = [
            {"sequence_number": at, "reason": reason, "description": description}
            for at, (reason, description) in (dead_letters or {}).items()
        ]
        body = without_none(dead_letters=dead, incarnation=incarnation)
        await self.answer(post(_path(entity, reader, number, "commit"), body))

    async def release_claim(
        self, entity: str, reader: str, number: int, *, incarnation: int | None = None
    ) -> None:
        """Give a claim's messages back, without counting a delivery."""
        body = without_none(incarnation=incarnation)
        await self.answer(post(_path(entity, reader, number, "release"), body))


def _path(entity: str, reader: str, number: int, verb: str) -> str:
    return path_of("entities", entity, "claims", reader, number, verb)


def _reading(
    entity: str,
    reader: str,
    number: int,
    partition: int | None,
    incarnation: int | None,
    token: str | None,
) -> Ask:
    body = without_none(partition=partition, incarnation=incarnation, token=token)
    return post(_path(entity, reader, number, "read"), body)
