"""Receivers of an entity over HTTP: AMQP links, waiting receives, and locks that receivers hold."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator

import msgspec

from onibus.broker.entity import Entity
from onibus.core.block import NEVER
from onibus.protocols.amqp.serving import AmqpProtocol
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right

#: Links, and locks, that one response lists.
LISTED_MAX = 500
#: Connections looked at before other clients have their turn.
_SLICE = 500


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
    locks = list(_locks(entity))
    most = heapq.nsmallest(LISTED_MAX, locks, lambda one: (-one.count, one.received_ms or 0))
    links.sort(key=lambda one: (one.address, one.link))
    return Receivers(len(entity.waiters), links[:LISTED_MAX], len(links), most, len(locks))


def _locks(entity: Entity) -> Iterator[LockOut]:
    for seat in entity.seats:
        partition = seat.partition
        part = None if partition is None else partition.subscriptions.get(entity.number)
        if partition is None or part is None:
            continue
        shown = partition.offsets.shown
        for hold in part.holds.values():
            if not hold.ordinals:
                continue
            out = LockOut(len(hold.ordinals), seat.index, session_id=hold.session, owner=hold.owner)
            if hold.until != NEVER:
                out.received_ms = shown(hold.received)
                out.until_ms = shown(max(hold.ordinals.values()))
            yield out


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
