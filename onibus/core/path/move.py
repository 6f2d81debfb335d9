"""Move: which messages leave for another entity, by forwarding, resubmission or redrive."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from onibus.core.commands import (
    ChooseMovable,
    Chosen,
    DeadLetterAll,
    FindMovable,
    HasForwardable,
    KeepDeadLetters,
    ListForwardable,
    ListWaiting,
    ReadMessages,
)
from onibus.core.errors import MessageNotFound, PartitionOffline
from onibus.core.lifecycle import State
from onibus.core.marks import STATE_WORDS
from onibus.core.message import ReceivedMessage
from onibus.core.path.dead_letter import dead_letter
from onibus.core.path.peek import SLICE_BYTES, live_ordinals
from onibus.core.path.room import Room
from onibus.core.path.work import is_work
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition

_WAITING = frozenset({State.ACTIVE})


def read_messages(
    partition: Partition, command: ReadMessages, now: int, wall: int, out: WriteBatch
) -> list[ReceivedMessage]:
    """Return messages by their ordinals."""
    subscription = partition.subscriptions[command.subscription]
    room, ordinals = Room.of(command.bytes_max), command.ordinals
    if room is not None:
        ordinals = ordinals[: room.take(partition.log, ordinals)]
    return [subscription.view(ordinal) for ordinal in ordinals]


def list_forwardable(
    partition: Partition, command: ListForwardable, now: int, wall: int, out: WriteBatch
) -> list[int]:
    """Return the first messages that wait to be forwarded."""
    subscription = partition.subscriptions[command.subscription]
    holds = subscription.owned.values()
    if command.unless_held and any(is_work(hold.owner) for hold in holds):
        raise PartitionOffline("an operation on earlier messages is not decided")
    below = subscription.log.visible_below
    waiting = subscription.dead_ready.onward if command.dead else subscription.ready
    ready = [
        ordinal
        for ordinal in islice(waiting.ordinals(), command.limit)
        if ordinal < below and (command.dead or subscription.expires(ordinal) > now)
    ]
    return ready[: Room(command.bytes_max).take(partition.log, ready)]


def has_forwardable(
    partition: Partition, command: HasForwardable, now: int, wall: int, out: WriteBatch
) -> bool:
    """Return whether dead-lettered messages wait to be forwarded."""
    return bool(partition.subscriptions[command.subscription].dead_ready.onward.count)


def keep_dead_letters(
    partition: Partition, command: KeepDeadLetters, now: int, wall: int, out: WriteBatch
) -> None:
    """Forward these dead-lettered messages no longer; None to forward all of them again."""
    letters = partition.subscriptions[command.subscription].dead_ready
    if command.ordinals is None:
        letters.keep_none()
    else:
        letters.keep(list(command.ordinals))


def dead_letter_all(
    partition: Partition, command: DeadLetterAll, now: int, wall: int, out: WriteBatch
) -> None:
    """Dead-letter messages that are not locked."""
    subscription = partition.subscriptions[command.subscription]
    for ordinal, reason, description in command.letters:
        dead_letter(subscription, ordinal, reason, description, out)


def find_movable(
    partition: Partition, command: FindMovable, now: int, wall: int, out: WriteBatch
) -> list[int]:
    """Return the ordinals of messages in a state, or reject all of them."""
    subscription = partition.subscriptions[command.subscription]
    ordinals = []
    for number in command.numbers:
        ordinal = subscription.ordinal(number)
        if subscription.state(ordinal) is not command.state:
            word = STATE_WORDS[command.state]
            raise MessageNotFound(f"message {number} is not {word}, or it is locked")
        ordinals.append(ordinal)
    return ordinals


def choose_movable(
    partition: Partition, command: ChooseMovable, now: int, wall: int, out: WriteBatch
) -> Chosen:
    """Return a slice of the messages in a state that match a filter."""
    subscription = partition.subscriptions[command.subscription]
    there = live_ordinals(subscription, command.start, frozenset({command.state}))
    chosen: list[int] = []
    size = 0
    for looked, ordinal in enumerate(there, 1):
        if ordinal >= command.below:
            break
        matches, effort = command.wanted.look(subscription.view(ordinal))
        size += effort
        if matches:
            chosen.append(ordinal)
        if looked == command.looks or size > SLICE_BYTES or len(chosen) == command.most:
            return Chosen(chosen, ordinal + 1)
    return Chosen(chosen, 0)


def list_waiting(
    partition: Partition, command: ListWaiting, now: int, wall: int, out: WriteBatch
) -> list[int]:
    """Return the first available messages whose session is free, below an ordinal."""
    subscription = partition.subscriptions[command.subscription]
    found: list[int] = []
    for ordinal in live_ordinals(subscription, 0, _WAITING):
        if ordinal >= command.below or len(found) == command.limit:
            break
        if subscription.settings.requires_session:
            session = subscription.session_of(ordinal)
            if session.in_use or session.waiting:
                continue
        found.append(ordinal)
    return found[: Room(command.bytes_max).take(partition.log, found)]
