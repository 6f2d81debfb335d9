"""Delay: a new message has its sequence number, and waits before it can be received.

In sessions it keeps its place and blocks those after it, like one that was abandoned with a delay
(X4). A message that names its own time is scheduled instead (path/schedule.py).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from onibus.core.lifecycle import State
from onibus.core.mark import Mark
from onibus.core.path.admit import Prepared
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription


def delays(
    piece: Sequence[Prepared], first: int, default_ms: int, now: int, scheduled: Container[int]
) -> list[tuple[int, int]]:
    """Return (ordinal, due in bus time) of new messages that have to wait."""
    found = []
    for ordinal, prepared in enumerate(piece, first):
        delay_ms = default_ms if prepared.delay_ms is None else prepared.delay_ms
        if delay_ms and ordinal not in scheduled:
            found.append((ordinal, now + delay_ms))
    return found


def delay(
    subscription: Subscription, ordinal: int, due: int, session_id: str | None, out: WriteBatch
) -> None:
    """Mark an accepted message that cannot be received yet."""
    mark = subscription.marks.hot[ordinal] = Mark(State.DELAYED)
    mark.due = due
    subscription.counts[State.DELAYED] += 1
    subscription.marks.watch(ordinal, mark)
    if subscription.settings.requires_session:
        assert session_id is not None
        insort(subscription.sessions.get(session_id).waiting, ordinal)
    subscription.write_mark(ordinal, mark, out)
