"""Turns: sends whose fan-out is too large for one slice, and the sends behind them.

The rules of a topic run before the messages are stored, in slices of counted steps
(core/path/plan.py), with the requests of others in between. Until then later sends to the same
entity wait in its lane, so that none overtakes. Turns are taken in the order in which they came;
one that sends to several entities waits until it is the first in all of their lanes. The broker
computes no further slice for a client that has closed its connection, and drops its send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onibus.core.commands import PlanFanOut, RunPlan
from onibus.core.errors import BusClosed, InvalidOperation, OnibusError
from onibus.core.path.plan import Plan
from onibus.shard.replies import Reply, answer, fail, is_unwanted

if TYPE_CHECKING:
    from onibus.core.path.admit import Prepared
    from onibus.core.staged import Part
    from onibus.directory.entity import Entity
    from onibus.directory.host import Host
    from onibus.shard.partition import ShardPartition

#: Steps of rules (core/rules/subject.py) in one slice, about 5 ms. A send with more is planned.
SLICE_STEPS = 50_000

#: A partition, its messages, and the function that takes their plan once it is computed.
Planned = tuple["ShardPartition", Any, Callable[[Plan], None]]


class Turn:
    """A send that waits, or whose fan-out is being computed."""

    def __init__(
        self,
        entities: list[Entity],
        parts: Sequence[Planned],
        run: Callable[[], None],
        reply: Reply,
        *,
        stops: bool = True,
    ) -> None:
        """Queue a send; `stops`: it is dropped if its client closes its connection."""
        self.stops = stops
        self.entities = entities
        self.run = run
        self.reply = reply
        self.begun = False
        #: its fan-out, or a part of it, is computed before it is sent
        self.planned = False
        self._parts = parts
        self._running: Iterator[int] | None = None

    def plan(self, broker: Host, steps: int) -> bool:
        """Run rules for about that number of steps; return whether more is left to do."""
        if self._running is None:
            if (
                sum(steps_of(partition.entity, batch) for partition, batch, _ in self._parts)
                <= steps
            ):
                return False
            self._running = self._plan(broker, steps)
        if self.stops and is_unwanted(self.reply):
            # Nothing is stored yet. A client that only closed its side gets this response.
            raise InvalidOperation(
                "the client closed the connection and nothing was stored: "
                "keep it open until the response"
            )
        return next(self._running, None) is not None

    def _plan(self, broker: Host, a_slice: int) -> Iterator[int]:
        """Compute all plans; yield after each slice."""
        left = a_slice
        for partition, batch, take in self._parts:
            if not partition.entity.subscriptions:
                continue
            try:
                now = broker.clock.now()
                plan = broker.apply(partition, PlanFanOut(batch), now)
                take(plan)
                self.planned = True
                while not (left := broker.apply(partition, RunPlan(plan, left), now)):
                    left = a_slice
                    yield left
            except OnibusError:
                # The partition is offline: the send fails when it runs.
                continue


def steps_of(entity: Entity, batch: Any) -> int:
    """Return the steps of a topic's rules on a batch, about; 0 for a queue."""
    steps, costly = entity.rule_steps()
    if not steps:
        return 0
    if type(batch) is not list:
        from onibus.core.path.bulk import reading_steps

        # The lengths of properties in columns are unknown: the size is an upper bound.
        longest = costly * int(batch.size)
        return steps * len(batch) + longest + reading_steps(batch.property_bytes())
    if not costly:
        return steps * len(batch)
    long = sum([len(one.row) - len(one.message.body) for one in batch])
    return steps * len(batch) + costly * long


def slice_count(entity: Entity) -> int:
    """Return how many messages a topic's rules can take in one slice, if none is costly."""
    return max(SLICE_STEPS // max(entity.rule_steps()[0], 1), 1)


def fitting(entity: Entity, batch: Sequence[Prepared]) -> int:
    """Return how many messages, from the first on, take one slice of rules; at least one."""
    left, count = SLICE_STEPS, 0
    for one in batch:
        left -= steps_of(entity, [one])
        if left < 0:
            break
        count += 1
    return max(count, 1)


def is_large(entity: Entity, batch: Any) -> bool:
    """Return whether a topic's rules on a batch take more than one slice."""
    return steps_of(entity, batch) > SLICE_STEPS


def plan_ahead(broker: Host, work: dict[ShardPartition, Part], reply: Reply) -> None:
    """Compute the fan-out of a work in slices, then reply.

    Nothing waits behind it: the messages that the work changes may be different by then.
    """
    parts = [
        (partition, part.batch, partial(setattr, part, "plan"))
        for partition, part in work.items()
        if len(part.batch)
    ]
    broker.turns.take(Turn([], parts, partial(answer, reply, None), reply, stops=False))


def waits(entities: list[Entity], batches: Sequence[tuple[ShardPartition, Any]]) -> bool:
    """Return whether a send has to take its turn: others wait, or it is large."""
    if any(entity.lane is not None for entity in entities):
        return True
    return sum(steps_of(partition.entity, batch) for partition, batch in batches) > SLICE_STEPS


class Turns:
    """All sends that wait, in the lanes of their entities."""

    def __init__(self, broker: Host) -> None:
        self._broker = broker
        self.waiting = 0
        #: calls back soon, when others had their turn
        self.soon: Callable[[Callable[[], None]], object] = broker.call_soon

    def take(self, turn: Turn) -> None:
        """Call a function after all earlier sends to the same entities."""
        self.waiting += 1
        for entity in turn.entities:
            if entity.lane is None:
                entity.lane = deque()
            entity.lane.append(turn)
        self._begin(turn)

    def run(self, turn: Turn) -> None:
        """Run a turn that has waited."""
        turn.run()

    def _begin(self, turn: Turn) -> None:
        """Work on a turn that is the first everywhere, once."""
        if turn.begun:
            return
        if all(entity.lane is not None and entity.lane[0] is turn for entity in turn.entities):
            turn.begun = True
            self._step(turn)

    def _step(self, turn: Turn) -> None:
        """Do a slice of a turn."""
        error: BaseException | None = None
        try:
            if self._broker.closed:
                raise BusClosed("the bus is closed")
            if turn.plan(self._broker, SLICE_STEPS):
                self.soon(partial(self._step, turn))
                return
            self.run(turn)
        except OnibusError as refusal:
            error = refusal
        self._end(turn)
        if error is not None:
            fail(turn.reply, error)

    def _end(self, turn: Turn) -> None:
        self.waiting -= 1
        following: dict[Turn, None] = {}
        for entity in turn.entities:
            assert entity.lane is not None
            entity.lane.popleft()
            if entity.lane:
                following[entity.lane[0]] = None
            else:
                entity.lane = None
        for one in following:
            self.soon(partial(self._begin, one))
