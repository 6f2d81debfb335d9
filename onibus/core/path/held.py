"""What a token holds: a session, or a message that was delivered earlier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.commands import FindHeld, FoundHeld, HasAttempt, HeldSession
from onibus.core.errors import SessionLockLost, UnknownToken
from onibus.core.holds import TOKEN, check_of
from onibus.core.lifecycle import DEAD
from onibus.core.records import WriteBatch
from onibus.core.sessions import Session

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription

#: The token of an expired lock is still known after this number of restarts.
BOOTS_KNOWN = 8


def held_session(subscription: Subscription, held: HeldSession) -> Session:
    """Return the session that a token holds, or reject the token."""
    session = subscription.sessions.find(held.session_id)
    _, epoch, check = TOKEN.unpack(held.token)
    if session is not None:
        lock, overdue = session.lock, subscription.partition.overdue
        if lock is not None and (lock.epoch, lock.check) == (epoch, check) and lock.until > overdue:
            return session
    raise SessionLockLost(
        f"the lock on session {held.session_id!r} expired, was released or taken over: "
        "accept it again"
    )


def find_held(
    partition: Partition, command: FindHeld, now: int, wall: int, out: WriteBatch
) -> FoundHeld:
    """Return the message that a token holds, or reject the token."""
    subscription = partition.subscriptions[command.subscription]
    if command.session is not None:
        held_session(subscription, command.session)
    ordinal, mark, _ = subscription.held_by(command.token)
    return FoundHeld(ordinal, mark.state in DEAD)


def has_attempt(
    partition: Partition, command: HasAttempt, now: int, wall: int, out: WriteBatch
) -> bool:
    """Return whether a FIFO receive is recorded under an attempt id."""
    return command.attempt_id in partition.subscriptions[command.subscription].attempts


def delivered_under(subscription: Subscription, token: bytes) -> int:
    """Return the message that was delivered with a token, locked or not; reject other tokens."""
    number, epoch, check = TOKEN.unpack(token)
    partition = subscription.partition
    for boot in range(partition.boot, max(partition.boot - BOOTS_KNOWN, -1), -1):
        if check_of(partition.secret, *subscription.key, boot, epoch) == check:
            candidates = subscription.numbering.candidates(number, subscription.log.next_ordinal)
            if candidates:
                return candidates[0]
    raise UnknownToken("not a lock token of this entity: settle where it was received")
