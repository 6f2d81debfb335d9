"""Renew: a receiver keeps its messages locked for longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.commands import Renew
from onibus.core.errors import InvalidArgument, InvalidOperation, Refused
from onibus.core.limits import VISIBILITY_MS_MAX
from onibus.core.path.attempts import spoil_attempt
from onibus.core.path.held import held_session
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription


def renew(
    partition: Partition, command: Renew, now: int, wall: int, out: WriteBatch
) -> list[int | Refused]:
    """Renew locks; return the new end of each by the wall clock, or the rejection."""
    subscription = partition.subscriptions[command.subscription]
    if command.session is not None:
        held_session(subscription, command.session)
    ends: list[int | Refused] = []
    for token in command.tokens:
        try:
            ends.append(renew_one(subscription, token, now, out, command.duration_ms))
        except Refused as refusal:
            if command.atomic:
                raise
            ends.append(refusal)
    return ends


def renew_one(
    subscription: Subscription, token: bytes, now: int, out: WriteBatch, duration_ms: int | None
) -> int:
    """Renew a lock, for its own duration or another; return its new end by the wall clock."""
    ordinal, _, hold = subscription.held_by(token)
    if hold.carried:
        raise InvalidOperation("the session's lock holds this message: renew the session")
    if duration_ms is not None and now + duration_ms > hold.received + VISIBILITY_MS_MAX:
        raise InvalidArgument(
            f"a message stays in flight for at most {VISIBILITY_MS_MAX} ms after its receive"
        )
    # The receive that delivered this message can no longer be repeated (F9).
    spoil_attempt(subscription, hold, out)
    until = now + (hold.duration if duration_ms is None else duration_ms)
    subscription.renew(hold, ordinal, until)
    return subscription.partition.offsets.shown(until)
