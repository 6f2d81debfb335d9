"""Receive: the first available messages, locked or deleted."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from onibus.core.block import NEVER
from onibus.core.commands import Receive, Received
from onibus.core.fair_queue import FairQueue
from onibus.core.lifecycle import Input
from onibus.core.limits import RECEIVED_MAX
from onibus.core.message import ReceivedMessage
from onibus.core.numbering import ORDINAL_CODE
from onibus.core.path.dead_letter import expire_message
from onibus.core.path.held import held_session
from onibus.core.path.room import Room
from onibus.core.records import WriteBatch
from onibus.core.runs import as_runs
from onibus.core.sessions import Session

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription


#: Expired messages that one receive deletes on its way; it returns what it has found by then.
EXPIRED_MAX = 1_000


def receive(
    partition: Partition, command: Receive, now: int, wall: int, out: WriteBatch
) -> Received:
    """Lock or delete the first messages that are available, at most `limit`."""
    subscription = partition.subscriptions[command.subscription]
    held = command.session
    session = None if held is None else held_session(subscription, held)
    if command.held_max is not None and subscription.held() >= command.held_max:
        return Received([], command.bytes_max, over=True)
    ordinals = _choose(subscription, command, session, now, out)
    room = Room.of(command.bytes_max, command.at_least_one)
    if room is not None:
        fitting = room.take(subscription.log, ordinals)
        put_back(subscription, ordinals[fitting:], session, command.dead)
        ordinals = ordinals[:fitting]
    left = None if room is None else room.left
    if not ordinals:
        return Received([], left)
    if command.delete:
        received = delete_received(subscription, ordinals, out, taken=True)
    else:
        received = lock(subscription, ordinals, session, now, command.visibility_ms)
    if not command.dead:
        note_waits(subscription, received, now)
        if not command.delete and isinstance(subscription.ready, FairQueue):
            hold = subscription.marks.hot[ordinals[0]].hold
            assert hold is not None
            subscription.ready.noise.fly(hold, ordinals, received, now)
    return Received(received, left)


def _choose(
    subscription: Subscription,
    command: Receive,
    session: Session | None,
    now: int,
    out: WriteBatch,
) -> list[int]:
    """Take the first messages out of those that are available; expired ones expire here."""
    limit = min(command.limit, RECEIVED_MAX)
    if session is not None:
        return take_living(subscription, session, limit, now, out)
    below = subscription.log.visible_below
    ordinals: list[int] = []
    expired = 0
    while len(ordinals) < limit and expired < EXPIRED_MAX:
        wanted = _wanted(subscription, limit - len(ordinals), expired, now)
        if command.dead:
            taken = subscription.dead_ready.take(wanted, below)
        else:
            taken = subscription.ready.take(wanted, below, now)
        if not taken:
            break
        living = taken if command.dead else still_living(subscription, taken, now, out)
        expired += len(taken) - len(living)
        ordinals += living
    return ordinals


def _wanted(subscription: Subscription, most: int, expired: int, now: int) -> int:
    """Return how many messages to take at once: few, if some may have expired."""
    by_block = subscription.settings.expires_after_ms is None
    if by_block and subscription.log.next_expiry() > now:
        return most
    return min(most, EXPIRED_MAX - expired)


def put_back(
    subscription: Subscription, ordinals: list[int], session: Session | None, dead: bool
) -> None:
    """Make messages available again that were taken out: they come before all others."""
    if session is not None:
        session.ready[:0] = array(ORDINAL_CODE, ordinals)
        return
    ready = subscription.dead_ready if dead else subscription.ready
    for first, last in as_runs(ordinals):
        ready.add(first, last)


def lock(
    subscription: Subscription,
    ordinals: list[int],
    session: Session | None,
    now: int,
    visibility_ms: int | None = None,
) -> list[ReceivedMessage]:
    """Lock messages, or hold them by the lock of their session."""
    if session is None:
        duration = visibility_ms
        if duration is None:
            duration = subscription.settings.lock_duration_ms
        hold = subscription.new_hold(now + duration, duration, None)
        until = hold.until
    else:
        assert session.lock is not None
        hold = subscription.new_hold(NEVER, 0, session.id)
        session.lock.holds.add(hold.epoch)
        until = session.lock.until
    subscription.lock(ordinals, hold)
    subscription.tally.delivered += len(ordinals)
    return subscription.views(ordinals, hold, until)


def still_living(
    subscription: Subscription, ordinals: list[int], now: int, out: WriteBatch
) -> list[int]:
    """Return the messages whose TTL has not passed; the others expire here."""
    log = subscription.log
    by_block = subscription.settings.expires_after_ms is None
    if by_block and log.next_expiry() > now:
        return ordinals
    living = []
    for ordinal in ordinals:
        if by_block and log.find(ordinal).expires > now:
            # Nothing in its block has expired: no need to look at the row.
            living.append(ordinal)
        elif subscription.expires(ordinal) <= now:
            expire_message(subscription, ordinal, out, taken=True)
        else:
            living.append(ordinal)
    return living


def delete_received(
    subscription: Subscription, ordinals: list[int], out: WriteBatch, taken: bool
) -> list[ReceivedMessage]:
    """Receive and delete; `taken`: they are out of the available messages already."""
    received = subscription.views(ordinals)
    for ordinal in ordinals:
        subscription.change(ordinal, Input.TAKE, out, taken=taken)
    subscription.depart(ordinals, out)
    subscription.tally.delivered += len(ordinals)
    return received


def note_waits(subscription: Subscription, received: list[ReceivedMessage], now: int) -> None:
    """Count how long messages waited for their first delivery."""
    subscription.tally.waits.note(received, subscription.partition.offsets.shown(now))


def take_living(
    subscription: Subscription, session: Session, limit: int, now: int, out: WriteBatch
) -> list[int]:
    """Take the first messages of a session that have not expired."""
    below = subscription.log.visible_below
    living: list[int] = []
    expired = 0
    while True:
        wanted = _wanted(subscription, limit - len(living), expired, now)
        taken = session.take(wanted, below)
        left = still_living(subscription, taken, now, out)
        if len(left) < len(taken):
            expired += len(taken) - len(left)
            for ordinal in set(taken).difference(left):
                session.forget_turn(ordinal)
        living += left
        if len(taken) < wanted or len(living) == limit or expired >= EXPIRED_MAX:
            return living
