"""Forwarding of messages, or dead-lettered messages, to another entity (B6, P9).

Each partition of a source runs one multi-partition operation at a time, which keeps the order. If
the destination is down, full or paused, messages wait at the source; messages that it rejects
permanently are dead-lettered there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from onibus.core.commands import (
    Command,
    DeadLetterAll,
    HasForwardable,
    KeepDeadLetters,
    ListForwardable,
)
from onibus.core.errors import (
    InvalidOperation,
    OnibusError,
    QuotaExceeded,
)
from onibus.core.limits import HOP_COUNT_MAX
from onibus.core.message import Message, ReceivedMessage
from onibus.directory.entity import TOPIC
from onibus.directory.routing import open_for_sends
from onibus.directory.turns import plan_ahead, slice_count
from onibus.directory.work import Parts
from onibus.gateway.moving import Move
from onibus.shard.replies import KeptReply

if TYPE_CHECKING:
    from onibus.directory.entity import Entity
    from onibus.gateway.broker import Broker
    from onibus.shard.partition import ShardPartition

#: Messages of one work, and their bytes; fewer if the destination has many rules.
A_SLICE = 200
SLICE_BYTES = 4 << 20
#: How long a destination that cannot take messages is left alone.
RETRY_MS = 1_000
#: Properties of a forwarded dead-lettered message: the entity that dead-lettered it.
DEAD_LETTER_SOURCE, DEAD_LETTER_SOURCE_ID = "DeadLetterSource", "DeadLetterSourceId"
#: Reason and description of a message that was forwarded too often, as in Service Bus.
TOO_MANY_HOPS = "MaxTransferHopCountExceeded"
TOO_MANY_HOPS_TEXT = f"The message was forwarded {HOP_COUNT_MAX} times already."


#: A source, its partition, and whether its dead-lettered messages are forwarded.
Key = tuple[int, int, bool]


class Forwarding:
    """All sources of the namespace that forward."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: (source, partition, dead-lettered or not) with a pending operation, and its destination
        self._moving: dict[Key, str] = {}
        #: the same while the rules of the destination run, and the moves that they ran for
        self._planning: dict[Key, str] = {}
        self._planned: dict[Key, tuple[Move, Parts]] = {}
        self._awake: set[Entity] = set()

    def wake(self, source: Entity) -> None:
        """Check a source for messages to forward, unless it waits for a retry."""
        waits = self._broker.timers.is_set(("forward", source.incarnation))
        if source not in self._awake and not waits:
            self._awake.add(source)
            self._broker.call_soon(lambda: self._look(source))

    def brings_to(self, target: str) -> bool:
        """Return whether messages are being forwarded to an entity, dead-lettered ones included."""
        under_way = (*self._moving.values(), *self._planning.values())
        return target in under_way or any(
            (source.outlet_settings().forward_dead_letters_to or "").lower() == target
            and any(
                self._broker.use(
                    source, partition, HasForwardable(source.number), self._broker.clock.now()
                )
                for partition in source.online_partitions()
            )
            for source in self._awake
        )

    def changed(self, source: Entity) -> None:
        """Try all dead-lettered messages of a source again after its settings change."""
        command, now = KeepDeadLetters(source.number, None), self._broker.clock.now()
        if source.kind != TOPIC:
            for partition in source.online_partitions():
                self._broker.use(source, partition, command, now)
        if source.forwards:
            source.listen()
            self.wake(source)

    def retry(self, incarnation: int) -> None:
        """Try a source again after a pause.

        At once, so that a receive that times out now still gets messages that were due before.
        """
        for entity in self._broker.namespace.entities.values():
            if entity.incarnation == incarnation:
                self._look(entity)
                return

    def _look(self, source: Entity) -> None:
        self._awake.discard(source)
        if self._broker.closed or self._broker.namespace.entities.get(source.name) is not source:
            return
        settings = source.outlet_settings()
        if not settings.receives:
            return
        for target, dead in (
            (settings.forward_to, False),
            (settings.forward_dead_letters_to, True),
        ):
            if target is not None:
                for partition in source.partitions:
                    self._forward(source, partition, target, dead)

    def _forward(self, source: Entity, partition: ShardPartition, target: str, dead: bool) -> None:
        """Move the first messages of one partition on, unless some are on their way."""
        key = (source.incarnation, partition.id, dead)
        if key in self._moving or key in self._planning or not partition.is_online:
            return
        now = self._broker.clock.now()
        try:
            self._broker.advance(partition, now)
            ordinals = self._ready(source, partition, dead, target, now)
            if not ordinals:
                return
            entity = open_for_sends(self._broker, target)
            # A dead-lettered message must not be lost because its id was reused after the interval.
            letters = dead and entity.log_settings.fifo
            move = Move(self._broker, source, entity, deduplicated=not letters)
            move.add(partition, ordinals, partial(_forwarded, source=source, dead=dead))
            move.fit()
            if self._plans(source, key, entity, move):
                return
            if move.refused:
                self._keep(source, partition, move, dead, now)
            if not move.messages:
                self.wake(source)
                return
            planned = self._planned.pop(key, None)
            parts = _fitting(move) if planned is None else planned[1]
            self._moving[key] = entity.name
            self._broker.works.do(parts, now, KeptReply(partial(self._moved, source, key)))
        except OnibusError:
            self._moving.pop(key, None)
            self._later(source)

    def _plans(self, source: Entity, key: Key, target: Entity, move: Move) -> bool:
        """Run costly rules of the destination before the move; return whether they run now."""
        planned = self._planned.get(key)
        if planned is not None and move.is_like(planned[0]):
            return False
        self._planned.pop(key, None)
        if not move.is_large:
            return False
        parts = _fitting(move)

        def done(_: KeptReply) -> None:
            self._planning.pop(key, None)
            self._planned[key] = (move, parts)
            self._look(source)
            # The messages may be different at the next attempt.
            self._planned.pop(key, None)

        self._planning[key] = target.name
        plan_ahead(self._broker, parts, KeptReply(done))
        return True

    def _ready(
        self, source: Entity, partition: ShardPartition, dead: bool, target: str, now: int
    ) -> list[int]:
        """Return the messages that are forwarded next."""
        namespace = self._broker.namespace
        entity = namespace.entities.get(target.lower())
        count = A_SLICE if entity is None else min(A_SLICE, slice_count(entity))
        # While a store that may have decided is down, later messages must not overtake those in
        # doubt.
        stores = self._broker.stores.values()
        doubt = not (namespace.online and all(store.online for store in stores))
        command = ListForwardable(source.number, dead, count, SLICE_BYTES, unless_held=doubt)
        return self._broker.use(source, partition, command, now)

    def _keep(
        self, source: Entity, partition: ShardPartition, move: Move, dead: bool, now: int
    ) -> None:
        """Leave messages that the destination rejects: dead-lettered, with the reason."""
        command: Command[None]
        if dead:
            command = KeepDeadLetters(source.number, [ordinal for _, ordinal, _ in move.refused])
        else:
            letters = [(ordinal, *_reason(error)) for _, ordinal, error in move.refused]
            command = DeadLetterAll(source.number, letters)
        self._broker.use(source, partition, command, now)

    def _moved(self, source: Entity, key: Key, kept: KeptReply) -> None:
        self._moving.pop(key, None)
        if kept.error is None:
            self.wake(source)
        else:
            self._later(source)

    def _later(self, source: Entity) -> None:
        due = self._broker.clock.now() + RETRY_MS
        self._broker.timers.set(("forward", source.incarnation), due)


