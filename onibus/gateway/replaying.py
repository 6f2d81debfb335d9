"""Replay: messages of the log are sent again, slice by slice (X7)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from onibus.core.block import ACTIVATED, MESSAGE, Block
from onibus.core.commands import CarryOut, FindRepeats
from onibus.core.errors import InvalidArgument, OnibusError, Unknown
from onibus.core.inspection import Filter, check_filter
from onibus.core.message import Message, ReceivedMessage
from onibus.core.numbering import Numbering
from onibus.core.path.admit import Prepared, admit
from onibus.core.staged import Part
from onibus.directory.routing import open_for_sends, route, size_of
from onibus.directory.turns import fitting, is_large, plan_ahead, slice_count
from onibus.directory.work import Parts
from onibus.gateway.reading import LogReading
from onibus.shard.runner import Steps, durable

if TYPE_CHECKING:
    from onibus.gateway.broker import Broker

#: Messages that one slice sends.
SENT_A_SLICE = 500


def replay(broker: Broker, reading: LogReading, to: str, where: Filter) -> Steps[int]:
    """Send the read messages that match a filter; return their number when all are durable."""
    open_for_sends(broker, to)
    check_filter(where, dead=False)
    if where.state is not None:
        raise InvalidArgument("the log has no states: remove state from the filter")
    choose = partial(_choose, reading.partition.numbering, where)
    count, stored = 0, False
    try:
        while (messages := (yield partial(reading.next_slice, choose))) is not None:
            while messages:
                batch, work = _next(broker, to, messages)
                yield from _plan(broker, batch, work)
                size = size_of(batch)
                for partition in work:
                    partition.store.check_disk(size)
                for partition, part in work.items():
                    broker.apply(partition, CarryOut(part))
                    stored = True
                yield durable(partition.store for partition in work)
                count += len(batch)
    except OnibusError as error:
        if stored:
            # The call cannot fail as if nothing had changed.
            raise Unknown(f"at least {count} messages were replayed; then: {error}") from error
        raise
    return count


def _next(broker: Broker, to: str, messages: list[Message]) -> tuple[list[Prepared], Parts]:
    """Remove the messages of the next slice; return them, and the work that sends them."""
    entity = open_for_sends(broker, to)
    some = messages[: min(SENT_A_SLICE, slice_count(entity))]
    secret = broker.namespace.secret
    batch = [admit(message, entity.log_settings, secret) for message in some]
    del batch[fitting(entity, batch) :]
    del messages[: len(batch)]
    return batch, {
        partition: Part([batch[at] for at in positions] or batch, rename="replayed")
        for partition, positions, _ in route(entity, batch)
    }


def _plan(broker: Broker, batch: list[Prepared], work: Parts) -> Steps[None]:
    """Run costly rules of the destination before the messages are stored."""
    if is_large(next(iter(work)).entity, batch):
        now = broker.clock.now()
        for partition, part in work.items():
            # Messages get their new ids now: a plan is for the messages that it has seen.
            part.take(broker.apply(partition, FindRepeats(part), now))
        yield partial(plan_ahead, broker, work)


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
