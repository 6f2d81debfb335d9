"""Reading a claim: the same messages each time, all of them or an error.

The broker records the first read in the claim's row before it replies. From then on the claim
belongs to its reader, and its lease no longer expires (R7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onibus.core.checks import check_whole
from onibus.core.commands import ListClaimed, ReadMessages
from onibus.core.errors import Damaged, InvalidArgument, OnibusError
from onibus.core.message import ReceivedMessage
from onibus.core.records import WriteBatch
from onibus.directory.claim_holding import check_holder
from onibus.directory.claim_rows import HeldClaim
from onibus.directory.claiming import CLAIM_SLICE
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import KeptReply, Reply, answer, fail
from onibus.shard.slices import in_slices

if TYPE_CHECKING:
    from onibus.directory.claims import Claims

#: Bytes of blocks that one slice reads, about.
SLICE_BYTES = 16 << 20
#: Makes what the reader gets of some messages of a partition.
Page = Callable[[int, list[ReceivedMessage]], Any]


def read(
    claims: Claims,
    name: str,
    reader_name: str,
    number: int,
    partition: int | None,
    incarnation: int | None,
    page: Page,
    reply: Reply,
    token: str | None = None,
) -> None:
    """Reply with the claim's pages; from then on it belongs to its reader, without a lease."""
    held = claims.open(name, reader_name, number, incarnation)
    check_holder(held.reader, token)
    partitions = held.partitions
    if partition is not None:
        check_whole("partition", partition, 0)
        if partition not in held.indexes:
            raise InvalidArgument(f"claim {number} has no messages in partition {partition}")
        partitions = [held.entity.partitions[partition]]
    for one in partitions:
        one.check_online()
    if held.read:
        _read_pages(claims, held, partitions, page, claims.counted(reply))
        return
    claims.check_decidable()
    counted = claims.counted(reply)
    held.content.read = True
    claims.broker.timers.cancel(("claim", held.key))
    batch = WriteBatch()
    held.put(batch)

    def marked(kept: KeptReply) -> None:
        if kept.error is not None:
            fail(counted, kept.error)
            return
        held.read = True
        _read_pages(claims, held, partitions, page, counted)

    claims.broker.namespace.commit(batch, KeptReply(marked))


def _read_pages(
    claims: Claims, held: HeldClaim, partitions: list[ShardPartition], page: Page, reply: Reply
) -> None:
    """Read slice by slice; all of it, or an error."""
    pages: list[Any] = []
    counts = dict(held.content.partitions)
    ahead: list[tuple[ShardPartition, list[int]]] = []

    def find() -> None:
        for partition in partitions:
            command = ListClaimed(held.entity.number, held.owner)
            ordinals = claims.broker.use(held.entity, partition, command)
            if len(ordinals) != counts[partition.index]:
                raise Damaged(
                    f"claim {held.number} of {held.reader.name!r} has {len(ordinals)} messages "
                    f"in partition {partition.index} of {held.entity.name}, not "
                    f"{counts[partition.index]}"
                )
            starts = range(0, len(ordinals), CLAIM_SLICE)
            ahead.extend((partition, ordinals[start : start + CLAIM_SLICE]) for start in starts)
        ahead.reverse()

    def step() -> bool:
        try:
            claims.check_open(held)
            if not pages:
                find()
            partition, ordinals = ahead.pop()
            command = ReadMessages(held.entity.number, ordinals, SLICE_BYTES)
            received = claims.broker.use(held.entity, partition, command)
            if len(received) < len(ordinals):
                ahead.append((partition, ordinals[len(received) :]))
            pages.append(page(partition.index, received))
        except OnibusError as error:
            fail(reply, error)
            return False
        if ahead:
            return True
        answer(reply, pages)
        return False

    in_slices(claims.broker.call_soon, step)
