"""Replay: messages of the log are sent again, slice by slice (X7)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from onibus.broker.entity import Entity
from onibus.broker.reading import LogReading
from onibus.broker.routing import route, size_of
from onibus.broker.sending import open_for_sends
from onibus.broker.turns import fitting, is_large, plan_ahead, slice_count
from onibus.core.block import ACTIVATED, MESSAGE, Block
from onibus.core.commands import CarryOut, FindRepeats
from onibus.core.errors import InvalidArgument, OnibusError, Unknown
from onibus.core.inspection import Filter, check_filter
from onibus.core.message import Message, ReceivedMessage
from onibus.core.numbering import Numbering
from onibus.core.path.admit import Prepared, admit
from onibus.core.staged import Part
from onibus.shard.replies import Outcome, Reply, answer, fail
from onibus.shard.seat import Seat

if TYPE_CHECKING:
    from onibus.broker.broker import Broker

#: Messages that one slice sends.
SENT_A_SLICE = 500


def replay(broker: Broker, reading: LogReading, to: str, where: Filter, reply: Reply) -> None:
    """Send the read messages that match a filter; reply with their number when all are durable."""
    open_for_sends(broker, to)
    check_filter(where, dead=False)
    if where.state is not None:
        raise InvalidArgument("the log has no states: remove state from the filter")
    _Replay(broker, reading, to, where, reply).read()


class _Replay:
    """A replay at work: it reads a slice, sends it in smaller ones, and reads on."""

    def __init__(
        self, broker: Broker, reading: LogReading, to: str, where: Filter, reply: Reply
    ) -> None:
        self._broker = broker
        self._reading = reading
        self._to = to
        self._reply = reply
        numbering = reading.seat.online().numbering
        self._choose = partial(_choose, numbering, where)
        self._waiting: list[Message] = []
        self._count = 0
        #: messages were stored already: the call cannot fail as if nothing had changed
        self._stored = False

    def read(self) -> None:
        """Read a slice of the log."""
        self._reading.next_slice(self._choose, Outcome(self._found))

    def _found(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._fail(outcome.error)
        elif outcome.value is None:
            answer(self._reply, self._count)
        else:
            self._waiting = outcome.value
            self._send()

    def _send(self) -> None:
        """Send a slice of the read messages, or read the next ones."""
        try:
            entity = open_for_sends(self._broker, self._to)
            count = min(SENT_A_SLICE, slice_count(entity))
            messages = self._waiting[:count]
            if not messages:
                self.read()
                return
            secret = self._broker.namespace.secret
            batch = [admit(message, entity.log_settings, secret) for message in messages]
            del batch[fitting(entity, batch) :]
            del self._waiting[: len(batch)]
            work = {
                seat: Part([batch[at] for at in positions] or batch, rename="replayed")
                for seat, positions, _ in route(entity, batch)
            }
            self._plan(entity, batch, work)
        except OnibusError as error:
            self._fail(error)

    def _plan(self, entity: Entity, batch: list[Prepared], work: dict[Seat, Part]) -> None:
        """Run costly rules of the destination before the messages are stored."""
        if not is_large(entity, batch):
            self._store(batch, work)
            return
        now = self._broker.clock.now()
        for seat, part in work.items():
            # Messages get their new ids now: a plan is for the messages that it has seen.
            part.take(self._broker.apply(seat, FindRepeats(part), now))

        def planned() -> None:
            try:
                self._store(batch, work)
            except OnibusError as error:
                self._fail(error)

        plan_ahead(self._broker, work, planned)

    def _store(self, batch: list[Prepared], work: dict[Seat, Part]) -> None:
        """Send to all partitions; continue when the last one is durable."""
        for seat in work:
            seat.store.check_disk(size_of(batch))
        left = dict.fromkeys(work)
        for seat, part in work.items():
            self._send_to(seat, part, left)

    def _send_to(self, seat: Seat, part: Part, left: dict[Seat, None]) -> None:
        def sent(outcome: Outcome) -> None:
            if outcome.error is not None:
                self._fail(outcome.error)
                return
            self._count += len(part.batch)
            del left[seat]
            if not left:
                self._send()

        self._broker.apply(seat, CarryOut(part))
        self._stored = True
        seat.store.answer_after(Outcome(sent), None)

    def _fail(self, error: BaseException) -> None:
        if self._stored:
            error = Unknown(f"at least {self._count} messages were replayed; then: {error}")
        fail(self._reply, error)


def _choose(
    numbering: Numbering, where: Filter, read: list[tuple[Block, int, int]]
) -> list[Message]:
    """Return the messages that a filter means, each with the number it has."""
    chosen = []
    for block, start, end in read:
        for position in range(start, end):
            entry = block.entry(position)
            if entry[7] not in (MESSAGE, ACTIVATED):
                continue
            number, message = numbering.number(entry[0]), block.message(position)
            received = ReceivedMessage(
                message=message, sequence_number=number, enqueued_time_ms=entry[1]
            )
            if where.matches(received):
                chosen.append(replace(message, enqueued_sequence_number=number))
    return chosen
