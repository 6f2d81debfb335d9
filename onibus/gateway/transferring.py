"""Transferring: waiting messages of a queue go to another one when their owner says so.

A slice is one work: a message is either still there or in the other queue, never both or neither.
It is not deduplicated there, since its owner means it to arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from onibus.core.commands import FindEnds, ListWaiting, ReadMessages
from onibus.core.message import Message, ReceivedMessage
from onibus.directory.routing import open_for_sends
from onibus.gateway.moving import Move
from onibus.shard.runner import Steps

if TYPE_CHECKING:
    from onibus.directory.entity import Entity
    from onibus.gateway.broker import Broker

#: A slice is staged as one piece: about this many bytes, or one message that is larger.
SLICE_BYTES = 4 << 20


class Transferred(msgspec.Struct, frozen=True):
    """The outcome of a slice."""

    moved: int
    #: why a message has no destination, or why its destination rejected it
    refused: str | None = None


def transfer(
    broker: Broker,
    source: Entity,
    limit: int,
    below: dict[int, int],
    target_of: Callable[[ReceivedMessage], str | None],
    change: Callable[[ReceivedMessage], Message],
) -> Steps[Transferred]:
    """Move the first waiting messages that share a destination, at most `limit`, changed.

    A slice has at most SLICE_BYTES, or one message that is larger. Only messages with ordinals
    below those of their partitions in `below` are moved.
    """
    now = broker.clock.now()
    for partition in source.partitions:
        broker.advance(partition, now)
        command = ListWaiting(source.number, limit, below.get(partition.id, 0), SLICE_BYTES)
        ordinals = broker.use(source, partition, command, now)
        if ordinals:
            break
    else:
        return Transferred(0)
    views = broker.use(source, partition, ReadMessages(source.number, ordinals), now)
    name = target_of(views[0])
    if name is None:
        return Transferred(0, "its original entity is unknown")
    together = [one for one, view in zip(ordinals, views, strict=True) if target_of(view) == name]
    move = Move(broker, source, open_for_sends(broker, name), deduplicated=False)
    move.add(partition, together, change)
    refused = str(move.refused[0][2]) if move.refused else None
    if move.messages:
        yield partial(broker.works.do, move.parts(), now)
    return Transferred(len(move.messages), refused)


def ends(source: Entity) -> dict[int, int]:
    """Return where the logs of a queue's partitions end now, for `below`."""
    return {
        partition.id: partition.store.look(partition, FindEnds()).following
        for partition in source.partitions
    }
