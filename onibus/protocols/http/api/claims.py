"""Claims over HTTP: messages reserved for a named reader under a durable number (R5, R7)."""

from __future__ import annotations

from typing import Any

from onibus.api.claims import (
    Claimed,
    ClaimIn,
    ClaimReaderInfo,
    Claims,
    CommitClaim,
    HoldClaims,
    ReadClaim,
    ReleaseClaim,
)
from onibus.api.messages import Messages, messages_out
from onibus.api.wire import ARROW
from onibus.protocols.http.arrow import table_response
from onibus.protocols.http.messages import Response
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


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
    _route("", "Claim messages for a named reader.", claim, takes=ClaimIn, gives=Claimed),
    _route(
        "/{reader}",
        "Assign a reader to one program, and show its progress.",
        hold,
        takes=HoldClaims,
        gives=ClaimReaderInfo,
    ),
    _route(
        "/{reader}/{number}/read",
        "Read the messages of a claim, which then belongs to its reader.",
        read,
        takes=ReadClaim,
        gives=Messages,
        gives_arrow=True,
    ),
    _route(
        "/{reader}/{number}/commit",
        "Complete the messages of a claim; repeating it is harmless.",
        commit,
        takes=CommitClaim,
    ),
    _route(
        "/{reader}/{number}/release",
        "Release the messages of a claim.",
        release,
        takes=ReleaseClaim,
    ),
]
