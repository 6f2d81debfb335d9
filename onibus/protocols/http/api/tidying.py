"""Looking and tidying over HTTP: peek, purge, undefer, duplicates, dead letters, alarms."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

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
)
from onibus.security.rights import Right


class Peek(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to begin, and which messages to show."""

    #: the sequence number from which on messages are shown
    start: Start = 0
    limit: Count = 100
    dead_letters: bool = False
    where: FilterIn | None = None


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


async def purge(call: Call) -> Counted:
    given: Purge = call.decode(Purge)
    where = filter_of(given.where)
    return Counted(await call.bus.purge(call.entity, where, forget_ids=given.forget_ids))


async def undefer(call: Call) -> None:
    await call.bus.undefer(call.entity, call.decode(MessageNumbers).numbers)


class Duplicate(msgspec.Struct):
    """A message that was dropped as a duplicate (X1)."""

    message_id: str | None
    time_ms: int
    #: the number of the message that it repeats
    duplicate_of: int


class Duplicates(msgspec.Struct):
    """The last dropped duplicates, the oldest first."""

    duplicates: list[Duplicate]


async def duplicates(call: Call) -> Duplicates:
    return Duplicates([Duplicate(*one) for one in call.bus.duplicates(call.entity)])


class Resubmit(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters to send again: by numbers, or all that a filter means."""

    numbers: Numbers | None = None
    where: FilterIn | None = None
    #: where to; to where they came from if left out
    to: str | None = None
    #: only tell what would be done
    dry_run: bool = False


class Moved(msgspec.Struct):
    """A dead letter that was sent again, under another number; null in a dry run."""

    sequence_number: int
    new_sequence_number: int | None


class NotMoved(msgspec.Struct):
    """A dead letter that stays one, and why."""

    sequence_number: int
    reason: str


class ResubmittedOut(msgspec.Struct):
    """What became of dead letters that were to be sent again."""

    moved: list[Moved]
    refused: list[NotMoved]


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


class Alarms(msgspec.Struct):
    """What went wrong with stores and partitions since the server started."""

    alarms: list[str]


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