def _fitting(move: Move) -> Parts:
    """Return the work of as many messages, the first ones, as their destination has room for."""
    while True:
        try:
            return move.parts()
        except QuotaExceeded:
            if len(move.messages) == 1:
                raise
            move.keep_first(len(move.messages) // 2)


def _reason(error: OnibusError) -> tuple[str, str]:
    """Return the reason and the description of a message that the destination rejects."""
    if isinstance(error, TooManyHops):
        return TOO_MANY_HOPS, TOO_MANY_HOPS_TEXT
    return error.code, str(error)


class TooManyHops(InvalidOperation):
    """A message that reached the highest hop count."""


def _forwarded(received: ReceivedMessage, source: Entity, dead: bool) -> Message:
    """Return a message as its next entity gets it."""
    message = received.message
    if message.hop_count >= HOP_COUNT_MAX:
        raise TooManyHops(TOO_MANY_HOPS_TEXT)
    first = message.enqueued_sequence_number
    changed = replace(
        message,
        hop_count=message.hop_count + 1,
        enqueued_sequence_number=received.sequence_number if first is None else first,
        scheduled_enqueue_time_ms=None,
    )
    if dead:
        # Dead-lettered messages do not expire, even after they are forwarded.
        changed.time_to_live_ms = None
        changed.rewritten = bool(message.as_sent)
        if message.dead_letter_of is None:
            changed.dead_letter_of = (source.incarnation, received.sequence_number)
        changed.received_before += received.delivery_count
        changed.properties = message.properties | {
            "DeadLetterReason": received.dead_letter_reason,
            "DeadLetterErrorDescription": received.dead_letter_description,
            DEAD_LETTER_SOURCE: source.name,
            DEAD_LETTER_SOURCE_ID: source.incarnation,
        }
    return changed
