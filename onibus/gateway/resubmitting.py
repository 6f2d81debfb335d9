"""Resubmission of dead-lettered messages, to their own entity or another one (X6).

Active messages without a lock are moved to another entity in the same way.

Each slice is one multi-partition operation: it removes a dead-lettered message and sends it again
atomically. A message whose MessageId is still recorded gets a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from onibus.api.delivery import Resubmitted
from onibus.core.commands import ChooseMovable, FindEnds, FindMovable, FindRepeats
from onibus.core.errors import BusClosed, InvalidArgument
from onibus.core.inspection import Filter, check_filter
from onibus.core.lifecycle import State
from onibus.core.limits import NUMBERS_MAX
from onibus.core.message import Message, ReceivedMessage
from onibus.directory.routing import open_for_sends, partition_of_number
from onibus.directory.turns import plan_ahead
from onibus.directory.work import Parts
from onibus.gateway.moving import Move
from onibus.shard.runner import Steps, turn_over

if TYPE_CHECKING:
    from onibus.directory.entity import Entity
    from onibus.gateway.broker import Broker
    from onibus.shard.partition import ShardPartition

#: Messages that one work examines and moves when a filter chooses them.
A_SLICE = 200
NO_LIMIT = 1 << 53


class Resubmission:
    """One call under way: partition after partition, slice after slice."""

    def __init__(
        self,
        broker: Broker,
        source: Entity,
        to: str | None,
        dry_run: bool,
        state: State = State.DEAD_LETTERED,
        most: int = NO_LIMIT,
    ) -> None:
        self._broker = broker
        self._source = source
        #: a subscription's own dead-lettered messages go back into it alone
        self._only = source.number if to is None else 0
        home = source.topic.name if source.topic is not None else source.name
        self._target = open_for_sends(broker, home if to is None else to)
        self._dry_run = dry_run
        #: dead-lettered or active messages, and how many that a filter means at most
        self._state = state
        self._most = most
        if state is State.ACTIVE and self._target is source:
            raise InvalidArgument(f"{source.name} has these messages: choose another entity")
        self._moved: dict[int, int | None] = {}
        self._refused: dict[int, str] = {}
        #: a move whose rules ran before it
        self._planned: tuple[Move, Parts] | None = None

    def by_numbers(self, numbers: Sequence[int]) -> Steps[Resubmitted]:
        """Resubmit these dead-lettered messages atomically."""
        if not isinstance(numbers, Sequence) or not 0 < len(numbers) <= NUMBERS_MAX:
            raise InvalidArgument(f"pass a list of 1 to {NUMBERS_MAX} sequence numbers")
        by_partition: dict[ShardPartition, dict[int, None]] = {}
        for number in numbers:
            by_partition.setdefault(partition_of_number(self._source, number), {})[number] = None
        moved = False
        while not moved:
            now = self._now()
            move = Move(self._broker, self._source, self._target)
            for partition, chosen in by_partition.items():
                self._broker.advance(partition, now)
                command = FindMovable(self._source.number, list(chosen), self._state)
                move.add(partition, self._broker.use(self._source, partition, command, now), _again)
            if move.refused:
                raise move.refused[0][2]
            moved = yield from self._carry_out(move, now)
        return Resubmitted(moved=self._moved, refused=self._refused)

    def by_filter(self, wanted: Filter) -> Steps[Resubmitted]:
        """Resubmit all dead-lettered messages that match a filter, slice by slice."""
        check_filter(wanted, dead=self._state is State.DEAD_LETTERED)
        # One call does not resubmit a message twice if it is dead-lettered again.
        below = {
            partition: partition.store.look(partition, FindEnds()).following
            for partition in self._source.partitions
        }
        for partition, end in below.items():
            start: int | None = 0
            while start is not None and self._count < self._most:
                start = yield from self._slice(partition, start, end, wanted)
        return Resubmitted(moved=self._moved, refused=self._refused)

    def _slice(
        self, partition: ShardPartition, start: int, end: int, wanted: Filter
    ) -> Steps[int | None]:
        """Resubmit some messages; return where the next slice begins, or None."""
        now, left = self._now(), self._most - self._count
        self._broker.advance(partition, now)
        command = ChooseMovable(self._source.number, wanted, self._state, start, end, A_SLICE, left)
        found = self._broker.use(self._source, partition, command, now)
        after = found.next
        move = Move(self._broker, self._source, self._target)
        move.add(partition, found.ordinals, _again)
        if not self._only and not self._dry_run:
            chosen = move.messages[:]
            move.fit()
            if len(move.messages) < len(chosen):
                # The rest has its turn in the next slice.
                after = chosen[len(move.messages)][1]
        for _, ordinal, error in move.refused:
            self._refused[partition.numbering.number(ordinal)] = str(error)
        moved = yield from self._carry_out(move, now)
        return after or None if moved else start

    @property
    def _count(self) -> int:
        """How many messages the result names: those that stay take their room, too."""
        return len(self._moved) + len(self._refused)

    def _now(self) -> int:
        if self._broker.closed:
            raise BusClosed("the bus is closed")
        return self._broker.clock.now()

    def _carry_out(self, move: Move, now: int) -> Steps[bool]:
        """Carry out one work; return False if costly rules ran first.

        The messages are then chosen again, since they may differ.
        """
        old = move.old_numbers
        if self._dry_run or not old:
            self._moved |= dict.fromkeys(old)
            # Others have their turn between two slices.
            yield turn_over(self._broker.call_soon)
            return True
        planned, self._planned = self._planned, None
        if planned is not None and move.is_like(planned[0]):
            move, parts = planned
        else:
            parts = move.parts(rename="resubmitted", only=self._only)
            if not self._only and move.is_large:
                for partition, part in parts.items():
                    # Messages get their new ids now: a plan is for the messages that it has seen.
                    part.take(self._broker.apply(partition, FindRepeats(part), now))
                self._planned = (move, parts)
                yield partial(plan_ahead, self._broker, parts)
                return False
        results = yield partial(self._broker.works.do, parts, now)
        self._moved |= zip(old, move.numbers(results), strict=True)
        return True


def _again(received: ReceivedMessage) -> Message:
    """Return a dead-lettered message as it is resubmitted."""
    message = received.message
    first = message.enqueued_sequence_number
    return replace(
        message,
        hop_count=0,
        enqueued_sequence_number=received.sequence_number if first is None else first,
        scheduled_enqueue_time_ms=None,
    )
