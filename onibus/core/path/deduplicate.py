"""Deduplicate: which messages of a batch repeat one that was recorded inside the window."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
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
    hashes = [identity for prepared in batch for identity in prepared.identities]
    owners: Sequence[int] = range(len(batch))
    if len(hashes) != len(batch):
        # A message may have two identities (F7), or none (D11).
        owners = [at for at, prepared in enumerate(batch) for _ in prepared.identities]
    return find_originals(hashes, owners, len(batch), ids, forget_before, forget_below)


def find_originals(
    hashes: Sequence[bytes],
    owners: Sequence[int],
    count: int,
    ids: RememberedIds,
    forget_before: int,
    forget_below: int,
) -> list[int]:
    """Return the same for so many messages, given by their identities.

    owners[i] is the position of the message that has hashes[i]; those of one follow each other.
    """
    originals = [-1] * count
    if not hashes:
        return originals
    known = ids.find(hashes, forget_before)
    if max(known) == -1 and len(set(hashes)) == len(hashes):
        return originals
    in_batch: dict[bytes, int] = {}
    for at, asked in groupby(range(len(hashes)), owners.__getitem__):
        mine = list(asked)
        for place in mine:
            ordinal = known[place]
            if ordinal == -1 or ordinal < forget_below:
                ordinal = in_batch.get(hashes[place], -1)
            if ordinal != -1:
                originals[at] = ordinal
                break
        else:
            in_batch.update((hashes[place], -2 - at) for place in mine)
    return originals


def list_duplicates(partition: Partition) -> list[tuple[str | None, int, int]]:
    """Return the last dropped duplicates: MessageId, time, and the number each repeats (X1)."""
    number = partition.numbering.number
    return [
        (message_id, time, number(ordinal))
        for message_id, time, ordinal in partition.recent_duplicates
    ]
