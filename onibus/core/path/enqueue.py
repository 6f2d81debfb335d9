"""Enqueue: a batch of admitted messages becomes a block of the log.

The kernel of every send, one message or ten thousand: deduplicate → stamp → store → show.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from onibus.core.block import ACTIVATED, COPY, MESSAGE, NEVER, SCHEDULED, encode_rows
from onibus.core.fair_queue import FairQueue
from onibus.core.limits import BLOCK_BYTES_MAX, DUPLICATES_LISTED_MAX
from onibus.core.message import Message, Sent, encode
from onibus.core.noise import group_of
from onibus.core.numbering import to_column
from onibus.core.path.admit import Prepared, time_to_live
from onibus.core.path.deduplicate import deduplicate
from onibus.core.path.delay import delay, delays
from onibus.core.path.fan_out import Copy, FanOut
from onibus.core.path.plan import Bit, Plan
from onibus.core.path.stamp import stamp
from onibus.core.records import DUPLICATES, WriteBatch

if TYPE_CHECKING:
    from onibus.core.log import StagedBlock
    from onibus.core.partition import Partition


def find_duplicates(partition: Partition, batch: Sequence[Prepared], now: int) -> list[int]:
    """Return what each message repeats (path/deduplicate.py). Reads, and changes nothing."""
    return deduplicate(batch, partition.ids, partition.forget_before(now), partition.forget_below)


def send(
    partition: Partition,
    batch: Sequence[Prepared],
    originals: list[int],
    now: int,
    wall: int,
    out: WriteBatch,
    only: int = 0,
    plan: Plan | None = None,
) -> list[Sent]:
    """Store the messages that `find_duplicates` found new; return each one's outcome in order.

    `only`: in a topic, the subscription that gets it, whatever the rules say. `plan`: its fan-out,
    as far as it was computed before.
    """
    fresh = batch
    if originals.count(-1) != len(originals):
        fresh = [batch[at] for at, original in enumerate(originals) if original == -1]
    stored = store(partition, fresh, now, wall, out, only=only, plan=plan)
    partition.subscription.tally.accepted += len(stored)
    hashes = [identity for prepared in fresh for identity in prepared.identities]
    if len(hashes) == len(stored):
        remember(partition, hashes, stored, now, out)
    else:
        # A message may have two identities (F7), or none (D11).
        recorded = [
            ordinal
            for prepared, ordinal in zip(fresh, stored, strict=True)
            for _ in prepared.identities
        ]
        remember(partition, hashes, recorded, now, out)
    if fresh is batch:
        return [Sent(number) for number in partition.numbering.each(stored)]
    ordinals = iter(stored)
    given: list[int] = []
    for prepared, original in zip(batch, originals, strict=True):
        if original == -1:
            given.append(next(ordinals))
        else:
            given.append(given[-2 - original] if original < 0 else original)
            note_duplicate(partition, prepared.message.message_id, given[-1], now, out)
    numbers = partition.numbering.each(given)
    return [
        Sent(number) if original == -1 else Sent(number, number)
        for number, original in zip(numbers, originals, strict=True)
    ]


def remember(
    partition: Partition, hashes: list[bytes], ordinals: list[int], now: int, out: WriteBatch
) -> None:
    """Record identities, each with the ordinal of the message that has it."""
    if hashes:
        partition.ids.record_all(hashes, ordinals, now)
        partition.ids.write(out)


def store(
    partition: Partition,
    batch: Sequence[Prepared],
    now: int,
    wall: int,
    out: WriteBatch,
    activated: bool = False,
    only: int = 0,
    plan: Plan | None = None,
) -> list[int]:
    """Store messages, duplicates or not; return their ordinals.

    `activated`: their scheduled time is due, whatever the wall clock says.
    """
    ordinals: list[int] = []
    start = 0
    while start < len(batch):
        piece = _piece(batch, start)
        first, count, moment = stamp(partition, len(piece), wall, out)
        piece = piece[:count]
        fan = None if plan is None else plan.fan(partition, (start, start + count), piece)
        _store_block(partition, piece, first, moment, now, wall, out, activated, only, fan)
        ordinals.extend(range(first, first + count))
        start += count
    return ordinals


def _piece(batch: Sequence[Prepared], start: int) -> Sequence[Prepared]:
    """Return what fits in one block."""
    if sum([len(prepared.row) for prepared in batch]) <= BLOCK_BYTES_MAX:
        return batch[start:] if start else batch
    return batch[start : start + _fitting([prepared.row for prepared in batch], start)]


def _fitting(rows: Sequence[bytes], start: int) -> int:
    """Return how many rows from `start` on fit in one block; one always does."""
    size = 0
    for end in range(start, len(rows)):
        size += len(rows[end])
        if size > BLOCK_BYTES_MAX and end > start:
            return end - start
    return len(rows) - start


def _store_block(
    partition: Partition,
    piece: Sequence[Prepared],
    first: int,
    moment: int,
    now: int,
    wall: int,
    out: WriteBatch,
    activated: bool,
    only: int,
    fan: FanOut | None,
) -> None:
    """Make a block of rows with ordinals from `first` on, and show it to its subscriptions."""
    count, messages = len(piece), [prepared.message for prepared in piece]
    scheduled: list[tuple[int, int]] = []
    if not activated:
        times = [message.scheduled_enqueue_time_ms for message in messages]
        if times.count(None) != count:
            later = _scheduled(times, now + partition.offsets.moments)
            scheduled = [(first + at, time) for at in later if (time := times[at]) is not None]
    if fan is not None and fan.scheduled != [ordinal - first for ordinal, _ in scheduled]:
        # Since the plan was made a message came due, or the clock was set.
        fan = None
    expires = [
        NEVER if prepared.time_to_live_ms is None else now + prepared.time_to_live_ms
        for prepared in piece
    ]
    kinds = [COPY if only else ACTIVATED if activated else MESSAGE] * count
    for ordinal, _ in scheduled:
        # Its time to live counts from its activation, as a row of its own (S6).
        expires[ordinal - first] = NEVER
        kinds[ordinal - first] = SCHEDULED
    sessions = [message.session_id for message in messages]
    hashes, keys = session_keys(partition, sessions, first)
    rows = [prepared.row for prepared in piece]
    payload = encode_rows(first, moment, now, expires, hashes, kinds, rows)
    place = Placed(
        first, moment, payload, min(expires), sessions, keys, scheduled, only, fan,
        groups=lambda: map(group_of, messages),
    )  # fmt: skip
    default_ms = partition.settings.delivery_delay_ms
    own_ms = [prepared.delay_ms for prepared in piece]
    if not activated and (default_ms or own_ms.count(None) != count):
        place.delayed.extend(delays(piece, first, default_ms, now, dict(scheduled)))
    put_block(partition, place, lambda: messages, now, wall, out)


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A block of new messages, and what their partition has to know of them."""

    first: int
    moment: int
    payload: bytes | StagedBlock
    #: bus time at which the first of them expires
    earliest: int
    sessions: Sequence[str | None]
    #: what the block's index has of the sessions
    keys: bytes | None
    #: (ordinal, moment by the wall clock) of those that are not to be seen yet
    scheduled: list[tuple[int, int]]
    #: in a topic, the subscription that gets them, whatever the rules say
    only: int = 0
    #: their fan-out, if it was computed before
    fan: FanOut | None = None
    #: (ordinal, due in bus time) of those that cannot be received yet
    delayed: list[tuple[int, int]] = field(default_factory=list)
    #: the groups that send them (B10)
    groups: Callable[[], Iterable[str | None]] = tuple


