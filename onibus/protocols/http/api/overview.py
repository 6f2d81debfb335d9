"""Watching entities over HTTP: an overview with search, live changes, history, partitions.

The console is made of these calls. All of them only read, and any program may use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from onibus.api.log import ReaderInfo, Readers, ReadersQuery
from onibus.api.wire import NDJSON
from onibus.core.commands import ListGroups, Measure
from onibus.core.errors import OnibusError
from onibus.core.inspection import STATES
from onibus.directory.entity import Entity
from onibus.directory.named_reader import NamedReader
from onibus.directory.namespace import Namespace
from onibus.directory.readers import describe
from onibus.operation.figures import Figures, KnownFigures
from onibus.operation.health import readiness
from onibus.operation.history import Points
from onibus.operation.version import own_version
from onibus.protocols.http.messages import Response
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right
from onibus.shard.shard import Shard

if TYPE_CHECKING:
    from onibus.gateway.broker import Broker

#: Rows of one page, and rows that one client watches.
ROWS_MAX = 200
#: Message groups that one response lists.
GROUPS_MAX = 1_000
#: Entities looked at before other clients have their turn: about a millisecond.
_SLICE = 200
#: The same, if the oldest message of each is read.
_SLICE_OF_READS = 20
#: The same for named readers, which have a position in each partition, and for message groups.
_READERS_A_SLICE, _GROUPS_A_SLICE = 50, 2_000
#: Points of the small plot in a row: five minutes.
_SPARK = 30
#: Seconds between two looks at watched rows, and after which an unchanged stream shows life.
_LOOK_SECONDS = 2.0
_ALIVE_SECONDS = 20.0

Sort = Literal[
    "name", "active", "dead_lettered", "scheduled", "accepted", "gone", "duplicates", "oldest"
]


class RightsOut(msgspec.Struct):
    """What the caller's key or token allows."""

    #: the key's name
    key: str
    rights: list[str]
    #: the entity that the key or token is for; empty for the whole namespace
    entity: str


async def rights(call: Call) -> RightsOut:
    """Return what the caller may do."""
    granted = call.granted
    names = sorted(right.value for right in granted.rights)
    return RightsOut(granted.name, names, granted.scope or granted.entity)


class OverviewQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which entities to show."""

    #: shows entities whose name contains this, in any case
    search: str = ""
    kind: Literal["", "queue", "topic", "subscription"] = ""
    #: shows only entities with dead-lettered messages, or with an offline partition
    only: Literal["", "dead-lettered", "limited"] = ""
    #: by name, or the largest figure first, or the oldest waiting message first
    sort: Sort = "name"
    start: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = 100


class OverviewRow(Figures, kw_only=True, omit_defaults=True):
    """An entity with its figures."""

    name: str
    #: queue, topic or subscription
    kind: str
    #: active, disabled, send-disabled or receive-disabled
    status: str
    #: per second, over the last ten seconds
    accepted_per_s: float = 0.0
    gone_per_s: float = 0.0
    #: when the oldest waiting message was enqueued
    oldest_ms: int | None = None
    #: counts of active messages, every ten seconds
    depths: list[int] = []


class StoreOut(msgspec.Struct):
    """A message store, or the store of the namespace."""

    name: str
    is_up: bool
    #: why it is down, empty if it is up
    error: str = ""
    commits: int = 0
    size_bytes: int = 0
    free_bytes: int = 0


class NodeOut(msgspec.Struct):
    """The server process."""

    #: host and process id
    name: str
    version: str
    #: since when it runs
    started_ms: int
    #: whether all stores and partitions are up
    ready: bool
    #: open HTTP connections
    connections: int
    #: resident memory, 0 if unknown
    memory_bytes: int


class Overview(msgspec.Struct, kw_only=True):
    """A page of entities, and the namespace as a whole."""

    rows: list[OverviewRow]
    #: entities that match, on all pages
    count: int
    #: sums over all entities that match
    total: Figures
    stores: list[StoreOut]
    node: NodeOut
    alarms: int
    #: the last alarm; empty without alarms
    last_alarm: str = ""


def row_of(call: Call, entity: Entity, figures: Figures) -> OverviewRow:
    """Return the row of an entity."""
    history = call.app.history
    accepted, gone = history.rates(entity)
    return OverviewRow(
        name=entity.name,
        kind=entity.kind,
        status=entity.settings.status,
        accepted_per_s=accepted,
        gone_per_s=gone,
        oldest_ms=call.app.figures.oldest_ms(entity),
        depths=history.depths(entity, _SPARK),
        **msgspec.structs.asdict(figures),
    )


async def overview(call: Call) -> Overview:
    """Find, sum up and sort all entities in slices; build the rows of one page."""
    asked: OverviewQuery = call.query(OverviewQuery)
    word = asked.search.lower()
    matching: list[tuple[Entity, Figures]] = []
    entities = list(call.bus.broker.namespace.entities.values())
    known, by_age = call.app.figures, asked.sort == "oldest"
    for looked, entity in enumerate(entities, 1):
        if looked % (_SLICE_OF_READS if by_age else _SLICE) == 0:
            await asyncio.sleep(0)
        if (asked.kind and entity.kind != asked.kind) or word not in entity.name.lower():
            continue
        figures = known.of(entity)
        if asked.only == "dead-lettered" and not figures.dead_lettered:
            continue
        if asked.only == "limited" and not figures.offline:
            continue
        matching.append((entity, figures))
        if by_age:
            known.oldest_ms(entity)
    alarms = call.bus.broker.alarms
    page = heapq.nsmallest(asked.start + asked.limit, matching, _order(asked.sort, known))
    return Overview(
        rows=[row_of(call, entity, figures) for entity, figures in page[asked.start :]],
        count=len(matching),
        total=_total([figures for _, figures in matching]),
        stores=list(_stores(call)),
        node=_node(call),
        alarms=alarms.count,
        last_alarm=alarms.kept[-1] if alarms.kept else "",
    )


def _node_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _node(call: Call) -> NodeOut:
    """Return the state of this process."""
    app = call.app
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory = pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        memory = 0  # not Linux
    return NodeOut(
        name=_node_name(),
        version=own_version(),
        started_ms=app.started_ms,
        ready=readiness(call.bus).ready,
        connections=len(app.traffic.open),
        memory_bytes=memory,
    )


def _order(sort: str, known: KnownFigures) -> Callable[[tuple[Entity, Figures]], Any]:
    """Return the key by which entities are sorted."""
    if sort == "name":
        # Subscriptions follow their topic.
        return lambda one: one[0].name.replace("/subscriptions/", "\0")
    if sort == "oldest":
        return lambda one: (known.oldest_ms(one[0]) or math.inf, one[0].name)
    return lambda one: (-getattr(one[1], sort), one[0].name)


def _total(found: list[Figures]) -> Figures:
    """Return the sums of all figures."""
    names = Figures.__struct_fields__
    return Figures(**{name: sum(map(attrgetter(name), found)) for name in names})


def _stores(call: Call) -> Iterable[StoreOut]:
    broker = call.bus.broker
    owners: list[Namespace | Shard] = [broker.namespace, *broker.stores.values()]
    for one in owners:
        loop = one.loop
        if loop is None or one.stalled:
            error = getattr(one, "error", None)
            yield StoreOut(one.name, False, str(error or "its disk does not respond"))
            continue
        try:
            sizes = (loop.store.size(), loop.store.free())
        except OSError as error:
            yield StoreOut(one.name, False, str(error))
            continue
        yield StoreOut(one.name, True, "", loop.commits, *sizes)


class Watch(msgspec.Struct, forbid_unknown_fields=True):
    """Which entities to watch."""

    names: Annotated[list[str], Meta(min_length=1, max_length=ROWS_MAX)]


def watch(call: Call) -> None:
    """Stream a line of JSON for each watched entity whenever its figures change."""
    given: Watch = call.decode(Watch)
    _stream(call, given.names)


def watch_one(call: Call) -> None:
    """Stream a line of JSON whenever the figures of an entity change."""
    _stream(call, [call.bus.broker.find(call.entity).name])


def _stream(call: Call, names: list[str]) -> None:
    stopping = asyncio.Event()
    # Set before this returns: the client may have closed its side already.
    call.request.hurry = stopping.set
    call.request.endless = True
    stream = _changes(call, names, stopping)
    call.respond(Response(200, content_type=NDJSON, stream=stream))


async def _changes(call: Call, names: list[str], stopping: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield changed rows; a deleted entity is {"name": …, "deleted": true}, once."""
    entities = call.bus.broker.namespace.entities
    shown: dict[str, Figures | None] = {}
    #: rates and status of those that were shown
    others: dict[str, tuple[float, float, str]] = {}
    loop = asyncio.get_running_loop()
    spoke = loop.time()
    while not stopping.is_set():
        try:
            call.check_again()
        except OnibusError:
            return
        lines = []
        for name in names:
            entity = entities.get(name)
            if entity is None:
                if shown.get(name, Figures()) is not None:
                    lines.append(msgspec.json.encode({"name": name, "deleted": True}))
                shown[name] = None
                continue
            figures = call.app.figures.of(entity)
            other = (*call.app.history.rates(entity), entity.settings.status)
            if shown.get(name) != figures or others.get(name) != other:
                shown[name], others[name] = figures, other
                lines.append(msgspec.json.encode(row_of(call, entity, figures)))
        if lines or loop.time() - spoke > _ALIVE_SECONDS:
            spoke = loop.time()
            # An empty line shows that the server is there.
            yield b"\n".join([*lines, b""]) or b"\n"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _LOOK_SECONDS)


