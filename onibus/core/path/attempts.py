"""Attempts: FIFO receives that can be asked for again (F9), until they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.holds import Hold
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription


def end_attempt(subscription: Subscription, attempt_id: str, out: WriteBatch) -> None:
    """Forget a receive: its id is free for another one."""
    del subscription.attempts[attempt_id]
    subscription.timers.cancel(("attempt", attempt_id))
    subscription.write_attempt(attempt_id, None, out)


def end_attempt_of(subscription: Subscription, hold: Hold | None, out: WriteBatch) -> None:
    """A message was completed: the receive that gave it out cannot be repeated any more.

    Every receive of a FIFO queue over SQS is an attempt, and nearly all end here instead of being
    remembered for five minutes. Where a repetition is to be an error they must be.
    """
    if hold is None or hold.attempt is None or subscription.settings.strict_attempts:
        return
    attempt = subscription.attempts.get(hold.attempt)
    # The id may be that of a later receive meanwhile.
    if attempt is not None and hold.epoch in attempt.epochs:
        end_attempt(subscription, hold.attempt, out)
