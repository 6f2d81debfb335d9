"""Rename: messages that come again on purpose get a new MessageId where the old is remembered.

A dead letter that is resubmitted, or a message that is replayed, must not be dropped as a duplicate
of itself. Its effective key stays as it was, so it goes where its like goes (P4).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from msgspec.structs import replace

from onibus.core.limits import ID_LENGTH_MAX
from onibus.core.path.admit import Prepared, admit
from onibus.core.path.deduplicate import deduplicate
from onibus.core.path.route import effective_key

if TYPE_CHECKING:
    from onibus.core.partition import Partition

#: Hexadecimal digits that tell a new id from the old one.
_DIGITS = 16


def rename_duplicates(
    partition: Partition, batch: list[Prepared], originals: list[int], now: int
) -> tuple[list[Prepared], list[int]]:
    """Return the batch with new ids for what would be dropped, and what each repeats then."""
    renamed = list(batch)
    attempt = 0
    while any(original != -1 for original in originals):
        attempt += 1
        for at, original in enumerate(originals):
            if original != -1:
                renamed[at] = _renamed(partition, batch[at], f"{at}/{attempt}")
        originals = deduplicate(
            renamed, partition.ids, partition.forget_before(now), partition.forget_below
        )
    return renamed, originals


def _renamed(partition: Partition, prepared: Prepared, salt: str) -> Prepared:
    message = prepared.message
    old = message.message_id or ""
    seed = f"{partition.id}/{partition.log.next_ordinal}/{salt}/{old}".encode()
    tail = blake2b(seed, digest_size=_DIGITS // 2, key=partition.secret).hexdigest()
    changed = replace(message, message_id=f"{old[: ID_LENGTH_MAX - _DIGITS - 1]}~{tail}")
    if partition.settings.enable_partitioning:
        changed.partition_key = effective_key(message, partition.settings)
    again = admit(changed, partition.settings, partition.secret)
    # What its content is remembered by (F7) would make it a duplicate again.
    return Prepared(
        again.message, again.row, again.identities[:1], prepared.time_to_live_ms, again.key
    )
