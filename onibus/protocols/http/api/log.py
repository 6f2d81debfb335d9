"""The log over HTTP: messages and outcomes as Arrow, named readers, replay (R1 to R4, X7).

Clients read a log partition by partition, between two numbers, the end exclusive. A response is an
Arrow IPC stream, generated as it is sent; if it breaks off, it was incomplete.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from onibus.api.delivery import Counted
from onibus.api.log import (
    LogPositions,
    LogRange,
    LogRanges,
    MoveReader,
    OutcomeRange,
    PlanRead,
    Reach,
    ReachFrom,
    ReaderIn,
    ReaderInfo,
    Readers,
    Replay,
    TakeReader,
    WhichLog,
    ranges_of,
)
from onibus.api.messages import filter_of
from onibus.core.errors import InvalidArgument
from onibus.gateway import read_planning
from onibus.protocols.http.api.overview import described
from onibus.protocols.http.arrow import stream_response
from onibus.protocols.http.messages import Response
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right

if TYPE_CHECKING:
    import pyarrow as pa


async def positions(call: Call) -> LogPositions:
    given: WhichLog = call.query(WhichLog)
    return call.bus.log_positions(call.entity, log=given.log, since_ms=given.since_ms)


def plan_read(call: Call) -> None:
    """Return how far a read of all partitions goes, waiting for its first row."""
    given: PlanRead = call.decode(PlanRead)
    call.ask(
        lambda reply: read_planning.plan(
            call.bus.broker,
            call.entity,
            given.positions,
            reply,
            log=given.log,
            until=given.until,
            limit=given.limit,
            limit_bytes=given.limit_bytes,
            since_ms=given.since_ms,
            wait_ms=given.wait_ms,
            incarnation=given.incarnation,
        ),
        lambda planned: planned,
    )


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


async def read_messages_of_partitions(call: Call) -> Response:
    from onibus.core.log_batch import schema_of

    given: LogRanges = call.query(LogRanges)
    columns = None if given.columns is None else given.columns.split(",")
    ranges = [
        call.bus.read_log(call.entity, *one, incarnation=given.incarnation, columns=columns)
        for one in ranges_of(given.ranges)
    ]
    return await stream_response(schema_of(columns), _in_order(ranges))


async def read_outcomes_of_partitions(call: Call) -> Response:
    from onibus.core.log_batch import OUTCOME_SCHEMA

    given: LogRanges = call.query(LogRanges)
    if given.columns is not None:
        raise InvalidArgument("outcomes have no choice of columns: omit columns")
    ranges = [
        call.bus.read_outcomes(call.entity, *one, incarnation=given.incarnation)
        for one in ranges_of(given.ranges)
    ]
    return await stream_response(OUTCOME_SCHEMA, _in_order(ranges))


async def _in_order(ranges: list[AsyncIterator[pa.RecordBatch]]) -> AsyncIterator[pa.RecordBatch]:
    """Yield the rows of one range after the other."""
    for batches in ranges:
        async for batch in batches:
            yield batch


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


async def list_readers(call: Call) -> Response:
    """List the readers of an entity in slices: clients may create any number of them."""
    entity = call.bus.broker.find(call.entity)
    every = [one for _, one in sorted(entity.readers.items())]
    shown = await described(call.bus.broker, ((entity, one) for one in every))
    return await call.encode(lambda infos: Readers(infos, len(infos)), shown)


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
        "POST",
        "/log/plan",
        "Return how far a read of all partitions goes, waiting for its first row.",
        None,
        fast=plan_read,
        takes=PlanRead,
        gives=LogPositions,
    ),
    _route(
        "GET",
        "/log/messages",
        "Read rows of several partitions, one after the other, as Arrow.",
        read_messages_of_partitions,
        query=LogRanges,
        gives_arrow=True,
    ),
    _route(
        "GET",
        "/log/outcomes",
        "Read outcomes of several partitions, one after the other, as Arrow.",
        read_outcomes_of_partitions,
        query=LogRanges,
        gives_arrow=True,
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
