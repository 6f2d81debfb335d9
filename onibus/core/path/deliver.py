"""Deliver: give messages to a receiver, under a hold or for good."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onibus.core.block import NEVER
from onibus.core.errors import InvalidOperation, MessageNotFound
from onibus.core.fair_queue import FairQueue
from onibus.core.holds import Attempt
from onibus.core.lifecycle import Input, State
from onibus.core.limits import FIFO_INTERVAL_MS
from onibus.core.message import ReceivedMessage
from onibus.core.numbering import ORDINAL_CODE
from onibus.core.path.attempts import begin_attempt, end_attempt
from onibus.core.path.dead_letter import expire_message
from onibus.core.path.room import Room
from onibus.core.records import WriteBatch
from onibus.core.runs import as_runs
from onibus.core.sessions import Session

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription


#: Expired messages that one receive deletes on its way; it returns what it has found by then.
EXPIRED_MAX = 1_000


def deliver(
    subscription: Subscription,
    limit: int,
    now: int,
    out: WriteBatch,
    *,
    dead: bool = False,
    session: Session | None = None,
    take: bool = False,
    visibility_ms: int | None = None,
    room: Room | None = None,
) -> list[ReceivedMessage]:
    """Give out the first messages that are ready, at most `limit`: locked, or taken for good.

    From the dead-letter queue where `dead`; from a session that the caller holds where given. It is
    locked for `visibility_ms`, or for as long as the entity says.
    """
    below = subscription.log.visible_below
    ordinals: list[int] = []
    expired = 0
    while len(ordinals) < limit and expired < EXPIRED_MAX:
        wanted = _wanted(subscription, limit - len(ordinals), expired, now)
        if dead:
            taken = subscription.dead_ready.take(wanted, below)
        elif session is not None:
            ordinals += take_living(subscription, session, wanted, now, out)
            break
        else:
            taken = subscription.ready.take(wanted, below, now)
        if not taken:
            break
        living = taken if dead else still_living(subscription, taken, now, out)
        expired += len(taken) - len(living)
        ordinals += living
    if room is not None:
        fitting = room.take(subscription.log, ordinals)
        _put_back(subscription, ordinals[fitting:], session, dead)
        ordinals = ordinals[:fitting]
    if not ordinals:
        return []
    if take:
        received = _take(subscription, ordinals, out)
    else:
        received = _lock(subscription, ordinals, session, now, visibility_ms)
    if not dead:
        _note_waits(subscription, received, now)
    if not take and not dead and isinstance(subscription.ready, FairQueue):
        hold = subscription.marks.hot[ordinals[0]].hold
        assert hold is not None
        subscription.ready.noise.fly(hold, ordinals, received, now)
    return received


def _wanted(subscription: Subscription, most: int, expired: int, now: int) -> int:
    """Return how many messages to take at once: few, if some may have expired."""
    by_block = subscription.settings.expires_after_ms is None
    if by_block and subscription.log.next_expiry() > now:
        return most
    return min(most, EXPIRED_MAX - expired)


def _put_back(
    subscription: Subscription, ordinals: list[int], session: Session | None, dead: bool
) -> None:
    """Make messages ready that were taken out and not touched: they come before all others."""
    if session is not None:
        session.ready[:0] = array(ORDINAL_CODE, ordinals)
        return
    ready = subscription.dead_ready if dead else subscription.ready
    for first, last in as_runs(ordinals):
        ready.add(first, last)


def _lock(
    subscription: Subscription,
    ordinals: list[int],
    session: Session | None,
    now: int,
    visibility_ms: int | None = None,
) -> list[ReceivedMessage]:
    """Hold messages by a lock of their own, or by their session's."""
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
    """Return those that have not outlived their time to live; the others expire here."""
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


def _take(
    subscription: Subscription, ordinals: list[int], out: WriteBatch
) -> list[ReceivedMessage]:
    received = subscription.views(ordinals)
    for ordinal in ordinals:
        subscription.change(ordinal, Input.TAKE, out, taken=True)
    subscription.depart(ordinals, out)
    subscription.tally.delivered += len(ordinals)
    return received


def find_deferred(
    subscription: Subscription, numbers: Sequence[int], session: Session | None, dead: bool
) -> list[int]:
    """Return the ordinals of deferred messages that could be received, or refuse all of them."""
    wanted = State.DEAD_LETTERED_DEFERRED if dead else State.DEFERRED
    ordinals = []
    for number in dict.fromkeys(numbers):
        ordinal = subscription.ordinal(number)
        if subscription.state(ordinal) is not wanted:
            raise MessageNotFound(f"message {number} is not deferred, or it is locked")
        if session is not None and subscription.session_name(ordinal) != session.id:
            raise MessageNotFound(f"message {number} is not in session {session.id!r}")
        ordinals.append(ordinal)
    return ordinals


