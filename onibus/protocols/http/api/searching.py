"""Searching over HTTP: bounded looks at messages, and dead-lettered messages by reason."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

from onibus.api.messages import filter_of
from onibus.api.searching import Reason, ReasonsOut, Search, SearchOut, TailIn
from onibus.api.wire import NDJSON
from onibus.core.errors import OnibusError
from onibus.gateway import searching
from onibus.protocols.http.listing import message_pieces, messages_out
from onibus.protocols.http.messages import Response
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right

T = TypeVar("T")

#: Seconds between two looks at the tail, and after which a silent stream shows life.
_LOOK_SECONDS = 0.5
_ALIVE_SECONDS = 20.0
_REASONS_SHOWN = 200


async def in_slices(steps: Iterator[T | None]) -> T:
    """Run the steps with other clients' turns in between; return what the last one yields."""
    for found in steps:
        if found is not None:
            return found
        await asyncio.sleep(0)
    raise AssertionError("the last step yields the result")


async def search(call: Call) -> Any:
    """Look at a limited number of messages."""
    given: Search = call.decode(Search)
    call.app.refuse_crowds()
    found = await in_slices(
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
    return messages_out(
        found.messages,
        lambda messages: SearchOut(messages, found.next, found.looked),
        body_limit=given.body_limit,
    )


async def reasons(call: Call) -> ReasonsOut:
    """Count dead-lettered messages by reason."""
    found = await in_slices(searching.dead_letter_reasons(call.bus.broker, call.entity))
    most = sorted(found.counts.items(), key=lambda one: -one[1])
    others = found.others + sum(count for _, count in most[_REASONS_SHOWN:])
    shown = [Reason(*one) for one in most[:_REASONS_SHOWN]]
    return ReasonsOut(shown, others, found.complete)


def tail(call: Call) -> None:
    """Stream messages as they arrive, one JSON line each."""
    given: TailIn = call.decode(TailIn)
    call.app.refuse_crowds()
    follower = searching.Tailing(call.bus.broker, call.entity, filter_of(given.where))
    stopping = asyncio.Event()
    # Set before this returns: the client may have closed its side already.
    call.request.hurry = stopping.set
    call.request.endless = True
    stream = _arrivals(call, follower, given.body_limit, stopping)
    call.respond(Response(200, content_type=NDJSON, stream=stream))


async def _arrivals(
    call: Call, follower: searching.Tailing, body_limit: int | None, stopping: asyncio.Event
) -> AsyncIterator[bytes | memoryview]:
    """Yield what arrived at each look; an empty line shows that the server is there."""
    silent = 0
    yield b"\n"
    while not stopping.is_set():
        try:
            call.check_again()
            found = follower.look()
        except OnibusError:
            return
        silent = 0 if found else silent + 1
        if found or silent * _LOOK_SECONDS >= _ALIVE_SECONDS:
            silent = 0
            for one in found:
                for piece in message_pieces(one, body_limit):
                    yield piece
                yield b"\n"
            if not found:
                yield b"\n"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _LOOK_SECONDS)


ROUTES = [
    Route(
        method="POST",
        path="/v1/entities/{entity}/tail",
        summary="Stream messages as they arrive, one JSON line each, without locking them.",
        right=Right.LISTEN,
        fast=tail,
        takes=TailIn,
        gives_text=True,
        tag="searching",
    ),
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