async def history(call: Call) -> Points:
    """Return what is kept of an entity's last hour."""
    return call.app.history.points(call.bus.broker.find(call.entity))


async def readers(call: Call) -> Response:
    """Return the named readers of all entities, lakes among them: a page, described in slices."""
    asked: ReadersQuery = call.query(ReadersQuery)
    word = asked.search.lower()
    found: list[tuple[str, Entity, NamedReader]] = []
    looked = 0
    for entity in list(call.bus.broker.namespace.entities.values()):
        for reader in [None, *entity.readers.values()]:
            looked += 1
            if looked % _SLICE == 0:
                await asyncio.sleep(0)
            if reader is None:
                continue  # the entity itself
            address = reader.address or ""
            if reader.durable and word in f"{address}\n{entity.name}\n{reader.name}".lower():
                found.append((address, entity, reader))
    found.sort(key=lambda one: (one[0], one[1].name, one[2].name))
    end = None if asked.limit is None else asked.start + asked.limit
    page = ((entity, reader) for _, entity, reader in found[asked.start : end])
    shown = await described(call.bus.broker, page)
    return await call.encode(lambda infos: Readers(infos, len(found)), shown)


async def described(
    broker: Broker, readers: Iterable[tuple[Entity, NamedReader]]
) -> list[ReaderInfo]:
    """Describe readers in slices, without those that are deleted by then."""
    found = []
    for looked, (entity, reader) in enumerate(readers, 1):
        if looked % _READERS_A_SLICE == 0:
            await asyncio.sleep(0)
        if not reader.durable or broker.namespace.entities.get(entity.name) is not entity:
            continue
        if entity.readers.get(reader.name) is reader:
            found.append(describe(entity, reader))
    return found


class Summary(OverviewRow, kw_only=True):
    """An entity with its figures, for callers that may not manage it."""

    requires_session: bool = False
    fair_delivery: bool = False
    fifo: bool = False


async def summary(call: Call) -> Summary:
    """Return the figures of an entity."""
    entity = call.bus.broker.find(call.entity)
    row = row_of(call, entity, call.app.figures.of(entity))
    settings = entity.settings
    return Summary(
        **msgspec.structs.asdict(row),
        requires_session=getattr(settings, "requires_session", False),
        fair_delivery=getattr(settings, "fair_delivery", False),
        fifo=getattr(settings, "fifo", False),
    )


class GroupOut(msgspec.Struct):
    """A message group of a queue with fair delivery."""

    group: str
    in_flight: int
    #: it takes more than its share of the receivers: others come first
    noisy: bool
    #: messages found to wait behind those of other groups
    passed: int


class Groups(msgspec.Struct):
    """Message groups in flight, and the noisy ones, which come first."""

    groups: list[GroupOut]
    #: groups in flight or noisy, also those that are not listed
    count: int


