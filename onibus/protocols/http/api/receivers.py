"""Receivers of an entity over HTTP: AMQP links, waiting receives, and locks that receivers hold."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator

import msgspec

from onibus.core.commands import ListHolds
from onibus.directory.entity import Entity
from onibus.protocols.amqp.serving import AmqpProtocol
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right

#: Links, and locks, that one response lists.
LISTED_MAX = 500
#: Connections looked at before other clients have their turn; messages of locks, and 10 per lock.
_SLICE, _LOOKS_A_SLICE = 500, 20_000


class LinkOut(msgspec.Struct):
    """An AMQP receiver link."""

    #: the address of the client, and the names that it gave its container and the link
    address: str
    container: str
    link: str
    #: names of the keys that the connection has shown
    keys: list[str]
    #: messages that the client can still take, and those that it got so far
    credit: int
    delivered: int
    dead_letters: bool
    #: the session that the link holds
    session_id: str | None = None


class LockOut(msgspec.Struct, omit_defaults=True):
    """Messages that one receive locked."""

    count: int
    partition: int
    #: when they were received, and when the last of their locks expires; absent with a session
    received_ms: int | None = None
    until_ms: int | None = None
    #: the session whose lock holds them
    session_id: str | None = None
    #: the claim or transaction that holds them instead of a receiver
    owner: str = ""


class Receivers(msgspec.Struct):
    """What receives from an entity now."""

    #: receives that wait for a message, over any protocol
    waiting: int
    #: AMQP links, the first ones, and how many there are
    links: list[LinkOut]
    link_count: int
    #: locks by receive, those that hold most first, and how many there are
    locks: list[LockOut]
    lock_count: int


async def receivers(call: Call) -> Receivers:
    """Return what receives from an entity."""
    entity = call.bus.broker.find(call.entity)
    links: list[LinkOut] = []
    for looked, connection in enumerate(list(call.app.collector.amqp.open), 1):
        if looked % _SLICE == 0:
            await asyncio.sleep(0)
        if isinstance(connection, AmqpProtocol):
            links += (LinkOut(*one) for one in connection.receivers(entity.name))
    most: list[LockOut] = []
    count = 0
    for some in _locks(entity):
        most = _largest([*most, *some])
        count += len(some)
        await asyncio.sleep(0)
    links.sort(key=lambda one: (one.address, one.link))
    return Receivers(len(entity.waiters), links[:LISTED_MAX], len(links), most, count)


def _largest(locks: list[LockOut]) -> list[LockOut]:
    """Return the locks that hold most messages, as many as a response lists."""
    return heapq.nsmallest(LISTED_MAX, locks, lambda one: (-one.count, one.received_ms or 0))


def _locks(entity: Entity) -> Iterator[list[LockOut]]:
    """Yield the locks of each partition in slices."""
    for partition in entity.online_partitions():
        start: int | None = 0
        while start is not None:
            some = partition.store.look(partition, ListHolds(entity.number, start, _LOOKS_A_SLICE))
            start = some.next
            yield [
                LockOut(partition=partition.index, **msgspec.structs.asdict(held))
                for held in some.held
            ]


ROUTES = [
    Route(
        method="GET",
        path="/v1/entities/{entity}/receivers",
        summary="List AMQP receiver links, waiting receives and held locks.",
        right=Right.LISTEN,
        handler=receivers,
        gives=Receivers,
        tag="watching",
    )
]
