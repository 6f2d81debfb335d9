"""Rename: a message that is sent again gets a new MessageId if its old one is recorded.

A dead-lettered message that is resubmitted, or a message that is replayed, must not be dropped as a
duplicate of itself. The new id is made of the old one, the operation, and the sequence number that
the message had. So operators see its origin, and a repetition after a crash makes the same id. Its
effective key stays the same, and so does its partition (P4).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING

from msgspec.structs import replace

from onibus.core.limits import ID_LENGTH_MAX
from onibus.core.path.admit import Prepared, admit, of_any_size
from onibus.core.path.enqueue import find_duplicates
from onibus.core.path.route import effective_key

if TYPE_CHECKING:
    from onibus.core.partition import Partition


def rename_remembered(
    partition: Partition, batch: Sequence[Prepared], originals: list[int], now: int, word: str
) -> list[Prepared]:
    """Return the batch with new ids for those messages that would be dropped as duplicates.

    `originals` is the result of `find_duplicates`. The messages have their old sequence numbers as
    `enqueued_sequence_number`. Reads, and changes nothing.
    """
    renamed = list(batch)
    for attempt in count(1):
        repeated = [at for at, original in enumerate(originals) if original != -1]
        if not repeated:
            break
        for at in repeated:
            renamed[at] = _rename(partition, batch[at], word, attempt)
        originals = find_duplicates(partition, renamed, now)
    return renamed


def _rename(partition: Partition, prepared: Prepared, word: str, attempt: int) -> Prepared:
    message = prepared.message
    assert message.message_id is not None, "a message without an id is never a duplicate"
    tail = f"/{word}/{message.enqueued_sequence_number}"
    if attempt > 1:
        tail += f"/{attempt}"
    changed = replace(
        message,
        message_id=_shortened(message.message_id, tail),
        rewritten=bool(message.as_sent),
    )
    if partition.settings.enable_partitioning:
        changed.partition_key = effective_key(message, partition.settings)
    admitted = admit(changed, of_any_size(partition.settings), partition.secret)
    # Only the id counts now: where equal content is a duplicate too (F7), it is meant to be sent.
    admitted.identities = admitted.identities[:1]
    admitted.time_to_live_ms = prepared.time_to_live_ms
    return admitted


def _shortened(message_id: str, tail: str) -> str:
    """Return the new id; one that is too long has a hash in the place of the old one."""
    if len(message_id) + len(tail) <= ID_LENGTH_MAX:
        return message_id + tail
    return sha256(message_id.encode()).hexdigest() + tail
