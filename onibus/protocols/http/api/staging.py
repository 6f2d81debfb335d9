"""Staged sends over HTTP: messages kept invisible until their producer publishes them (R6)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from onibus.broker.producers import ProducerInfo, Published, Staged
from onibus.core.limits import STAGED_LEASE_MS_DEFAULT
from onibus.protocols.http.api.messages import Batch, read_batch
from onibus.protocols.http.api.tidying import Counted
from onibus.protocols.http.arrow import read_stream
from onibus.protocols.http.messages import ARROW
from onibus.protocols.http.route import Call, Route
from onibus.protocols.http.schema import Number
from onibus.security.rights import Right


class StageQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whose rows these are."""

    producer: str
    batch: Number
    task: Number
    attempt: Number
    #: which piece of the attempt, from 0
    piece: Number = 0
    #: what is not published within that time goes
    lease_ms: Number = STAGED_LEASE_MS_DEFAULT


class Publish(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which attempts of a batch become visible, in their order; the rest goes."""

    producer: str
    batch: Number
    #: each is [task, attempt] or [task, attempt, number of pieces]
    attempts: list[Annotated[list[Number], Meta(min_length=2, max_length=3)]]
    #: in which the batches are counted, from 0 and without a gap; another one is refused
    checkpoint: str | None = None
    #: the producer's last batch again counts as published, whatever its rows are
    any_content: bool = False


class Discard(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What of a producer is forgotten: one batch, or all."""

    producer: str
    batch: Number | None = None


class StagedOut(msgspec.Struct):
    """What is staged and not published."""

    staged: list[Staged]


class Producers(msgspec.Struct):
    """Who has published to an entity."""

    producers: list[ProducerInfo]


class Forgotten(msgspec.Struct):
    """What forgetting a producer did."""

    #: it had published or staged something
    known: bool


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
        "GET", "/staged", "List what is staged and not published.", list_staged, gives=StagedOut
    ),
    _route(
        "POST",
        "/staged",
        "Keep messages, invisible and without numbers, until they are published.",
        stage,
        query=StageQuery,
        takes=Batch,
        takes_arrow=True,
    ),
    _route(
        "POST",
        "/staged/publish",
        "Make what the named attempts staged visible, once.",
        publish,
        takes=Publish,
        gives=Published,
    ),
    _route(
        "POST",
        "/staged/discard",
        "Forget what a producer has staged.",
        discard,
        takes=Discard,
        gives=Counted,
    ),
    _route("GET", "/producers", "List who has published batches.", list_producers, gives=Producers),
    _route(
        "DELETE",
        "/producers/{producer}",
        "Forget how far a producer has come.",
        forget_producer,
        gives=Forgotten,
    ),
]