def put_block(
    partition: Partition,
    block: Placed,
    messages: Callable[[], list[Message]],
    now: int,
    wall: int,
    out: WriteBatch,
) -> None:
    """Add a block to the log, and show its messages to their subscriptions."""
    first, count, moment = block.first, len(block.sessions), block.moment
    place = (block.payload, first, first + count - 1, count, block.earliest, out, block.keys)
    if not partition.is_topic:
        partition.log.append(*place)
        _show(partition, block, out)
        ready = partition.subscription.ready
        if isinstance(ready, FairQueue):
            ready.noise.sent(block.groups(), now)
        return
    due = dict(block.scheduled)
    fan = block.fan
    if fan is None:
        only = [block.only] * count if block.only else None
        fan = FanOut(partition, messages(), [ordinal - first for ordinal in due], only)
    fan.place(first, moment)
    partition.log.append(*place, fan.members)
    fan.show(due, out)
    _store_copies(partition, fan.copies, now, wall, out)


def session_keys(
    partition: Partition, sessions: Sequence[str | None], first: int
) -> tuple[list[int], bytes | None]:
    """Return the hashes of SessionIds, and what a block's index has of them."""
    if partition.is_topic:
        wanted = sessions.count(None) != len(sessions)
    else:
        wanted = partition.settings.requires_session
    if not wanted:
        return [0] * len(sessions), None
    hash_of = partition.subscription.sessions.hash
    hashes = [0 if session_id is None else hash_of(session_id) for session_id in sessions]
    pairs = chain.from_iterable(enumerate(hashes, first))
    return hashes, struct.pack(f"<{2 * len(hashes)}Q", *pairs)


