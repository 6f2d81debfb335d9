"""Change visibility timeouts, as SQS does, independently of each other.

On a standard queue, a request for a message whose lock has expired does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.commands import ChangeVisibility
from onibus.core.errors import LockLost, MessageNotFound, Refused
from onibus.core.lifecycle import State
from onibus.core.path.held import delivered_under
from onibus.core.path.renew import renew_one
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription


def change_visibility(
    partition: Partition, command: ChangeVisibility, now: int, wall: int, out: WriteBatch
) -> list[Refused | None]:
    """Change the timeout of each message; return None, or the rejection, for each."""
    subscription = partition.subscriptions[command.subscription]
    results: list[Refused | None] = []
    for token, duration_ms in zip(command.tokens, command.durations_ms, strict=True):
        try:
            _change(subscription, token, duration_ms, command.accepts_earlier, now, out)
        except Refused as refusal:
            results.append(refusal)
        else:
            results.append(None)
    return results


def _change(
    subscription: Subscription,
    token: bytes,
    duration_ms: int,
    accepts_earlier: bool,
    now: int,
    out: WriteBatch,
) -> None:
    try:
        renew_one(subscription, token, now, out, duration_ms)
    except LockLost:
        state = subscription.state(delivered_under(subscription, token))
        if not subscription.settings.fifo and (
            state in (State.ACTIVE, State.DELAYED) or (state is State.LOCKED and accepts_earlier)
        ):
            return
        if state is not State.ACTIVE:
            raise MessageNotFound("message settled, or held by another receiver") from None
        raise
