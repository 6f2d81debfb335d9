"""Claims: messages reserved for a named reader under a durable number (R5, R7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from onibus.api.claims import Claim, Claimed, ClaimReaderInfo, Claims
from onibus.api.messages import Messages
from onibus.api.wire import ARROW
from onibus.client.asking import Ask, get, path_of, post, without_none
from onibus.client.blocking.caller import Caller
from onibus.client.convert import arrow_table, received_of
from onibus.core.limits import CLAIM_LEASE_MS_DEFAULT
from onibus.core.message import ReceivedMessage

if TYPE_CHECKING:
    import pyarrow as pa


class ClaimCalls(Caller):
    """Operations on claims. `entity` is a queue, or a subscription by its full name.

    With the `incarnation` of a claim, a deleted and recreated entity is rejected.
    """

    def claim(
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

        A claim that is not read within `lease_ms` is released. If the response is lost (Unknown),
        `claims` lists the claim if it was made.
        """
        body = without_none(
            reader=reader,
            limit=limit,
            lease_ms=lease_ms,
            max_bytes=max_bytes,
            token=token,
            incarnation=incarnation,
            wait_ms=wait_ms or None,
        )
        ask = post(path_of("entities", entity, "claims"), body, repeats=False, wait_ms=wait_ms)
        told: Claimed = self.ask(ask, Claimed)
        return told.claim

    def hold_claims(
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
        body = without_none(token=token, after=after, query=query, first=first or None)
        ask = post(path_of("entities", entity, "claims", reader), body)
        found: ClaimReaderInfo = self.ask(ask, ClaimReaderInfo)
        return found

    def claims(self, entity: str) -> list[Claim]:
        """Return an entity's claims, by reader and number (R8)."""
        told: Claims = self.ask(get(path_of("entities", entity, "claims")), Claims)
        return told.claims

    def read_claim(
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
        ask = _reading(entity, reader, number, partition, incarnation, token)
        told: Messages = self.ask(ask, Messages)
        return [received_of(one) for one in told.messages]

    def read_claim_arrow(
        self,
        entity: str,
        reader: str,
        number: int,
        *,
        partition: int | None = None,
        incarnation: int | None = None,
        token: str | None = None,
    ) -> pa.Table:
        """Return the messages of a claim as rows; otherwise like `read_claim`."""
        ask = _reading(entity, reader, number, partition, incarnation, token)
        return arrow_table((self.answer(ask.accepting(ARROW))).body)

    def commit_claim(
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
        dead = [
            {"sequence_number": at, "reason": reason, "description": description}
            for at, (reason, description) in (dead_letters or {}).items()
        ]
        body = without_none(dead_letters=dead, incarnation=incarnation)
        self.answer(post(_path(entity, reader, number, "commit"), body))

    def release_claim(
        self, entity: str, reader: str, number: int, *, incarnation: int | None = None
    ) -> None:
        """Release the messages of a claim without counting a delivery."""
        body = without_none(incarnation=incarnation)
        self.answer(post(_path(entity, reader, number, "release"), body))


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
