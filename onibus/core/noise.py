"""Noise: which groups of a queue take more than their share of its receivers (B10).

A group is noisy while it has at least 30 messages in flight and more than a tenth of all in flight,
or while it took more than a tenth of the processing time of the last 60 seconds. Processing time is
the time that receivers hold messages: those in flight, up to now, and those released within these
60 seconds. Of one message at most 60 seconds count. Shares of time are judged as of the last whole
second, so the result does not depend on when a receiver asks within it.

Nothing here is stored. Holds say which messages are in flight; after a restart, times begin again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onibus.core import limits
from onibus.core.lifecycle import State
from onibus.core.limits import FAIR_GROUPS_A_SECOND, NOISY_PARTS, NOISY_SILENCE_MS, SECOND_MS
from onibus.core.message import Message, ReceivedMessage

if TYPE_CHECKING:
    from onibus.core.holds import Hold
    from onibus.core.subscription import Subscription

#: In flight at least, to be noisy by their number.
CROWD = limits.NOISY_COUNT_MIN
WINDOW_MS = limits.NOISY_WINDOW_SECONDS * SECOND_MS

_NONE: dict[str, int] = {}


def group_of(message: Message) -> str | None:
    """Return the group of a message on a queue without sessions; None: it is its own group."""
    return message.partition_key if message.session_id is None else message.session_id


class _Second:
    """Processing time of the messages that were released within one second."""

    __slots__ = ("before", "before_all", "number", "spent", "spent_all")

    def __init__(self, number: int) -> None:
        self.number = number
        self.spent: dict[str, int] = {}
        self.spent_all = 0
        #: the part of it before this second began
        self.before: dict[str, int] = {}
        self.before_all = 0

    def add(self, landed: Iterable[tuple[str | None, int, int]], now: int) -> None:
        """Count released messages: of each its group, when it was received, and how many."""
        by_group, before_by_group = self.spent, self.before
        known, spent, before = -1, 0, 0
        for group, received, count in landed:
            if received != known:
                # Messages of one hold were received together.
                known, spent = received, min(now - received, WINDOW_MS)
                before = min(max(self.number * SECOND_MS - received, 0), WINDOW_MS)
            self.spent_all += spent * count
            self.before_all += before * count
            if group is not None:
                by_group[group] = by_group.get(group, 0) + spent
                if before:
                    before_by_group[group] = before_by_group.get(group, 0) + before


class Noise:
    """The groups of one subscription in one partition that are in flight, or were lately."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        #: messages in flight of each group
        self.in_flight: dict[str, int] = {}
        #: groups that are large enough to be noisy by their number
        self._crowds: dict[str, None] = {}
        #: for each group in flight or in the window: its last send, or its first receive since
        self._active: dict[str, int] = {}
        self._open = _Second(-1)
        self._closed: deque[_Second] = deque()
        #: sums of the closed seconds, and the last second that each group is in
        self._spent: dict[str, int] = {}
        self._spent_all = 0
        self._last: dict[str, int] = {}
        self._slow: list[str] = []
        self._judged = -1
        #: released, and not counted before the command ends: (group, received, how many)
        self._landed: list[tuple[str | None, int, int]] = []

    # What receivers hold

    def fly(
        self, hold: Hold, ordinals: Sequence[int], views: Iterable[ReceivedMessage], now: int
    ) -> None:
        """Count messages that a receiver gets."""
        groups = hold.fair = {}
        in_flight, active = self.in_flight, self._active
        for ordinal, view in zip(ordinals, views, strict=True):
            message = view.message
            group = message.partition_key if message.session_id is None else message.session_id
            if group is None:
                continue
            groups[ordinal] = group
            if group in in_flight:
                self._add(group, now)
            else:
                # Mostly it is the first of its group.
                in_flight[group] = 1
                active.setdefault(group, now)

    def _add(self, group: str, since: int) -> None:
        count = self.in_flight[group] = self.in_flight.get(group, 0) + 1
        if count == CROWD:
            self._crowds[group] = None
        if group not in self._active:
            self._active[group] = since

    def land(self, hold: Hold, ordinals: Sequence[int]) -> None:
        """Count messages that a receiver no longer holds."""
        groups = hold.fair
        assert groups is not None
        if not groups:
            self._landed.append((None, hold.received, len(ordinals)))
            return
        for ordinal in ordinals:
            group = groups.pop(ordinal, None)
            self._landed.append((group, hold.received, 1))
            if group is None:
                continue
            count = self.in_flight[group] - 1
            if count:
                self.in_flight[group] = count
            else:
                del self.in_flight[group]
            if count == CROWD - 1:
                del self._crowds[group]

    def finish(self, now: int) -> None:
        """Count the time that released messages took, at the end of a command."""
        if not self._landed:
            return
        second = now // SECOND_MS
        if self._open.number != second:
            # Their last time in flight counts in the second that begins: they are not idle yet.
            active = {one: self._active[one] for one, _, _ in self._landed if one is not None}
            self._roll(second)
            self._active.update(active)
        self._open.add(self._landed, now)
        self._landed.clear()

    def take_up(self, holds: Iterable[Hold]) -> None:
        """Count what receivers have already; their groups are not known."""
        hot = self._subscription.marks.hot
        for hold in holds:
            if not hold.owner and any(hot[one].state is State.LOCKED for one in hold.ordinals):
                hold.fair = {}

    def read(self, holds: Iterable[Hold]) -> None:
        """Read the groups of what receivers had before a restart."""
        held = [(hold, one) for hold in holds if hold.fair is not None for one in hold.ordinals]
        rows = self._subscription.log.rows([ordinal for _, ordinal in held])
        for (hold, ordinal), (_, message) in zip(held, rows, strict=True):
            group = group_of(message)
            if group is not None:
                assert hold.fair is not None
                hold.fair[ordinal] = group
                self._add(group, hold.received)
                self._active[group] = max(self._active[group], hold.received)

    def sent(self, groups: Iterable[str | None], now: int) -> None:
        """Note that these groups send something."""
        active = self._active
        if active:
            for group in groups:
                if group in active:
                    active[group] = now

    # Judging

    def noisy(self, now: int) -> dict[str, int]:
        """Return the noisy groups, and how many messages of each are in flight."""
        if not self._active:
            return _NONE
        slow = self._judge(now)
        if not slow and not self._crowds:
            return _NONE
        in_flight, active = self.in_flight, self._active
        share = self._subscription.counts[State.LOCKED]
        found = [group for group in self._crowds if in_flight[group] * NOISY_PARTS > share]
        return {
            group: in_flight.get(group, 0)
            for group in (*found, *slow)
            if now - active.get(group, -NOISY_SILENCE_MS) < NOISY_SILENCE_MS
        }

    def _judge(self, now: int) -> list[str]:
        """Return the groups with more than their share of time, as of the last whole second."""
        second = now // SECOND_MS
        self._roll(second)
        if self._judged == second:
            return self._slow
        self._judged = second
        held, total = self._held(second * SECOND_MS)
        before, spent = self._open.before, self._spent
        total += self._open.before_all + self._spent_all
        for group, time in before.items():
            held[group] = held.get(group, 0) + time
        slow = [
            one for one, time in held.items() if (time + spent.get(one, 0)) * NOISY_PARTS > total
        ]
        slow += [one for one, time in spent.items() if time * NOISY_PARTS > total]
        self._slow = slow
        return slow

    def _held(self, moment: int) -> tuple[dict[str, int], int]:
        """Return for how long messages in flight have been held, by group and in all."""
        held: dict[str, int] = {}
        total = 0
        if self._subscription.counts[State.LOCKED] > limits.FAIR_SWEPT_MAX:
            return held, total
        for hold in self._subscription.holds.values():
            if hold.fair is None or hold.received >= moment:
                continue
            time = min(moment - hold.received, WINDOW_MS)
            total += time * len(hold.ordinals)
            for group in hold.fair.values():
                held[group] = held.get(group, 0) + time
        return held, total

    def _roll(self, second: int) -> None:
        """Close the open second once it is over, and forget those that left the window."""
        done = self._open
        if done.number == second:
            return
        if done.spent_all or done.spent:
            self._close(done)
        self._open = _Second(second)
        while self._closed and self._closed[0].number < second - limits.NOISY_WINDOW_SECONDS:
            self._forget(self._closed.popleft())

    def _close(self, done: _Second) -> None:
        if len(done.spent) > FAIR_GROUPS_A_SECOND:
            least = done.spent_all // FAIR_GROUPS_A_SECOND
            small = [group for group, time in done.spent.items() if time <= least]
            for group in small:
                del done.spent[group]
                self._drop_idle(group)
        for group, time in done.spent.items():
            self._spent[group] = self._spent.get(group, 0) + time
            self._last[group] = done.number
        self._spent_all += done.spent_all
        done.before.clear()
        self._closed.append(done)

    def _forget(self, past: _Second) -> None:
        self._spent_all -= past.spent_all
        for group, time in past.spent.items():
            if self._last[group] == past.number:
                del self._last[group], self._spent[group]
                self._drop_idle(group)
            else:
                self._spent[group] -= time

    def _drop_idle(self, group: str) -> None:
        if group not in self.in_flight and group not in self._last:
            self._active.pop(group, None)
