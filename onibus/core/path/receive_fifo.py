"""Receive from a FIFO queue, group by group (F10); the same again for the same attempt id (F9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.commands import ReceiveFifo
from onibus.core.errors import InvalidOperation
from onibus.core.holds import Attempt
from onibus.core.limits import FIFO_INTERVAL_MS, RECEIVED_MAX
from onibus.core.message import ReceivedMessage
from onibus.core.path.attempts import begin_attempt, end_attempt
from onibus.core.path.receive import note_waits, put_back, take_living
from onibus.core.path.room import Room
from onibus.core.records import WriteBatch
from onibus.core.sessions import Session

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription


def receive_fifo(
    partition: Partition, command: ReceiveFifo, now: int, wall: int, out: WriteBatch
) -> list[ReceivedMessage]:
    """Lock the first messages of groups without a message in flight, or repeat a receive."""
    subscription = partition.subscriptions[command.subscription]
    attempt_id, visibility_ms = command.attempt_id, command.visibility_ms
    if attempt_id is not None:
        again = _repeat(subscription, attempt_id, visibility_ms, now, out)
        if again is not None:
            return again
    if command.held_max is not None and subscription.held() >= command.held_max:
        return []
    groups = _choose(subscription, command, now, out)
    if not groups:
        return []
    chosen = list(groups)
    subscription.sessions.receives += 1
    hold = subscription.new_hold(now + visibility_ms, visibility_ms, None)
    hold.attempt = attempt_id
    hold.groups = groups
    subscription.lock(chosen, hold)
    subscription.tally.delivered += len(chosen)
    if attempt_id is not None:
        attempt = Attempt(now + FIFO_INTERVAL_MS, [hold.epoch] * len(chosen))
        begin_attempt(subscription, attempt_id, attempt, out)
    received = subscription.views(chosen, hold, hold.until)
    note_waits(subscription, received, now)
    return received


def _choose(
    subscription: Subscription, command: ReceiveFifo, now: int, out: WriteBatch
) -> dict[int, Session]:
    """Take the first messages out of those that are available; return them with their groups."""
    room, limit = Room.of(command.bytes_max), min(command.limit, RECEIVED_MAX)
    groups: dict[int, Session] = {}
    passed: list[Session] = []
    sessions, below = subscription.sessions, subscription.log.visible_below
    while len(groups) < limit:
        session = sessions.next_free(below, subscription.session_name, whole=False)
        if session is None:
            break
        wanted = 1 if subscription.settings.one_message_per_group else limit - len(groups)
        ordinals = take_living(subscription, session, wanted, now, out)
        fitting = len(ordinals) if room is None else room.take(subscription.log, ordinals)
        taken = ordinals[:fitting]
        if taken:
            groups.update(dict.fromkeys(taken, session))
            session.fly(taken, strictly=subscription.settings.strict_groups)
        else:
            passed.append(session)
        if fitting < len(ordinals):
            put_back(subscription, ordinals[fitting:], session, dead=False)
            break
    for session in passed:
        sessions.offer(session)
        sessions.forget_idle(session)
    return groups


def _repeat(
    subscription: Subscription, attempt_id: str, visibility_ms: int, now: int, out: WriteBatch
) -> list[ReceivedMessage] | None:
    """Deliver again what an attempt delivered, if all of it is still held as it was (F9)."""
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
