"""Attempts: FIFO receives that a client can repeat (F9), until they end."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from onibus.core.holds import Attempt, Hold
from onibus.core.records import ATTEMPTS, WriteBatch

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription


def begin_attempt(
    subscription: Subscription, attempt_id: str, attempt: Attempt, out: WriteBatch
) -> None:
    """Record a receive, so that the client can repeat it."""
    subscription.attempts[attempt_id] = attempt
    subscription.timers.set(("attempt", attempt_id), attempt.until)
    _write(subscription, attempt_id, attempt, out)


def spoil_attempt(subscription: Subscription, hold: Hold, out: WriteBatch) -> None:
    """Keep the attempt from redelivering the messages of a changed hold, even after a restart."""
    attempt_id, hold.attempt = hold.attempt, None
    attempt = None if attempt_id is None else subscription.attempts.get(attempt_id)
    if attempt_id is not None and attempt is not None:
        # Epochs begin at 1: no hold has this one.
        attempt.epochs = [0 if epoch == hold.epoch else epoch for epoch in attempt.epochs]
        _write(subscription, attempt_id, attempt, out)


def _write(subscription: Subscription, attempt_id: str, attempt: Attempt, out: WriteBatch) -> None:
    epochs = array("q", attempt.epochs).tobytes()
    out.put(ATTEMPTS, (*subscription.key, attempt_id, attempt.until, epochs))


def forget_attempt(subscription: Subscription, attempt_id: str, out: WriteBatch) -> None:
    """Forget a receive whose time is over."""
    subscription.attempts.pop(attempt_id, None)
    out.delete(ATTEMPTS, (*subscription.key, attempt_id))


def end_attempt(subscription: Subscription, attempt_id: str, out: WriteBatch) -> None:
    """Forget a receive: its id is free for another one."""
    subscription.timers.cancel(("attempt", attempt_id))
    forget_attempt(subscription, attempt_id, out)


def end_attempt_of(subscription: Subscription, hold: Hold | None, out: WriteBatch) -> None:
    """End the attempt that delivered a completed message: the client can no longer repeat it.

    Every SQS receive from a FIFO queue is an attempt, and nearly all end here instead of being
    recorded for five minutes. With `strict_attempts` they are recorded, since a repetition is an
    error.
    """
    if hold is None or hold.attempt is None or subscription.settings.strict_attempts:
        return
    attempt = subscription.attempts.get(hold.attempt)
    # A later receive may have reused the id.
    if attempt is not None and hold.epoch in attempt.epochs:
        end_attempt(subscription, hold.attempt, out)
