"""Moving: messages leave one entity for another in one work; none is lost, none comes twice.

Forwarding and the resubmission of dead-lettered messages use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from onibus.core.commands import ReadMessages
from onibus.core.errors import InvalidArgument, InvalidOperation, MessageTooLarge, OnibusError
from onibus.core.message import Message, ReceivedMessage, encode
from onibus.core.path.admit import Prepared, admit, check_size, of_any_size
from onibus.core.staged import Change, Part
from onibus.directory.routing import route
from onibus.directory.turns import fitting, is_large
from onibus.directory.work import Parts, Results

if TYPE_CHECKING:
    from onibus.directory.entity import Entity
    from onibus.gateway.broker import Broker
    from onibus.shard.partition import ShardPartition

#: What the destination says of a message that it will never take.
NEVER_TAKEN = (InvalidArgument, InvalidOperation, MessageTooLarge)


class Move:
    """Messages of one entity on their way to another, or back to their own."""

    def __init__(
        self, broker: Broker, source: Entity, target: Entity, *, deduplicated: bool = True
    ) -> None:
        self._broker = broker
        #: messages whose ids the destination has recorded are dropped there
        self._deduplicated = deduplicated
        self._source = source
        self._target = target
        #: where each message is, and its sequence number there
        self.messages: list[tuple[ShardPartition, int]] = []
        self.old_numbers: list[int] = []
        self._batch: list[Prepared] = []
        #: what the destination does not take, and why
        self.refused: list[tuple[ShardPartition, int, OnibusError]] = []
        #: for each message: its target partition, and its place among the messages for that
        self._places: list[tuple[ShardPartition, int]] = []

    def add(
        self,
        partition: ShardPartition,
        ordinals: list[int],
        change: Callable[[ReceivedMessage], Message],
    ) -> None:
        """Move messages, changed; those that the destination rejects stay."""
        command, now = ReadMessages(self._source.number, ordinals), self._broker.clock.now()
        messages = self._broker.use(self._source, partition, command, now)
        for ordinal, received in zip(ordinals, messages, strict=True):
            try:
                prepared = self._admit(received.message, change(received))
            except NEVER_TAKEN as error:
                self.refused.append((partition, ordinal, error))
            else:
                prepared.delay_ms = 0
                if not self._deduplicated:
                    prepared.identities = ()
                self.messages.append((partition, ordinal))
                self.old_numbers.append(received.sequence_number)
                self._batch.append(prepared)

    def _admit(self, message: Message, changed: Message) -> Prepared:
        settings, secret = self._target.log_settings, self._broker.namespace.secret
        try:
            return admit(changed, settings, secret)
        except MessageTooLarge:
            # Bytes that the broker added do not count towards the limit.
            sent = replace(message, enqueued_sequence_number=None, hop_count=0, dead_letter_of=None)
            sent.received_before = 0
            check_size(sent, len(encode(sent)), settings)
            return admit(changed, of_any_size(settings), secret)

    def keep_first(self, count: int) -> None:
        """Move only the first messages; the others stay at the source."""
        del self.messages[count:], self.old_numbers[count:], self._batch[count:]

    def fit(self) -> None:
        """Keep only messages whose rules take one slice, or the first one."""
        self.keep_first(fitting(self._target, self._batch))

    @property
    def is_large(self) -> bool:
        """Whether the destination's rules take more than one slice."""
        return is_large(self._target, self._batch)

    def is_like(self, other: Move) -> bool:
        """Return whether both move the same messages, unchanged, to the same destination."""
        if self._target is not other._target or self.messages != other.messages:
            return False
        return [one.row for one in self._batch] == [one.row for one in other._batch]

    def parts(self, *, rename: str = "", only: int = 0) -> Parts:
        """Return the work; `only`: back into the subscription that they come from."""
        parts: Parts = {}
        for partition, ordinal in self.messages:
            part = parts.setdefault(partition, Part())
            part.changes.append(Change(self._source.number, ordinal, "move"))
        by_partition: dict[ShardPartition, list[int]] = {}
        if only:
            for position, (partition, _) in enumerate(self.messages):
                by_partition.setdefault(partition, []).append(position)
        else:
            for partition, positions, _ in route(self._target, self._batch):
                by_partition[partition] = positions or list(range(len(self._batch)))
        self._places = [(self.messages[0][0], 0)] * len(self._batch)
        for partition, positions in by_partition.items():
            part = parts.setdefault(partition, Part())
            part.batch = [self._batch[position] for position in positions]
            part.rename, part.only = rename, only
            for place, position in enumerate(positions):
                self._places[position] = (partition, place)
        return parts

    def numbers(self, results: Results) -> list[int]:
        """Return the new sequence number of each message, after the work was carried out."""
        return [results[partition][place].sequence_number for partition, place in self._places]
