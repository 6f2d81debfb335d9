"""Searching over HTTP: bounded looks at messages, and dead-lettered messages by reason."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TypeVar

from onibus.api.messages import filter_of, messages_out
from onibus.api.searching import Reason, ReasonsOut, Search, SearchOut
from onibus.broker import searching
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right

T = TypeVar("T")


async def _in_slices(steps: Iterator[T | None]) -> T:
    """Run the steps with other clients' turns in between; return what the last one yields."""
    for found in steps:
        if found is not None:
            return found
        await asyncio.sleep(0)
    raise AssertionError("the last step yields the result")


async def search(call: Call) -> SearchOut:
    """Look at a limited number of messages."""
    given: Search = call.decode(Search)
    call.app.refuse_crowds()
    found = await _in_slices(
        searching.search(
            call.bus.broker,
            call.entity,
            given.start,
            given.limit,
            given.looks,
            filter_of(given.where),
            given.dead_letters,
        )
    )
    return SearchOut(messages_out(found.messages).messages, found.next, found.looked)


async def reasons(call: Call) -> ReasonsOut:
    """Count dead-lettered messages by reason."""
    found = await _in_slices(searching.dead_letter_reasons(call.bus.broker, call.entity))
    most = sorted(found.counts.items(), key=lambda one: -one[1])
    return ReasonsOut([Reason(*one) for one in most], found.complete)


ROUTES = [
    Route(
        method="POST",
        path="/v1/entities/{entity}/search",
        summary="Look at a limited number of messages; continue from `next`.",
        right=Right.LISTEN,
        handler=search,
        takes=Search,
        gives=SearchOut,
        tag="searching",
    ),
    Route(
        method="GET",
        path="/v1/entities/{entity}/dead-letters/reasons",
        summary="Count dead-lettered messages by reason.",
        right=Right.LISTEN,
        handler=reasons,
        gives=ReasonsOut,
        tag="searching",
    ),
]
