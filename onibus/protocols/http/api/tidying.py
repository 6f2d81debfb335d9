"""Looking and tidying over HTTP: peek, purge, undefer, duplicates, dead letters, alarms."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

<<<<<<< HEAD
import msgspec
from msgspec import Meta

from onibus.broker import searching
from onibus.broker.searching import LOOKS_MAX
from onibus.broker.settling import peek_in_slices
from onibus.protocols.http.api.messages import MessageNumbers
from onibus.protocols.http.route import Call, Route
from onibus.protocols.http.schema import (
    Count,
    FilterIn,
    MessageOut,
    Messages,
    Numbers,
    Start,
    filter_of,
    messages_out,
=======
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
    ResubmittedOut,
>>>>>>> main
)
from onibus.api.messages import Messages, filter_of, messages_out
from onibus.broker.settling import peek_in_slices
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


def peek(call: Call) -> None:
    """Look at messages: told as soon as they are found, so that few answers are held at once."""
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


<<<<<<< HEAD
class Search(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to begin, which messages to find, and how many to look at."""

    #: the sequence number at which to begin: `next` of the search before
    start: Start = 0
    limit: Count = 50
    looks: Annotated[int, Meta(ge=1, le=LOOKS_MAX)] = 5_000
    dead_letters: bool = False
    where: FilterIn | None = None


class SearchOut(msgspec.Struct):
    """Messages found, and where the next search starts."""

    messages: list[MessageOut]
    #: null at the end
    next: int | None
    #: messages looked at, about
    looked: int


async def search(call: Call) -> SearchOut:
    """Look at a limited number of messages, in slices."""
    given: Search = call.decode(Search)
    call.app.refuse_crowds()
    where = filter_of(given.where)
    for found in searching.search(
        call.bus.broker,
        call.entity,
        given.start,
        given.limit,
        given.looks,
        where,
        given.dead_letters,
    ):
        if found is not None:
            return SearchOut(messages_out(found.messages).messages, found.next, found.looked)
        await asyncio.sleep(0)
    raise AssertionError("a search ends with what it found")


class Reason(msgspec.Struct):
    """A reason, and how many messages were dead-lettered for it."""

    reason: str
    count: int


class ReasonsOut(msgspec.Struct):
    """Dead-lettered messages by reason, the most frequent first."""

    reasons: list[Reason]
    #: whether every dead-lettered message was counted
    complete: bool


async def reasons(call: Call) -> ReasonsOut:
    """Count dead-lettered messages by reason, in slices."""
    for found in searching.dead_letter_reasons(call.bus.broker, call.entity):
        if found is not None:
            most = sorted(found.counts.items(), key=lambda one: -one[1])
            return ReasonsOut([Reason(*one) for one in most], found.complete)
        await asyncio.sleep(0)
    raise AssertionError("the count ends with the counts")


class Purge(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which messages to delete; all that nobody holds if none are named."""

    where: FilterIn | None = None
    #: duplicates of what was sent are then let in again
    forget_ids: bool = False


class Counted(msgspec.Struct):
    """How many."""

    count: int


=======
>>>>>>> main
async def purge(call: Call) -> Counted:
    given: Purge = call.decode(Purge)
    where = filter_of(given.where)
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
        dry_run=given.dry_run,
    )
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
        summary="Look at messages without touching them; go on from the last number plus one.",
        right=Right.LISTEN,
        fast=peek,
        takes=Peek,
        gives=Messages,
        tag="tidying",
    ),
    _route(
        "/search",
        "Look at a limited number of messages; continue from `next`.",
        Right.LISTEN,
        search,
        Search,
        SearchOut,
    ),
    _route(
        "/dead-letters/reasons",
        "Count dead-lettered messages by reason.",
        Right.LISTEN,
        reasons,
        None,
        ReasonsOut,
    ),
    _route("/purge", "Delete messages that nobody holds.", Right.MANAGE, purge, Purge, Counted),
    _route(
        "/undefer",
        "Give deferred messages back to the active ones: all of them, or none.",
        Right.LISTEN,
        undefer,
        MessageNumbers,
    ),
    _route(
        "/duplicates",
        "List the last dropped duplicates.",
        Right.LISTEN,
        duplicates,
        None,
        Duplicates,
    ),
    _route(
        "/dead-letters/resubmit",
        "Send dead letters again, to where they came from or elsewhere.",
        Right.MANAGE,
        resubmit,
        Resubmit,
        ResubmittedOut,
    ),
    Route(
        method="GET",
        path="/v1/alarms",
        summary="List what went wrong with stores and partitions.",
        right=Right.MANAGE,
        handler=alarms,
        gives=Alarms,
        tag="tidying",
    ),
]
