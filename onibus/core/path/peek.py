"""Peek: look at messages, without a change to them, and find those that match a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

from onibus.core.commands import CountReasons, Peek, Peeked, Reasons, Tail, Tailed
from onibus.core.inspection import STATES, Filter
from onibus.core.lifecycle import DEAD, State
from onibus.core.limits import PEEK_BYTES_MAX
from onibus.core.message import ReceivedMessage, encode
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription

#: Bytes that a filter reads before other clients have their turn, its steps counted as bytes.
SLICE_BYTES = 512 << 10


def peek(partition: Partition, command: Peek, now: int, wall: int, out: WriteBatch) -> Peeked:
    """Look at the next messages; return those that match, and where to continue."""
    subscription = partition.subscriptions[command.subscription]
    states = states_of(command.wanted, command.dead)
    page = _Page(command)
    start = command.ordinal
    if start is None:
        start = _first_ordinal(subscription, command.number)
    looked = read = following = 0
    for position, ordinal in enumerate(_candidates(subscription, start, states)):
        if position == command.looks or read > SLICE_BYTES:
            following = ordinal
            break
        if subscription.state(ordinal) not in states:
            continue
        message = subscription.view(ordinal)
        matches, effort = command.wanted.look(message)
        read += effort
        looked += 1
        if matches and not page.take(message):
            break
    return Peeked(page.messages, page.size, following, looked, page.is_full)


class _Page:
    """Messages that a peek returns: at most `limit`, and 256 KB, but one at least."""

    def __init__(self, command: Peek) -> None:
        self.messages: list[ReceivedMessage] = []
        self.size = command.size
        self.is_full = False
        self._limit = command.limit
        self._at_least_one = command.at_least_one

    def take(self, message: ReceivedMessage) -> bool:
        """Add a message if it fits; return whether there is room for another."""
        # All of it: a message can be large without a body.
        size = self.size + len(encode(message.message))
        if size > PEEK_BYTES_MAX and not self._at_least_one:
            self.is_full = True
            return False
        self.size = size
        self._at_least_one = False
        self.messages.append(message)
        self.is_full = len(self.messages) >= self._limit
        return not self.is_full


def _first_ordinal(subscription: Subscription, number: int) -> int:
    """Return the ordinal at which a peek from a sequence number starts."""
    log, numbering = subscription.log, subscription.numbering
    first = log.places[0].first if log.places else log.next_ordinal
    return numbering.not_below(number, first, log.next_ordinal, subscription.is_live)


def tail(partition: Partition, command: Tail, now: int, wall: int, out: WriteBatch) -> Tailed:
    """Return the messages that arrived since the last look, as far as the bounds allow."""
    subscription = partition.subscriptions[command.subscription]
    states = states_of(command.wanted, dead=False)
    below = subscription.log.visible_below
    start = min(command.start, below) if command.start else below
    found: list[ReceivedMessage] = []
    size = 0
    for ordinal in live_ordinals(subscription, max(start, below - command.looks), states):
        if size > command.bytes_max:
            break
        message = subscription.view(ordinal)
        matches, effort = command.wanted.look(message)
        size += effort
        if matches:
            found.append(message)
    return Tailed(found, below, size)


def count_reasons(
    partition: Partition, command: CountReasons, now: int, wall: int, out: WriteBatch
) -> Reasons:
    """Count a slice of the dead-lettered messages by reason."""
    subscription = partition.subscriptions[command.subscription]
    counts: dict[str, int] = {}
    for looked, ordinal in enumerate(live_ordinals(subscription, command.start, DEAD)):
        if looked == command.looks:
            return Reasons(counts, ordinal)
        # Its mark has the reason: the message itself is not read.
        reason = subscription.marks.reason(ordinal) or ""
        counts[reason] = counts.get(reason, 0) + 1
    return Reasons(counts, 0)


def states_of(wanted: Filter, dead: bool) -> frozenset[State]:
    """Return the states that a filter selects, in the queue or in its dead-letter queue."""
    if wanted.state is None:
        return DEAD if dead else frozenset(State) - DEAD - {State.GONE}
    return STATES[wanted.state]


def live_ordinals(
    subscription: Subscription, start: int, states: frozenset[State]
) -> Iterator[int]:
    """Yield the shown ordinals in these states, from `start` on, in order."""
    for ordinal in _candidates(subscription, start, states):
        if subscription.state(ordinal) in states:
            yield ordinal


def _candidates(subscription: Subscription, start: int, states: frozenset[State]) -> Iterator[int]:
    """Yield the shown ordinals that may be in these states, and few others."""
    below = subscription.log.visible_below
    if State.ACTIVE in states:
        return _outside(subscription.gone.next_outside, max(start, 1), below)
    apart = subscription.dead if states <= DEAD else subscription.aside
    return takewhile(lambda ordinal: ordinal < below, apart.ordinals(start))


def _outside(next_outside: Callable[[int], int], ordinal: int, below: int) -> Iterator[int]:
    while (ordinal := next_outside(ordinal)) < below:
        yield ordinal
        ordinal += 1
