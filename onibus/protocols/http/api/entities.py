"""Queues, topics, subscriptions and rules over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec

from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


class Names(msgspec.Struct):
    """Names of entities, sorted."""

    names: list[str]


async def list_queues(call: Call) -> Names:
    """List all queues."""
    return Names(call.bus.queues())


async def create_queue(call: Call) -> None:
    """Make a queue; the body has its settings."""
    await call.bus.create_queue(call.entity, **call.decode(dict[str, Any]))


async def show_queue(call: Call) -> Any:
    """Show a queue's settings and counts."""
    return call.bus.queue(call.entity)


ROUTES = [
    Route(
        method="GET",
        path="/v1/queues",
        summary="List all queues.",
        right=Right.MANAGE,
        handler=list_queues,
        gives=Names,
        tag="entities",
    ),
    Route(
        method="PUT",
        path="/v1/queues/{entity}",
        summary="Make a queue.",
        right=Right.MANAGE,
        handler=create_queue,
        takes=dict[str, Any],
        tag="entities",
    ),
    Route(
        method="GET",
        path="/v1/queues/{entity}",
        summary="Show a queue's settings and counts.",
        right=Right.MANAGE,
        handler=show_queue,
        gives=Any,
        tag="entities",
    ),
]
