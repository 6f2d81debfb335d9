"""Receive deferred messages by sequence number (L2), atomically."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.commands import ReceiveDeferred
from onibus.core.errors import MessageNotFound
from onibus.core.lifecycle import State
from onibus.core.message import ReceivedMessage
from onibus.core.path.held import held_session
from onibus.core.path.receive import delete_received, lock
from onibus.core.path.room import Room
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition


def receive_deferred(
    partition: Partition, command: ReceiveDeferred, now: int, wall: int, out: WriteBatch
) -> list[ReceivedMessage]:
    """Lock or delete deferred messages."""
    ordinals = find_deferred(partition, command)
    subscription = partition.subscriptions[command.subscription]
    if command.delete:
        return delete_received(subscription, ordinals, out, taken=False)
    held = command.session
    session = None if held is None else held_session(subscription, held)
    return lock(subscription, ordinals, session, now)


def find_deferred(partition: Partition, command: ReceiveDeferred) -> list[int]:
    """Return the ordinals of deferred messages that could be received, or reject all of them."""
    subscription = partition.subscriptions[command.subscription]
    held = command.session
    session = None if held is None else held_session(subscription, held)
    wanted = State.DEAD_LETTERED_DEFERRED if command.dead else State.DEFERRED
    ordinals = []
    for number in dict.fromkeys(command.numbers):
        ordinal = subscription.ordinal(number)
        if subscription.state(ordinal) is not wanted:
            raise MessageNotFound(f"message {number} is not deferred, or it is locked")
        if session is not None and subscription.session_name(ordinal) != session.id:
            raise MessageNotFound(f"message {number} is not in session {session.id!r}")
        ordinals.append(ordinal)
    room = Room.of(command.bytes_max)
    if room is not None:
        room.take_all(subscription.log, ordinals)
    return ordinals
