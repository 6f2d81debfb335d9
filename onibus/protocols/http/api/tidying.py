"""Inspection and maintenance over HTTP: peek, purge, undefer, duplicates, resubmission, alarms."""

from __future__ import annotations

from typing import Any

from onibus.api.delivery import (
    Alarms,
    Counted,
    Duplicate,
    Duplicates,
    MessageNumbers,
    Moved,
    NotMoved,
    Peek,
    Purge,
    Resubmit,
    Resubmitted,
    ResubmittedOut,
)
from onibus.api.messages import Messages, filter_of
from onibus.gateway.searching import count_purgeable
from onibus.gateway.settling import peek_in_slices
from onibus.protocols.http.api.searching import in_slices
from onibus.protocols.http.listing import messages_out
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


def peek(call: Call) -> None:
    """Peek messages; respond as soon as some are found, so that few responses are held at once."""
    given: Peek = call.decode(Peek)
    call.app.refuse_crowds()
    where = filter_of(given.where)
    call.ask(
        lambda reply: peek_in_slices(
            call.bus.broker,
            call.entity,
            given.start,
            given.limit,
            where,
            given.dead_letters,
            reply,
        ),
        messages_out,
    )


async def purge(call: Call) -> Counted:
    given: Purge = call.decode(Purge)
    where = filter_of(given.where)
    if given.dry_run:
        call.app.refuse_crowds()
        return Counted(await in_slices(count_purgeable(call.bus.broker, call.entity, where)))
    return Counted(await call.bus.purge(call.entity, where, forget_ids=given.forget_ids))


async def undefer(call: Call) -> None:
    await call.bus.undefer(call.entity, call.decode(MessageNumbers).numbers)


async def duplicates(call: Call) -> Duplicates:
    return Duplicates([Duplicate(*one) for one in call.bus.duplicates(call.entity)])


async def resubmit(call: Call) -> ResubmittedOut:
    given: Resubmit = call.decode(Resubmit)
    if given.to is not None:
        call.grant(Right.SEND, given.to)
    done = await call.bus.resubmit(
        call.entity,
        given.numbers,
        where=None if given.where is None else filter_of(given.where),
        to=given.to,
        limit=given.limit,
        dry_run=given.dry_run,
    )
    return resubmitted_out(done)


def resubmitted_out(done: Resubmitted) -> ResubmittedOut:
    """Return the result of a resubmission or a move for a response."""
    return ResubmittedOut(
        [Moved(old, new) for old, new in done.moved.items()],
        [NotMoved(old, why) for old, why in done.refused.items()],
    )


async def alarms(call: Call) -> Alarms:
    return Alarms(call.bus.alarms)


def _route(
    path: str, summary: str, right: Right, handler: Any, takes: Any, gives: Any = None
) -> Route:
    return Route(
        method="GET" if takes is None else "POST",
        path=f"/v1/entities/{{entity}}{path}",
        summary=summary,
        right=right,
        handler=handler,
        takes=takes,
        gives=gives,
        tag="tidying",
    )


ROUTES = [
    Route(
        method="POST",
        path="/v1/entities/{entity}/peek",
        summary="Peek at messages; continue from the last sequence number plus one.",
        right=Right.LISTEN,
        fast=peek,
        takes=Peek,
        gives=Messages,
        tag="tidying",
    ),
    _route(
        "/purge", "Delete messages that no receiver holds.", Right.MANAGE, purge, Purge, Counted
    ),
    _route(
        "/undefer",
        "Reactivate deferred messages atomically.",
        Right.LISTEN,
        undefer,
        MessageNumbers,
    ),
    _route(
        "/duplicates",
        "List the latest dropped duplicates.",
        Right.LISTEN,
        duplicates,
        None,
        Duplicates,
    ),
    _route(
        "/dead-letters/resubmit",
        "Resubmit dead-lettered messages, to their original entity or to another one.",
        Right.MANAGE,
        resubmit,
        Resubmit,
        ResubmittedOut,
    ),
    Route(
        method="GET",
        path="/v1/alarms",
        summary="List problems of stores and partitions.",
        right=Right.MANAGE,
        handler=alarms,
        gives=Alarms,
        tag="tidying",
    ),
]
