"""Dead-letter: a message that cannot be delivered waits in the dead-letter queue, with its reason.

Nothing moves: it keeps its row and its number; only its state changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.lifecycle import Input
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription

#: The reasons that the broker itself gives, as Service Bus spells them.
EXPIRED = "TTLExpiredException"
EXPIRED_TEXT = "The message expired and was dead lettered."
TOO_MANY_DELIVERIES = "MaxDeliveryCountExceeded"


def dead_letter(
    subscription: Subscription,
    ordinal: int,
    reason: str | None,
    description: str | None,
    out: WriteBatch,
    taken: bool = False,
) -> None:
    """Put a message into the dead-letter queue."""
    subscription.change(
        ordinal, Input.DEAD_LETTER, out, taken=taken, reason=reason, description=description
    )


def too_many_deliveries(subscription: Subscription, ordinal: int, out: WriteBatch) -> None:
    """Dead-letter a message that reached the delivery limit of its entity."""
    count = subscription.settings.max_delivery_count
    text = f"Message could not be consumed after {count} delivery attempts."
    dead_letter(subscription, ordinal, TOO_MANY_DELIVERIES, text, out)


def expire_message(
    subscription: Subscription, ordinal: int, out: WriteBatch, taken: bool = False
) -> None:
    """Expire a message that has outlived its time to live (B2)."""
    if subscription.settings.dead_letter_on_expiration:
        dead_letter(subscription, ordinal, EXPIRED, EXPIRED_TEXT, out, taken)
    else:
        subscription.change(ordinal, Input.EXPIRE, out, taken=taken)
        subscription.depart([ordinal], out)
