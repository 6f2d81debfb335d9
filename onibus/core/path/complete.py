"""Complete: messages that were processed are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.lifecycle import Input
from onibus.core.path.attempts import end_attempt_of
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription


def complete(subscription: Subscription, ordinals: list[int], out: WriteBatch) -> None:
    """Complete messages that are held."""
    hot = subscription.marks.hot
    for hold in dict.fromkeys([hot[ordinal].hold for ordinal in ordinals]):
        end_attempt_of(subscription, hold, out)
    subscription.end(ordinals, Input.COMPLETE, out)
    subscription.depart(ordinals, out)
