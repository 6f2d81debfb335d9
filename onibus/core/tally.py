"""Counters of events, for operators who monitor the bus.

Plain integers, incremented where events happen: a message's change costs one addition, and nothing
is formatted before a client reads them. They count decisions made in memory: events of a failed
commit stay counted. A tally belongs to an entity, not to a partition, so that it outlives a
reopened store; nothing of it is stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING

from onibus.core import errors
from onibus.core.lifecycle import LIFECYCLE, Input, State

if TYPE_CHECKING:
    from onibus.core.message import ReceivedMessage

#: Messages dead-lettered for a reason that a client gave are counted under this word: clients may
#: give any number of reasons.
BY_APPLICATION = "application"
#: The reasons that the broker gives; if forwarding is rejected, the code of the error.
BROKER_REASONS = frozenset(
    {
        "TTLExpiredException",
        "MaxDeliveryCountExceeded",
        "MaxTransferHopCountExceeded",
        "Session id is null",
        "FilterEvaluationException",
    }
) | frozenset(
    member.code
    for member in vars(errors).values()
    if isinstance(member, type) and issubclass(member, errors.OnibusError)
)

#: What ends a message's stay in its entity.
_ENDINGS = frozenset(
    event for (_, event), following in LIFECYCLE.items() if following is State.GONE
) - {Input.ACTIVATE}
_ended = itemgetter(*sorted(_ENDINGS))

#: Upper bounds of the classes of durations, in seconds: from a commit in memory to a long poll.
BOUNDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


#: Upper bounds of the classes of waits, in milliseconds: each a fifth above the one before.
WAIT_BOUNDS = tuple(accumulate(range(118), lambda bound, _: max(bound + 1, bound * 6 // 5)))


class Waits:
    """How long messages waited for their first delivery, in fine classes."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        #: one for each bound, and one for longer waits; empty before the first delivery
        self.counts: list[int] = []

    def note(self, received: Iterable[ReceivedMessage], moment: int) -> None:
        """Count messages that are delivered at a moment, unless they were delivered before."""
        counts = self.counts
        if not counts:
            counts = self.counts = [0] * (len(WAIT_BOUNDS) + 1)
        enqueued, at = -1, 0
        for one in received:
            if one.delivery_count:
                continue
            if one.enqueued_time_ms != enqueued:
                # The messages of a block nearly all have the same time.
                enqueued = one.enqueued_time_ms
                at = bisect_left(WAIT_BOUNDS, moment - enqueued)
            counts[at] += 1


def percentile(counts: Sequence[int], share: float) -> int | None:
    """Return the bound of the class with that share of all waits below it; None without waits."""
    total = sum(counts)
    if not total:
        return None
    at = bisect_left(list(accumulate(counts)), max(share * total, 1))
    return WAIT_BOUNDS[min(at, len(WAIT_BOUNDS) - 1)]


class Tally:
    """The counters of one entity since the bus was opened."""

    __slots__ = (
        "accepted", "dead_letters", "delivered", "duplicates", "failovers", "inputs", "selected",
        "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        #: messages stored by sends, duplicates not among them
        self.accepted = 0
        #: messages that rules selected for a subscription
        self.selected = 0
        #: duplicates dropped
        self.duplicates = 0
        #: deliveries of messages, first and repeated
        self.delivered = 0
        #: times a send went past a partition that could not take it (P5)
        self.failovers = 0
        #: how often each input changed a message, by its value
        self.inputs = [0] * len(Input)
        #: dead-lettered messages by reason
        self.dead_letters: dict[str, int] = {}
        #: from enqueue to first delivery
        self.waits = Waits()

    @property
    def gone(self) -> int:
        """Return how many messages have left the entity; an activated one stays in it."""
        return sum(_ended(self.inputs))

    def dead_lettered(self, reason: str | None) -> None:
        word = reason if reason in BROKER_REASONS else BY_APPLICATION
        assert word is not None
        self.dead_letters[word] = self.dead_letters.get(word, 0) + 1

    def add(self, other: Tally) -> None:
        """Take in what another one has counted."""
        self.accepted += other.accepted
        self.duplicates += other.duplicates
        self.delivered += other.delivered
        self.failovers += other.failovers
        self.inputs = [mine + its for mine, its in zip(self.inputs, other.inputs, strict=True)]
        for reason, count in other.dead_letters.items():
            self.dead_letters[reason] = self.dead_letters.get(reason, 0) + count


class Durations:
    """How long something took, in classes."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        #: one for each bound, and one for values above all of them
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def note(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def add(self, other: Durations) -> None:
        """Take in what another one has counted."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
