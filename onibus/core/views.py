"""Messages as receivers and peeks see them: read from their blocks, and verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onibus.core.block import ACTIVATED, NEVER
from onibus.core.holds import TOKEN, Hold
from onibus.core.mark import Mark
from onibus.core.marks import STATE_WORDS, apply_mark
from onibus.core.message import ReceivedMessage

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription

#: A message that simply waits.
_UNMARKED = Mark()


def views(
    subscription: Subscription, ordinals: Sequence[int], hold: Hold | None, until: int
) -> list[ReceivedMessage]:
    """Return messages as their receiver sees them, under a hold that they have together."""
    after = subscription.settings.expires_after_ms
    # Whatever is held has its mark at hand.
    mark_of = subscription.marks.get if hold is None else subscription.marks.hot.get
    shown = subscription.partition.offsets.shown
    first_received = None if hold is None or hold.until == NEVER else shown(hold.received)
    locked_until = None if hold is None else shown(until)
    numbers = subscription.numbering.each(ordinals)
    rows = subscription.log.rows(ordinals)
    found = []
    for ordinal, number, (entry, message) in zip(ordinals, numbers, rows, strict=True):
        expires = entry[2] if after is None else min(entry[2], entry[6] + after)
        mark = mark_of(ordinal) or _UNMARKED
        received = ReceivedMessage(
            message=message,
            sequence_number=number,
            enqueued_time_ms=entry[1],
            delivery_count=mark.deliveries,
            state=STATE_WORDS[mark.state],
            token=None if hold is None else TOKEN.pack(number, hold.epoch, hold.check),
            locked_until_ms=locked_until,
            expires_at_ms=None if expires == NEVER else entry[1] + expires - entry[6],
            first_received_ms=first_received,
        )
        if entry[7] == ACTIVATED:
            received.was_scheduled = True
        if mark is not _UNMARKED:
            apply_mark(received, mark, shown)
        found.append(received)
    return found