def _store_copies(
    partition: Partition, copies: list[Copy], now: int, wall: int, out: WriteBatch
) -> None:
    """Store the further copies that rules made: separate rows, each for one subscription."""
    rows_of_all = [encode(copy.message) for copy in copies]
    start = 0
    while start < len(copies):
        fits = _fitting(rows_of_all, start)
        first, count, moment = stamp(partition, fits, wall, out)
        piece, rows = copies[start : start + count], rows_of_all[start : start + count]
        start += count
        messages = [copy.message for copy in piece]
        ttls = [time_to_live(message, partition.settings) for message in messages]
        expires = [NEVER if ttl is None else now + ttl for ttl in ttls]
        hashes, keys = session_keys(partition, [one.session_id for one in messages], first)
        payload = encode_rows(first, moment, now, expires, hashes, [COPY] * count, rows)
        fan = FanOut(partition, messages, [], [copy.number for copy in piece])
        fan.place(first, moment)
        last = first + count - 1
        partition.log.append(payload, first, last, count, min(expires), out, keys, fan.members)
        fan.show({}, out)


def _scheduled(times: Sequence[int | None], moment: int) -> list[int]:
    """Return the positions of messages for later than this moment; a past time is now."""
    return [at for at, time in enumerate(times) if time is not None and time > moment]


def plan(partition: Partition, batch: Sequence[Prepared], now: int) -> Plan:
    """Return the fan-out of a batch as it would be now, to be computed before it is sent."""
    originals = find_duplicates(partition, batch, now)
    fresh = [one for one, original in zip(batch, originals, strict=True) if original == -1]
    moment = now + partition.offsets.moments

    def fans() -> Iterator[Bit]:
        start = 0
        while start < len(fresh):
            piece = _piece(fresh, start)
            messages = [one.message for one in piece]
            times = [message.scheduled_enqueue_time_ms for message in messages]
            fan = FanOut(partition, messages, _scheduled(times, moment))
            yield (start, start + len(piece)), piece, fan
            start += len(piece)

    return Plan(partition, fans())


def _show(partition: Partition, block: Placed, out: WriteBatch) -> None:
    """Hand messages to a queue's subscription: all that have not to wait, in runs."""
    subscription, sessions = partition.subscription, block.sessions
    start = first = block.first
    if not (block.scheduled or block.delayed):
        subscription.enqueue(first, sessions)
        return
    later = dict(block.delayed)
    for ordinal, due in sorted(block.scheduled + block.delayed):
        if ordinal in later:
            delay(subscription, ordinal, due, sessions[ordinal - first], out)
        else:
            subscription.schedule(ordinal, due, out)
        if ordinal > start:
            subscription.enqueue(start, sessions[start - first : ordinal - first])
        start = ordinal + 1
    if start < first + len(sessions):
        subscription.enqueue(start, sessions[start - first :])


def note_duplicate(
    partition: Partition, message_id: str | None, ordinal: int, now: int, out: WriteBatch
) -> None:
    """Record a dropped message, which repeats the one with that ordinal."""
    slot = partition.duplicates % DUPLICATES_LISTED_MAX
    partition.duplicates += 1
    partition.subscription.tally.duplicates += 1
    partition.recent_duplicates.append((message_id, now, ordinal))
    out.put(DUPLICATES, (partition.id, slot, message_id, now, to_column(ordinal)))
