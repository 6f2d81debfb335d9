"""Transferring: waiting messages of a queue go to another one when their owner says so.

A slice is one work: a message is either still there or in the other queue, never both or neither.
It is not deduplicated there, since its owner means it to arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from onibus.broker.moving import Move
from onibus.broker.sending import open_for_sends
from onibus.core.commands import ListWaiting, ReadMessages
from onibus.core.message import Message, ReceivedMessage
from onibus.shard.replies import Outcome, Reply, answer, fail

if TYPE_CHECKING:
    from onibus.broker.broker import Broker
    from onibus.broker.entity import Entity
    from onibus.shard.seat import Seat

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
    reply: Reply,
) -> None:
    """Move the first waiting messages that share a destination, at most `limit`, changed.

    A slice has at most SLICE_BYTES, or one message that is larger. Only messages with ordinals
    below those of their partitions in `below` are moved.
    """
    now = broker.clock.now()
    for seat in source.seats:
        broker.advance(seat, now)
        command = ListWaiting(source.number, limit, below.get(seat.id, 0), SLICE_BYTES)
        ordinals = broker.use(source, seat, command, now)
        if ordinals:
            _move(broker, source, seat, ordinals, target_of, change, now, reply)
            return
    answer(reply, Transferred(0))


def ends(source: Entity) -> dict[int, int]:
    """Return where the logs of a queue's partitions end now, for `below`."""
    return {seat.id: seat.online().log.next_ordinal for seat in source.seats}


def _move(
    broker: Broker,
    source: Entity,
    seat: Seat,
    ordinals: list[int],
    target_of: Callable[[ReceivedMessage], str | None],
    change: Callable[[ReceivedMessage], Message],
    now: int,
    reply: Reply,
) -> None:
    views = broker.use(source, seat, ReadMessages(source.number, ordinals), now)
    name = target_of(views[0])
    if name is None:
        answer(reply, Transferred(0, "its original entity is unknown"))
        return
    together = [one for one, view in zip(ordinals, views, strict=True) if target_of(view) == name]
    move = Move(broker, source, open_for_sends(broker, name), deduplicated=False)
    move.add(seat, together, change)
    refused = str(move.refused[0][2]) if move.refused else None
    if not move.messages:
        answer(reply, Transferred(0, refused))
        return
    count = len(move.messages)

    def done(outcome: Outcome) -> None:
        if outcome.error is not None:
            fail(reply, outcome.error)
        else:
            answer(reply, Transferred(count, refused))

    broker.works.do(move.parts(), now, Outcome(done))
