"""Staged sends over HTTP: messages that stay invisible until their producer publishes them (R6)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from onibus.api.delivery import Batch, Counted
from onibus.api.staging import (
    Discard,
    Forgotten,
    Producers,
    Publish,
    Published,
    StagedOut,
    StageQuery,
)
from onibus.api.wire import ARROW
from onibus.protocols.http.api.messages import read_batch
from onibus.protocols.http.arrow import read_stream
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


async def stage(call: Call) -> None:
    given: StageQuery = call.query(StageQuery)
    whose: dict[str, Any] = msgspec.structs.asdict(given)
    if call.request.content_type == ARROW:
        table = await asyncio.to_thread(read_stream, call.body, call.app.limits.table_bytes_max)
        await call.bus.stage_arrow(call.entity, table, **whose)
    else:
        messages = await asyncio.to_thread(read_batch, call)
        await call.bus.stage(call.entity, messages, **whose)


async def list_staged(call: Call) -> StagedOut:
    return StagedOut(call.bus.staged(call.entity))


async def publish(call: Call) -> Published:
    given: Publish = call.decode(Publish)
    return await call.bus.publish(
        call.entity,
        producer=given.producer,
        batch=given.batch,
        attempts=[tuple(attempt) for attempt in given.attempts],
        checkpoint=given.checkpoint,
        any_content=given.any_content,
    )


async def discard(call: Call) -> Counted:
    given: Discard = call.decode(Discard)
    count = await call.bus.discard(call.entity, producer=given.producer, batch=given.batch)
    return Counted(count)


async def list_producers(call: Call) -> Producers:
    return Producers(call.bus.producers(call.entity))


async def forget_producer(call: Call) -> Forgotten:
    return Forgotten(await call.bus.forget_producer(call.entity, call.names["producer"]))


def _route(method: str, path: str, summary: str, handler: Any, **more: Any) -> Route:
    return Route(
        method=method,
        path=f"/v1/entities/{{entity}}{path}",
        summary=summary,
        right=Right.SEND,
        handler=handler,
        tag="staged sends",
        **more,
    )


ROUTES = [
    _route(
        "GET", "/staged", "List staged rows that are not published.", list_staged, gives=StagedOut
    ),
    _route(
        "POST",
        "/staged",
        "Stage messages, invisible and without sequence numbers, until they are published.",
        stage,
        query=StageQuery,
        takes=Batch,
        takes_arrow=True,
    ),
    _route(
        "POST",
        "/staged/publish",
        "Publish the rows of the named attempts, once.",
        publish,
        takes=Publish,
        gives=Published,
    ),
    _route(
        "POST",
        "/staged/discard",
        "Delete the staged rows of a producer.",
        discard,
        takes=Discard,
        gives=Counted,
    ),
    _route(
        "GET", "/producers", "List producers with their progress.", list_producers, gives=Producers
    ),
    _route(
        "DELETE",
        "/producers/{producer}",
        "Reset the progress of a producer.",
        forget_producer,
        gives=Forgotten,
    ),
]
