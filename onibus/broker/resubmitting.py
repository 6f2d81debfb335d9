"""Resubmission of dead-lettered messages, to their own entity or another one (X6).

Active messages without a lock are moved to another entity in the same way.

Each slice is one multi-partition operation: it removes a dead-lettered message and sends it again
atomically. A message whose MessageId is still recorded gets a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from onibus.api.delivery import Resubmitted
from onibus.broker.moving import Move
from onibus.broker.sending import open_for_sends
from onibus.broker.settling import seat_of_number
from onibus.broker.turns import plan_ahead
from onibus.broker.work import Parts
from onibus.core.commands import ChooseMovable, FindMovable, FindRepeats
from onibus.core.errors import BusClosed, InvalidArgument, OnibusError
from onibus.core.inspection import Filter, check_filter
from onibus.core.lifecycle import State
from onibus.core.limits import NUMBERS_MAX
from onibus.core.message import Message, ReceivedMessage
from onibus.shard.replies import Outcome, Reply, answer, fail

if TYPE_CHECKING:
    from onibus.broker.broker import Broker
    from onibus.broker.entity import Entity
    from onibus.shard.seat import Seat

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
        reply: Reply,
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
        self._reply = reply
        #: dead-lettered or active messages, and how many that a filter means at most
        self._state = state
        self._most = most
        if state is State.ACTIVE and self._target is source:
            raise InvalidArgument(f"{source.name} has these messages: choose another entity")
        self._moved: dict[int, int | None] = {}
        self._refused: dict[int, str] = {}
        #: where each partition's log ended when a filter was given
        self._below: dict[Seat, int] = {}
        #: a move whose rules ran before it
        self._planned: tuple[Move, Parts] | None = None

    def by_numbers(self, numbers: Sequence[int]) -> None:
        """Resubmit these dead-lettered messages atomically."""
        if not isinstance(numbers, Sequence) or not 0 < len(numbers) <= NUMBERS_MAX:
            raise InvalidArgument(f"pass a list of 1 to {NUMBERS_MAX} sequence numbers")
        now = self._broker.clock.now()
        by_seat: dict[Seat, dict[int, None]] = {}
        for number in numbers:
            by_seat.setdefault(seat_of_number(self._source, number), {})[number] = None
        move = Move(self._broker, self._source, self._target)
        for seat, chosen in by_seat.items():
            self._broker.advance(seat, now)
            command = FindMovable(self._source.number, list(chosen), self._state)
            ordinals = self._broker.use(self._source, seat, command, now)
            move.add(seat, ordinals, _again)
        if move.refused:
            raise move.refused[0][2]
        self._do(move, now, self._answer, lambda: self.by_numbers(numbers))

    def by_filter(self, wanted: Filter) -> None:
        """Resubmit all dead-lettered messages that match a filter, slice by slice."""
        check_filter(wanted, dead=self._state is State.DEAD_LETTERED)
        # One call does not resubmit a message twice if it is dead-lettered again.
        self._below = {seat: seat.online().log.next_ordinal for seat in self._source.seats}
        self._next_slice(list(self._source.seats), 0, wanted)

    def _next_slice(self, seats: list[Seat], start: int, wanted: Filter) -> None:
        self._go_on(lambda: self._slice(seats, start, wanted))

    def _slice(self, seats: list[Seat], start: int, wanted: Filter) -> None:
        if not seats or self._count >= self._most:
            self._answer()
            return
        seat = seats[0]
        now = self._broker.clock.now()
        self._broker.advance(seat, now)
        command = ChooseMovable(
            self._source.number,
            wanted,
            self._state,
            start,
            self._below[seat],
            A_SLICE,
            self._most - self._count,
        )
        found = self._broker.use(self._source, seat, command, now)
        after = found.next
        move = Move(self._broker, self._source, self._target)
        move.add(seat, found.ordinals, _again)
        if not self._only and not self._dry_run:
            chosen = move.messages[:]
            move.fit()
            if len(move.messages) < len(chosen):
                # The rest has its turn in the next slice.
                after = chosen[len(move.messages)][1]
        for _, ordinal, error in move.refused:
            self._refused[seat.online().numbering.number(ordinal)] = str(error)
        left = seats if after else seats[1:]
        self._do(
            move,
            now,
            lambda: self._next_slice(left, after, wanted),
            lambda: self._next_slice(seats, start, wanted),
        )

    @property
    def _count(self) -> int:
        """How many messages the result names: those that stay take their room, too."""
        return len(self._moved) + len(self._refused)

    def _do(
        self, move: Move, now: int, then: Callable[[], None], again: Callable[[], None]
    ) -> None:
        """Carry out one work, note its result, and continue.

        Costly rules run first: `again` then chooses the messages again, since they may differ.
        """
        old = move.old_numbers
        if self._dry_run or not old:
            self._moved |= dict.fromkeys(old)
            # Others have their turn between two slices.
            self._broker.call_soon(then)
            return

        def done(outcome: Outcome) -> None:
            if outcome.error is not None:
                fail(self._reply, outcome.error)
                return
            self._moved |= zip(old, move.numbers(outcome.value), strict=True)
            then()

        planned, self._planned = self._planned, None
        if planned is not None and move.is_like(planned[0]):
            move, parts = planned
        else:
            parts = move.parts(rename="resubmitted", only=self._only)
            if not self._only and move.is_large:
                for seat, part in parts.items():
                    # Messages get their new ids now: a plan is for the messages that it has seen.
                    part.take(self._broker.apply(seat, FindRepeats(part), now))
                self._planned = (move, parts)
                plan_ahead(self._broker, parts, partial(self._go_on, again))
                return
        self._broker.works.do(parts, now, Outcome(done))

    def _go_on(self, step: Callable[[], None]) -> None:
        """Do the next step, and report an error."""
        try:
            if self._broker.closed:
                raise BusClosed("the bus is closed")
            step()
        except OnibusError as error:
            fail(self._reply, error)

    def _answer(self) -> None:
        answer(self._reply, Resubmitted(moved=self._moved, refused=self._refused))


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