async def groups(call: Call) -> Groups:
    """Return the message groups of a queue with fair delivery; none without it."""
    broker = call.bus.broker
    entity = broker.find(call.entity)
    found: dict[str, GroupOut] = {}
    for partition in entity.online_partitions():
        start: int | None = 0
        while start is not None:
            some = partition.store.look(
                partition, ListGroups(entity.number, start, _GROUPS_A_SLICE)
            )
            start = some.next
            for name, group in some.groups.items():
                out = found.setdefault(name, GroupOut(name, 0, False, 0))
                out.in_flight += group.in_flight
                out.noisy |= group.is_noisy
                out.passed += group.passed
            await asyncio.sleep(0)
    every = list(found.values())
    first: list[GroupOut] = []
    for begin in range(0, len(every), _GROUPS_A_SLICE):
        first = _first_groups([*first, *every[begin : begin + _GROUPS_A_SLICE]])
        await asyncio.sleep(0)
    return Groups(first, len(found))


def _first_groups(groups: list[GroupOut]) -> list[GroupOut]:
    """Return the noisy groups, then those with most messages in flight, up to a limit."""
    return heapq.nsmallest(
        GROUPS_MAX, groups, lambda one: (not one.noisy, -one.in_flight, one.group)
    )


class PartitionOut(msgspec.Struct, kw_only=True):
    """One partition of an entity, and where it is stored."""

    index: int
    store: str
    #: the server process that has the store open, as host and process id
    owner: str
    is_online: bool
    #: why it is offline, empty if it is online
    error: str = ""
    active: int = 0
    dead_lettered: int = 0
    size_bytes: int = 0
    recorded_ids: int = 0


class Partitions(msgspec.Struct):
    """The partitions of an entity."""

    partitions: list[PartitionOut]


async def partitions(call: Call) -> Partitions:
    """Return each partition with its store and counts."""
    entity = call.bus.broker.find(call.entity)
    owner = _node_name()
    found = []
    for partition in entity.partitions:
        out = PartitionOut(
            index=partition.index,
            store=partition.store.name,
            owner=owner,
            is_online=partition.is_online,
        )
        if partition.is_online:
            measured = partition.store.look(partition, Measure(entity.number))
            out.active = measured.active
            out.dead_lettered = measured.count(STATES["dead-lettered"])
            out.size_bytes = measured.size_bytes
            out.recorded_ids = measured.recorded_ids
        else:
            out.error = partition.offline
        found.append(out)
    return Partitions(found)


ROUTES = [
    Route(
        method="GET",
        path="/v1/rights",
        summary="Show what the caller's key or token allows.",
        right=Right.LISTEN,
        handler=rights,
        gives=RightsOut,
        tag="watching",
        any_key=True,
    ),
    Route(
        method="GET",
        path="/v1/overview",
        summary="List entities with counts and rates: filtered, sorted, page by page.",
        right=Right.MONITOR,
        handler=overview,
        query=OverviewQuery,
        gives=Overview,
        tag="watching",
    ),
    Route(
        method="POST",
        path="/v1/overview/watch",
        summary="Stream the rows of some entities, one JSON line per change.",
        right=Right.MONITOR,
        fast=watch,
        takes=Watch,
        gives_text=True,
        tag="watching",
    ),
    Route(
        method="GET",
        path="/v1/readers",
        summary="List the named readers of all entities.",
        right=Right.MONITOR,
        handler=readers,
        query=ReadersQuery,
        gives=Readers,
        tag="watching",
    ),
    Route(
        method="GET",
        path="/v1/entities/{entity}/summary",
        summary="Show the counts and rates of an entity.",
        right=Right.LISTEN,
        handler=summary,
        gives=Summary,
        tag="watching",
    ),
    Route(
        method="POST",
        path="/v1/entities/{entity}/watch",
        summary="Stream the counts and rates of an entity, one JSON line per change.",
        right=Right.LISTEN,
        fast=watch_one,
        gives_text=True,
        tag="watching",
    ),
    Route(
        method="GET",
        path="/v1/entities/{entity}/history",
        summary="Show counts and rates of the last hour, every ten seconds.",
        right=Right.LISTEN,
        handler=history,
        gives=Points,
        tag="watching",
    ),
    Route(
        method="GET",
        path="/v1/entities/{entity}/groups",
        summary="List message groups in flight, and which of them are noisy.",
        right=Right.LISTEN,
        handler=groups,
        gives=Groups,
        tag="watching",
    ),
    Route(
        method="GET",
        path="/v1/entities/{entity}/partitions",
        summary="List partitions with their stores and counts.",
        right=Right.LISTEN,
        handler=partitions,
        gives=Partitions,
        tag="watching",
    ),
]
