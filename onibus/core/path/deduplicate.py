"""Deduplicate: which messages of a batch repeat one that was recorded inside the window."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from onibus.core.commands import ListDuplicates
from onibus.core.path.admit import Prepared
from onibus.core.records import WriteBatch
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
    """Return the same for `count` messages, given by their identities.

    owners[i] is the position of the message that has hashes[i]; those of one follow each other.
    """
    if not hashes:
        return [-1] * count
    known = ids.find(hashes, forget_before)
    if max(known) == -1 and len(set(hashes)) == len(hashes):
        return [-1] * count
    if forget_below:
        known = [-1 if ordinal < forget_below else ordinal for ordinal in known]
    if len(hashes) == count == len(set(hashes)):
        # Each message has one identity, and none repeats another of the batch.
        return known
    return find_repeats(hashes, owners, known, count)


def find_repeats(
    names: Sequence[bytes],
    owners: Sequence[int],
    known: Sequence[int],
    count: int,
    times: Sequence[int] | None = None,
    window_ms: int = 0,
) -> list[int]:
    """Return what each of `count` messages repeats: a recorded one, or an earlier one of them.

    known[i] is the ordinal recorded for names[i] that counts for its message, or -1. Without
    `times` all of them arrive at the same time. With `times`, which never fall, a new message is an
    original while the window lasts; after that the next one is new (D5). Messages without an
    identity repeat nothing.
    """
    originals = [-1] * count
    in_batch: dict[bytes, int] = {}
    for at, asked in groupby(range(len(names)), owners.__getitem__):
        mine = list(asked)
        for place in mine:
            original = known[place]
            if original == -1:
                original = in_batch.get(names[place], -1)
                if times is not None and original != -1:
                    recorded = times[-2 - original]
                    original = original if times[at] - recorded < window_ms else -1
            if original != -1:
                originals[at] = original
                break
        else:
            in_batch.update((names[place], -2 - at) for place in mine)
    return originals


def list_duplicates(
    partition: Partition, command: ListDuplicates, now: int, wall: int, out: WriteBatch
) -> list[tuple[str | None, int, int]]:
    """Return the last dropped duplicates: MessageId, time, and the number each repeats (X1)."""
    number, shown = partition.numbering.number, partition.offsets.shown
    return [
        (message_id, shown(time), number(ordinal))
        for message_id, time, ordinal in partition.recent_duplicates
    ]
