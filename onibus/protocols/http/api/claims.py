"""Claims over HTTP: messages set aside for a named reader under a durable number (R5, R7)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from onibus.broker.claim_holding import ClaimReaderInfo
from onibus.broker.claim_rows import Claim
from onibus.core.limits import (
    CLAIM_COUNT_MAX,
    CLAIM_LEASE_MS_DEFAULT,
    CLAIM_LEASE_MS_MAX,
    CLAIM_LEASE_MS_MIN,
)
from onibus.protocols.http.arrow import table_response
from onibus.protocols.http.messages import ARROW, Response
from onibus.protocols.http.route import Call, Route
from onibus.protocols.http.schema import Messages, Number, messages_out
from onibus.security.rights import Right


class ClaimIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How much to set aside, and for whom."""

    reader: str
    limit: Annotated[int, Meta(ge=1, le=CLAIM_COUNT_MAX)]
    #: given back unless it is read within that time
    lease_ms: Annotated[int, Meta(ge=CLAIM_LEASE_MS_MIN, le=CLAIM_LEASE_MS_MAX)] = (
        CLAIM_LEASE_MS_DEFAULT
    )
    max_bytes: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    #: refuses a program that lost its hold of the reader
    token: str | None = None


class HoldClaims(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The program that takes hold of a reader."""

    #: of the program; null only looks
    token: str | None = None
    #: the last claim that the program knows
    after: Number = 0
    #: the id of the program's query, and the first claim of that query's checkpoint
    query: str | None = None
    first: Number = 0


class Claimed(msgspec.Struct):
    """The claim that was made; null where there was nothing to claim."""

    claim: Claim | None


class Claims(msgspec.Struct):
    """Claims of an entity, by reader and number."""

    claims: list[Claim]


class ReadClaim(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which part of a claim to read."""

    partition: Number | None = None
    #: refuses an entity that was made again
    incarnation: Number | None = None
    #: refuses a program that lost its hold of the reader
    token: str | None = None


class ClaimedDeadLetter(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message of a claim that goes into the dead-letter queue."""

    sequence_number: Number
    reason: str | None = None
    description: str | None = None


class CommitClaim(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What was not processed; the rest is completed."""

    dead_letters: list[ClaimedDeadLetter] = []
    incarnation: Number | None = None


class ReleaseClaim(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which claim is given back."""

    incarnation: Number | None = None


async def claim(call: Call) -> Claimed:
    given: ClaimIn = call.decode(ClaimIn)
    made = await call.bus.claim(
        call.entity,
        given.reader,
        given.limit,
        lease_ms=given.lease_ms,
        max_bytes=given.max_bytes,
        token=given.token,
    )
    return Claimed(made)


async def hold(call: Call) -> ClaimReaderInfo:
    given: HoldClaims = call.decode(HoldClaims)
    reader = call.names["reader"]
    return await call.bus.hold_claims(
        call.entity,
        reader,
        token=given.token,
        after=given.after,
        query=given.query,
        first=given.first,
    )


async def list_claims(call: Call) -> Claims:
    return Claims(call.bus.claims(call.entity))


async def read(call: Call) -> Messages | Response:
    given: ReadClaim = call.decode(ReadClaim)
    where = (call.entity, call.names["reader"], call.number("number"))
    chosen: dict[str, Any] = {"partition": given.partition, "incarnation": given.incarnation}
    chosen["token"] = given.token
    if not call.request.accepts(ARROW):
        return messages_out(await call.bus.read_claim(*where, **chosen))
    from onibus.core.claimed_rows import CLAIMED_SCHEMA

    return table_response(CLAIMED_SCHEMA, await call.bus.read_claim_arrow(*where, **chosen))


async def commit(call: Call) -> None:
    given: CommitClaim = call.decode(CommitClaim)
    await call.bus.commit_claim(
        call.entity,
        call.names["reader"],
        call.number("number"),
        dead_letters={
            one.sequence_number: (one.reason, one.description) for one in given.dead_letters
        },
        incarnation=given.incarnation,
    )


async def release(call: Call) -> None:
    given: ReleaseClaim = call.decode(ReleaseClaim)
    await call.bus.release_claim(
        call.entity, call.names["reader"], call.number("number"), incarnation=given.incarnation
    )


def _route(path: str, summary: str, handler: Any, **more: Any) -> Route:
    return Route(
        method="POST" if "takes" in more else "GET",
        path=f"/v1/entities/{{entity}}/claims{path}",
        summary=summary,
        right=Right.LISTEN,
        handler=handler,
        tag="claims",
        **more,
    )


ROUTES = [
    _route("", "List claims.", list_claims, gives=Claims),
    _route("", "Set messages aside for a named reader.", claim, takes=ClaimIn, gives=Claimed),
    _route(
        "/{reader}",
        "Take hold of a reader, and show its progress.",
        hold,
        takes=HoldClaims,
        gives=ClaimReaderInfo,
    ),
    _route(
        "/{reader}/{number}/read",
        "Read a claim's messages; from then on it is its reader's.",
        read,
        takes=ReadClaim,
        gives=Messages,
        gives_arrow=True,
    ),
    _route(
        "/{reader}/{number}/commit",
        "Complete a claim's messages; again is harmless.",
        commit,
        takes=CommitClaim,
    ),
    _route(
        "/{reader}/{number}/release",
        "Give a claim's messages back.",
        release,
        takes=ReleaseClaim,
    ),
]