def deliver_deferred(
    subscription: Subscription,
    ordinals: list[int],
    now: int,
    out: WriteBatch,
    *,
    session: Session | None = None,
    take: bool = False,
) -> list[ReceivedMessage]:
    """Give out deferred messages by their numbers (L2)."""
    if not take:
        return _lock(subscription, ordinals, session, now)
    received = subscription.views(ordinals)
    for ordinal in ordinals:
        subscription.change(ordinal, Input.TAKE, out)
    subscription.depart(ordinals, out)
    subscription.tally.delivered += len(ordinals)
    return received


def deliver_groups(
    subscription: Subscription,
    limit: int,
    visibility_ms: int,
    now: int,
    out: WriteBatch,
    attempt_id: str | None = None,
    room: Room | None = None,
) -> list[ReceivedMessage]:
    """Give out messages of a FIFO queue, group by group (F10); again for the same attempt (F9)."""
    if attempt_id is not None:
        again = _repeat(subscription, attempt_id, visibility_ms, now, out)
        if again is not None:
            return again
    chosen: list[int] = []
    groups: dict[int, Session] = {}
    passed: list[Session] = []
    sessions, below = subscription.sessions, subscription.log.visible_below
    while len(chosen) < limit:
        session = sessions.next_free(below, subscription.session_name, whole=False)
        if session is None:
            break
        wanted = 1 if subscription.settings.one_message_per_group else limit - len(chosen)
        ordinals = take_living(subscription, session, wanted, now, out)
        fitting = len(ordinals) if room is None else room.take(subscription.log, ordinals)
        taken = ordinals[:fitting]
        if taken:
            groups.update(dict.fromkeys(taken, session))
            chosen += taken
            session.fly(taken, strictly=subscription.settings.strict_groups)
        else:
            passed.append(session)
        if fitting < len(ordinals):
            _put_back(subscription, ordinals[fitting:], session, dead=False)
            break
    for session in passed:
        sessions.offer(session)
        sessions.forget_idle(session)
    if not chosen:
        return []
    sessions.receives += 1
    hold = subscription.new_hold(now + visibility_ms, visibility_ms, None)
    hold.attempt = attempt_id
    hold.groups = groups
    subscription.lock(chosen, hold)
    subscription.tally.delivered += len(chosen)
    if attempt_id is not None:
        attempt = Attempt(now + FIFO_INTERVAL_MS, [hold.epoch] * len(chosen))
        begin_attempt(subscription, attempt_id, attempt, out)
    received = subscription.views(chosen, hold, hold.until)
    _note_waits(subscription, received, now)
    return received


def _note_waits(subscription: Subscription, received: list[ReceivedMessage], now: int) -> None:
    """Count how long messages waited for their first delivery."""
    subscription.tally.waits.note(received, subscription.partition.offsets.shown(now))


def take_living(
    subscription: Subscription, session: Session, limit: int, now: int, out: WriteBatch
) -> list[int]:
    """Take a session's first messages that have not expired."""
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


def _repeat(
    subscription: Subscription, attempt_id: str, visibility_ms: int, now: int, out: WriteBatch
) -> list[ReceivedMessage] | None:
    """Give out again what an attempt gave out, if all of it is still held as it was (F9)."""
    attempt = subscription.attempts.get(attempt_id)
    if attempt is None:
        return None
    found = [subscription.holds.get(epoch) for epoch in dict.fromkeys(attempt.epochs)]
    holds = [hold for hold in found if hold is not None and hold.attempt == attempt_id]
    if sum(len(hold.ordinals) for hold in holds) < len(attempt.epochs):
        if subscription.settings.strict_attempts:
            raise InvalidOperation(
                "the receive with this attempt id can no longer be repeated: one of its messages "
                "was deleted or changed; use a new attempt id"
            )
        end_attempt(subscription, attempt_id, out)
        return None
    received = []
    for hold in holds:
        hold.until = hold.received + visibility_ms
        hold.duration = visibility_ms
        for ordinal in hold.ordinals:
            subscription.renew(hold, ordinal, now + visibility_ms)
        received += subscription.views(list(hold.ordinals), hold, now + visibility_ms)
    return received
