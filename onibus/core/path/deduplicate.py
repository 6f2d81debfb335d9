"""Deduplicate: which messages of a batch repeat one that was recorded inside the window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onibus.core.path.admit import Prepared
from onibus.core.remembered_ids import RememberedIds

if TYPE_CHECKING:
    from onibus.core.partition import Partition


def deduplicate(
    batch: Sequence[Prepared], ids: RememberedIds, forget_before: int, forget_below: int
) -> list[int]:
    """Return for each message the ordinal that it repeats, -1 when it is new.

    -2 - i stands for "repeats message i of this batch" (D10), whose ordinal is not known yet.
    """
    return find_originals(
        [prepared.identities for prepared in batch], ids, forget_before, forget_below
    )


def find_originals(
    batch: Sequence[tuple[bytes, ...]], ids: RememberedIds, forget_before: int, forget_below: int
) -> list[int]:
    """Return the same for messages that are given by their identities alone."""
    hashes = [identity for identities in batch for identity in identities]
    if not hashes:
        return [-1] * len(batch)
    known = ids.find(hashes, forget_before)
    if max(known) == -1 and len(set(hashes)) == len(hashes):
        return [-1] * len(batch)
    in_batch: dict[bytes, int] = {}
    originals = []
    asked = 0
    for at, identities in enumerate(batch):
        original = -1
        for identity in identities:
            ordinal = known[asked]
            asked += 1
            if original != -1:
                continue
            if ordinal != -1 and ordinal >= forget_below:
                original = ordinal
            else:
                original = in_batch.get(identity, -1)
        if original == -1:
            for identity in identities:
                in_batch[identity] = -2 - at
        originals.append(original)
    return originals


def list_duplicates(partition: Partition) -> list[tuple[str | None, int, int]]:
    """Return the last dropped duplicates: MessageId, time, and the number each repeats (X1)."""
    number = partition.numbering.number
    return [
        (message_id, time, number(ordinal))
        for message_id, time, ordinal in partition.recent_duplicates
    ]
