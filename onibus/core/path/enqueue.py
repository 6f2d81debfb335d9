"""Enqueue: a batch of admitted messages becomes a block of the log.

The kernel of every send, one message or ten thousand: deduplicate → stamp → store → show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onibus.core.block import NEVER, encode_rows
from onibus.core.limits import BLOCK_BYTES_MAX, DUPLICATES_LISTED_MAX
from onibus.core.message import Sent
from onibus.core.path.admit import Prepared
from onibus.core.path.deduplicate import deduplicate
from onibus.core.path.stamp import stamp
from onibus.core.records import DUPLICATES, WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition


def send(
    partition: Partition, batch: Sequence[Prepared], now: int, wall: int, out: WriteBatch
) -> list[Sent]:
    """Store what is new of a batch; answer for each message in order."""
    originals = deduplicate(
        batch, partition.ids, partition.forget_before(now), partition.forget_below
    )
    fresh = [prepared for prepared, original in zip(batch, originals, strict=True)
             if original == -1]
    ordinals = iter(store(partition, fresh, now, wall, out))
    given: list[int] = []
    answers = []
    number = partition.numbering.number
    for prepared, original in zip(batch, originals, strict=True):
        if original == -1:
            ordinal = next(ordinals)
            for identity in prepared.identities:
                partition.ids.record(identity, ordinal, now)
            answers.append(Sent(number(ordinal)))
        else:
            ordinal = given[-2 - original] if original < 0 else original
            _note_duplicate(partition, prepared, ordinal, now, out)
            answers.append(Sent(number(ordinal), number(ordinal)))
        given.append(ordinal)
    partition.ids.write(out)
    return answers


def store(
    partition: Partition,
    batch: Sequence[Prepared],
    now: int,
    wall: int,
    out: WriteBatch,
    activated: bool = False,
) -> list[int]:
    """Store messages, duplicates or not; return their ordinals.

    `activated`: their scheduled time has come, whatever the wall clock says.
    """
    ordinals: list[int] = []
    start = 0
    while start < len(batch):
        piece = _piece(batch, start)
        first, count, moment = stamp(
            partition.log, partition.numbering, partition.subscription, len(piece), wall, out
        )
        _store_block(partition, piece[:count], first, moment, now, wall, out, activated)
        ordinals.extend(range(first, first + count))
        start += count
    return ordinals


def _piece(batch: Sequence[Prepared], start: int) -> Sequence[Prepared]:
    """Return what fits in one block."""
    size = 0
    for end in range(start, len(batch)):
        size += len(batch[end].row)
        if size > BLOCK_BYTES_MAX and end > start:
            return batch[start:end]
    return batch[start:]


def _store_block(
    partition: Partition,
    piece: Sequence[Prepared],
    first: int,
    moment: int,
    now: int,
    wall: int,
    out: WriteBatch,
    activated: bool,
) -> None:
    subscription = partition.subscription
    with_sessions = partition.settings.requires_session
    expires = []
    hashes = []
    scheduled = []
    keys = bytearray()
    for ordinal, prepared in enumerate(piece, first):
        message = prepared.message
        wait = 0
        if message.scheduled_enqueue_time_ms is not None and not activated:
            wait = message.scheduled_enqueue_time_ms - wall
        ttl = prepared.time_to_live_ms
        if wait > 0:
            scheduled.append((ordinal, now + wait))
        expires.append(NEVER if ttl is None or wait > 0 else now + ttl)
        session = 0
        if with_sessions:
            assert message.session_id is not None
            session = subscription.sessions.hash(message.session_id)
            keys += ordinal.to_bytes(8, "little") + session.to_bytes(8, "little")
        hashes.append(session)
    payload = encode_rows(first, moment, expires, hashes, [prepared.row for prepared in piece])
    partition.log.append(
        payload, first, first + len(piece) - 1, len(piece), min(expires), out,
        bytes(keys) if with_sessions else None,
    )
    _show(partition, piece, first, scheduled, out)


def _show(
    partition: Partition, piece: Sequence[Prepared], first: int,
    scheduled: list[tuple[int, int]], out: WriteBatch,
) -> None:
    """Hand messages to the subscription: all that are not scheduled, in runs."""
    subscription = partition.subscription
    start = first
    for ordinal, due in scheduled:
        subscription.schedule(ordinal, due, out)
        if ordinal > start:
            part = piece[start - first : ordinal - first]
            subscription.enqueue(start, [prepared.message.session_id for prepared in part])
        start = ordinal + 1
    rest = piece[start - first :]
    if rest:
        subscription.enqueue(start, [prepared.message.session_id for prepared in rest])


def _note_duplicate(
    partition: Partition, prepared: Prepared, ordinal: int, now: int, out: WriteBatch
) -> None:
    slot = partition.duplicates % DUPLICATES_LISTED_MAX
    partition.duplicates += 1
    message_id = prepared.message.message_id
    partition.recent_duplicates.append((message_id, now, ordinal))
    out.put(DUPLICATES, (partition.partition, slot, message_id, now, ordinal))
