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
from onibus.api.messages import Messages
from onibus.api.wire import ARROW
from onibus.gateway import claim_waiting
from onibus.protocols.http.arrow import table_response
from onibus.protocols.http.listing import messages_out
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


def claim(call: Call) -> None:
    """Claim messages, waiting for the first if none is active."""
    given: ClaimIn = call.decode(ClaimIn)
    call.ask(
        lambda reply: claim_waiting.claim(
            call.bus.broker,
            call.entity,
            given.reader,
            given.limit,
            given.lease_ms,
            given.max_bytes,
            reply,
            given.token,
            given.wait_ms,
            given.incarnation,
        ),
        Claimed,
    )


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


async def read(call: Call) -> Any:
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
    _route(
        "",
        "Claim messages for a named reader, waiting for the first.",
        None,
        fast=claim,
        takes=ClaimIn,
        gives=Claimed,
    ),
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
