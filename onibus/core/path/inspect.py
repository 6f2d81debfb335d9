"""Inspect one message: what happened to it, as far as the partition knows.

A subscription keeps what a message needs from now on, not each event: of its deliveries it knows
the first, and how many ended without settlement. The times of recent ones are in memory
(core/returns.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.block import NEVER
from onibus.core.commands import CheckExists, GetStamp, Inspect
from onibus.core.inspection import Event, Life
from onibus.core.message import ReceivedMessage
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription


def inspect(partition: Partition, command: Inspect, now: int, wall: int, out: WriteBatch) -> Life:
    """Return a message and what happened to it."""
    subscription = partition.subscriptions[command.subscription]
    ordinal = subscription.ordinal(command.number)
    message = subscription.view(ordinal)
    events = [*_arrival(message), *_deliveries(subscription, ordinal, message)]
    events += _hold(subscription, ordinal)
    mark = subscription.marks.get(ordinal)
    shown = subscription.partition.offsets.shown
    if message.state == "deferred":
        events.append(Event("deferred", detail="a receiver gets it by its sequence number"))
    elif mark is not None and mark.due and message.state != "scheduled":
        events.append(Event("delayed until", shown(mark.due)))
    if message.dead_letter_reason is not None or message.state.startswith("dead-lettered"):
        words = (message.dead_letter_reason, message.dead_letter_description)
        detail = ": ".join(one for one in words if one) or "without a reason"
        events.append(Event("dead-lettered", detail=detail))
    elif message.expires_at_ms is not None:
        events.append(Event("expires", message.expires_at_ms))
    return Life(message, events)


def get_stamp(partition: Partition, command: GetStamp, now: int, wall: int, out: WriteBatch) -> int:
    """Return when a message was enqueued."""
    return partition.subscriptions[command.subscription].view(command.ordinal).enqueued_time_ms


def check_exists(
    partition: Partition, command: CheckExists, now: int, wall: int, out: WriteBatch
) -> None:
    """Do nothing: `Partition.apply` rejects a subscription that was deleted."""


def _arrival(received: ReceivedMessage) -> list[Event]:
    """Return how the message arrived."""
    message = received.message
    before = message.enqueued_sequence_number
    events = []
    if before not in (None, received.sequence_number):
        hops = f", forwarded {message.hop_count} times" if message.hop_count else ""
        events.append(Event("sent before", detail=f"as message {before}{hops}"))
    if received.state == "scheduled":
        return [*events, Event("scheduled for", message.scheduled_enqueue_time_ms)]
    detail = "its scheduled time came" if received.was_scheduled else ""
    return [*events, Event("enqueued", received.enqueued_time_ms, detail)]


def _deliveries(subscription: Subscription, ordinal: int, received: ReceivedMessage) -> list[Event]:
    """Return its deliveries: their number, and the times of recent ones."""
    shown = subscription.partition.offsets.shown
    returns = subscription.partition.returns
    ends = [] if returns is None else returns.of(subscription.key, ordinal)
    events = []
    first, count = received.first_received_ms, received.delivery_count
    if count:
        times = "once" if count == 1 else f"{count} times"
        events.append(Event("delivered", detail=f"{times} without being settled"))
    if first is not None and first not in [shown(one.received) for one in ends if one.received]:
        events.append(Event("first received", first))
    for one in ends:
        if one.received is None:
            events.append(Event(one.how, shown(one.ended), "with its session"))
        else:
            seconds = (one.ended - one.received) / 1_000
            events.append(Event("received", shown(one.received), f"{one.how} after {seconds:g} s"))
    return events


def _hold(subscription: Subscription, ordinal: int) -> list[Event]:
    """Return which receiver holds it, and until when."""
    mark = subscription.marks.get(ordinal)
    hold = None if mark is None else mark.hold
    if hold is None:
        return []
    shown = subscription.partition.offsets.shown
    if hold.owner:
        return [Event("held", detail=f"by {hold.owner}")]
    if hold.until == NEVER:
        return [Event("held", detail=f"by the lock of session {hold.session}")]
    received = Event("received", shown(hold.received), "by the receiver that holds it")
    return [received, Event("held until", shown(hold.ordinals[ordinal]))]
