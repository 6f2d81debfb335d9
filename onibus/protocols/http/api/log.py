"""The log over HTTP: messages and outcomes as Arrow, named readers, replay (R1 to R4, X7).

Clients read a log partition by partition, between two numbers, the end exclusive. A response is an
Arrow IPC stream, generated as it is sent; if it breaks off, it was incomplete.
"""

from __future__ import annotations

from typing import Any

from onibus.api.delivery import Counted
from onibus.api.log import (
    LogPositions,
    LogRange,
    MoveReader,
    OutcomeRange,
    Reach,
    ReachFrom,
    ReaderIn,
    ReaderInfo,
    Readers,
    Replay,
    TakeReader,
    WhichLog,
)
from onibus.api.messages import filter_of
from onibus.protocols.http.arrow import stream_response
from onibus.protocols.http.messages import Response
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


async def positions(call: Call) -> LogPositions:
    given: WhichLog = call.query(WhichLog)
    return call.bus.log_positions(call.entity, log=given.log, since_ms=given.since_ms)


async def reach(call: Call) -> Reach:
    given: ReachFrom = call.query(ReachFrom)
    index = call.number("partition")
    return Reach(call.bus.log_reach(call.entity, index, given.start, given.limit_bytes))


async def read_messages(call: Call) -> Response:
    from onibus.core.log_batch import schema_of

    given: LogRange = call.query(LogRange)
    columns = None if given.columns is None else given.columns.split(",")
    batches = call.bus.read_log(
        call.entity,
        call.number("partition"),
        given.start,
        given.end,
        incarnation=given.incarnation,
        reader=given.reader,
        columns=columns,
        limit=given.limit,
        limit_bytes=given.limit_bytes,
    )
    return await stream_response(schema_of(columns), batches)


async def read_outcomes(call: Call) -> Response:
    from onibus.core.log_batch import OUTCOME_SCHEMA

    given: OutcomeRange = call.query(OutcomeRange)
    batches = call.bus.read_outcomes(
        call.entity,
        call.number("partition"),
        given.start,
        given.end,
        incarnation=given.incarnation,
        reader=given.reader,
    )
    return await stream_response(OUTCOME_SCHEMA, batches)


async def replay(call: Call) -> Counted:
    given: Replay = call.decode(Replay)
    if given.to is not None:
        call.grant(Right.SEND, given.to)
    count = await call.bus.replay(
        call.entity,
        given.partition,
        given.start,
        given.end,
        where=filter_of(given.where),
        to=given.to,
        incarnation=given.incarnation,
    )
    return Counted(count)


async def create_reader(call: Call) -> ReaderInfo:
    given: ReaderIn = call.decode(ReaderIn)
    return await call.bus.create_reader(
        call.entity,
        call.names["reader"],
        log=given.log,
        start=given.start,
        idle_ms=given.idle_ms,
        token=given.token,
        address=given.address,
    )


async def take_reader(call: Call) -> ReaderInfo:
    given: TakeReader = call.decode(TakeReader)
    return await call.bus.take_reader(
        call.entity,
        call.names["reader"],
        held=given.held,
        token=given.token,
        address=given.address,
        idle_ms=given.idle_ms,
    )


async def list_readers(call: Call) -> Readers:
    return Readers(call.bus.readers(call.entity))


async def move_reader(call: Call) -> None:
    given: MoveReader = call.decode(MoveReader)
    await call.bus.move_reader(
        call.entity, call.names["reader"], given.positions, given.incarnation, given.token
    )


async def delete_reader(call: Call) -> None:
    await call.bus.delete_reader(call.entity, call.names["reader"])


def _route(method: str, path: str, summary: str, handler: Any, **more: Any) -> Route:
    more.setdefault("right", Right.LISTEN)
    more.setdefault("tag", "log")
    return Route(
        method=method,
        path=f"/v1/entities/{{entity}}{path}",
        summary=summary,
        handler=handler,
        **more,
    )


ROUTES = [
    _route(
        "GET",
        "/log",
        "Show the readable range of each partition's log.",
        positions,
        query=WhichLog,
        gives=LogPositions,
    ),
    _route(
        "GET",
        "/log/messages/{partition}",
        "Read rows of a partition's log, as Arrow.",
        read_messages,
        query=LogRange,
        gives_arrow=True,
    ),
    _route(
        "GET",
        "/log/messages/{partition}/reach",
        "Return the end of a range with a given number of bytes of a partition's log.",
        reach,
        query=ReachFrom,
        gives=Reach,
    ),
    _route(
        "GET",
        "/log/outcomes/{partition}",
        "Read the outcomes of messages, as Arrow.",
        read_outcomes,
        query=OutcomeRange,
        gives_arrow=True,
    ),
    _route(
        "POST",
        "/log/replay",
        "Send messages of the log again.",
        replay,
        takes=Replay,
        gives=Counted,
        right=Right.MANAGE,
    ),
    _route("GET", "/readers", "List named readers.", list_readers, gives=Readers, tag="readers"),
    _route(
        "PUT",
        "/readers/{reader}",
        "Create a named reader: rows that it has not passed are kept.",
        create_reader,
        takes=ReaderIn,
        gives=ReaderInfo,
        status=201,
        tag="readers",
    ),
    _route(
        "POST",
        "/readers/{reader}/take",
        "Take over a named reader: only moves with its new token count.",
        take_reader,
        takes=TakeReader,
        gives=ReaderInfo,
        tag="readers",
    ),
    _route(
        "POST",
        "/readers/{reader}/move",
        "Move a named reader forward.",
        move_reader,
        takes=MoveReader,
        tag="readers",
    ),
    _route("DELETE", "/readers/{reader}", "Delete a named reader.", delete_reader, tag="readers"),
]
