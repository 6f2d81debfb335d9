"""Settling of message claims: a claim is committed or released.

To commit, the broker writes into the claim's row that it is committed, and which messages it
dead-letters: that decides. Then it completes the claim's messages, partition by partition. At last
it replaces the row by the reader's record of the number. A partition that is offline does its part
when it is back. To release a claim, the broker deletes the row, then releases the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from onibus.core.checks import check_text, check_whole
from onibus.core.commands import CompleteClaimed, IsClaimed, ReleaseClaimed
from onibus.core.errors import (
    InvalidArgument,
    MessageNotFound,
    OnibusError,
    PartitionOffline,
    Unknown,
)
from onibus.core.limits import REASON_LENGTH_MAX
from onibus.core.records import CLAIMS, WriteBatch
from onibus.directory.claim_rows import (
    COMMITTING,
    DECIDING,
    OPEN,
    RELEASING,
    DeadLetterWords,
    HeldClaim,
)
from onibus.directory.claiming import CLAIM_SLICE
from onibus.directory.routing import partition_of_number
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import KeptReply, Reply, answer
from onibus.shard.slices import in_slices

if TYPE_CHECKING:
    from onibus.directory.claims import Claims


def commit(
    claims: Claims,
    name: str,
    reader_name: str,
    number: int,
    dead_letters: Mapping[int, DeadLetterWords] | None,
    incarnation: int | None,
    reply: Reply,
) -> None:
    """Complete what a claim has, once and for all; again is harmless."""
    letters = _checked(dead_letters)
    check_whole("number", number, 1)
    reader = claims.find(name, reader_name, incarnation)
    known = reader.claims.get(number)
    if known is None and number in reader.committed:
        answer(reply, None)
        return
    if known is not None and known.stage in (DECIDING, COMMITTING):
        claims.check_decidable()
        known.waiting.append(claims.counted(reply))
        if known.stage == COMMITTING:
            _carry_out(claims, known)
        return
    held = claims.open(name, reader_name, number, incarnation)
    claims.check_decidable()
    for partition in held.partitions:
        partition.check_online()
    for letter in letters:
        _check_has(claims, held, letter)
    held.waiting.append(claims.counted(reply))
    held.stage = DECIDING
    held.content.committing = True
    held.content.dead_letters = letters
    claims.broker.timers.cancel(("claim", held.key))
    batch = WriteBatch()
    held.put(batch)
    claims.broker.namespace.commit(batch, KeptReply(lambda kept: _decided(claims, held, kept)))


def _decided(claims: Claims, held: HeldClaim, kept: KeptReply) -> None:
    if kept.error is not None:
        # It may be committed or not: that shows when that store is open again.
        held.tell(kept.error)
        return
    held.stage = COMMITTING
    held.left.update(held.indexes)
    _carry_out(claims, held)


def _carry_out(claims: Claims, held: HeldClaim) -> None:
    """Complete what a committed claim has, in all partitions that can be reached."""
    for index in sorted(held.left):
        complete_in(claims, held, held.entity.partitions[index])


def complete_in(claims: Claims, held: HeldClaim, partition: ShardPartition) -> None:
    """Complete what a committed claim has in a partition, slice by slice; can be done again."""
    entity = held.entity
    command = CompleteClaimed(entity.number, held.owner, held.content.dead_letters, CLAIM_SLICE)

    def step() -> bool:
        try:
            done = claims.use(entity, partition, command)
        except OnibusError as error:
            held.tell(_not_yet(held, error))
            return False
        if done == CLAIM_SLICE:
            return True
        partition.store.answer_after(KeptReply(durable), None)
        return False

    def durable(kept: KeptReply) -> None:
        if kept.error is not None:
            held.tell(_not_yet(held, kept.error))
        elif partition.index in held.left:
            held.left.discard(partition.index)
            if not held.left:
                _finish(claims, held)

    in_slices(claims.broker.call_soon, step)


def _finish(claims: Claims, held: HeldClaim) -> None:
    """Replace the row of a claim that is carried out by the reader's record of its number."""
    if not claims.is_living(held.entity):
        return
    held.reader.has_committed(held.number)
    batch = WriteBatch()
    batch.delete(CLAIMS, held.key)
    held.reader.put(batch)

    def finished(kept: KeptReply) -> None:
        if kept.error is None:
            held.reader.claims.pop(held.number, None)
        held.tell(kept.error)

    try:
        claims.broker.namespace.commit(batch, KeptReply(finished))
    except PartitionOffline as error:
        held.tell(_not_yet(held, error))


def release(
    claims: Claims, name: str, reader_name: str, number: int, incarnation: int | None, reply: Reply
) -> None:
    """Give a claim's messages back, without counting a delivery."""
    check_whole("number", number, 1)
    known = claims.find(name, reader_name, incarnation).claims.get(number)
    if known is not None and known.stage == RELEASING:
        claims.check_decidable()
        known.waiting.append(claims.counted(reply))
        return
    held = claims.open(name, reader_name, number, incarnation)
    claims.check_decidable()
    held.waiting.append(claims.counted(reply))
    release_held(claims, held)


def release_held(claims: Claims, held: HeldClaim) -> None:
    """Delete the row; then release the messages of the claim."""
    batch = WriteBatch()
    batch.delete(CLAIMS, held.key)

    def released(kept: KeptReply) -> None:
        if kept.error is not None:
            # Whether it is released shows when the store is open again.
            held.tell(kept.error)
            return
        held.reader.claims.pop(held.number, None)
        _give_back(claims, held)

    held.stage = RELEASING
    claims.broker.timers.cancel(("claim", held.key))
    try:
        claims.broker.namespace.commit(batch, KeptReply(released))
    except PartitionOffline:
        # Nothing can be decided until that store is open again.
        held.stage = OPEN


def _give_back(claims: Claims, held: HeldClaim) -> None:
    """Release messages slice by slice; an offline partition does it when it is back."""
    entity, partitions = held.entity, held.partitions
    command = ReleaseClaimed(entity.number, held.owner, CLAIM_SLICE)

    def step() -> bool:
        try:
            done = claims.use(entity, partitions[-1], command)
        except OnibusError:
            done = 0
        if done < CLAIM_SLICE:
            partitions.pop()
        if partitions:
            return True
        held.tell(None)
        return False

    in_slices(claims.broker.call_soon, step)


def _check_has(claims: Claims, held: HeldClaim, number: int) -> None:
    """Reject a sequence number that is not one of the claim's."""
    partition = partition_of_number(held.entity, number)
    if partition.index in held.indexes:
        command = IsClaimed(held.entity.number, held.owner, number)
        if claims.broker.use(held.entity, partition, command):
            return
    raise MessageNotFound(f"message {number} is not in claim {held.number}")


def _checked(dead_letters: object) -> dict[int, DeadLetterWords]:
    """Return the messages that a commit dead-letters, or reject them."""
    if dead_letters is None:
        return {}
    if not isinstance(dead_letters, Mapping):
        raise InvalidArgument(
            "dead_letters must be a dict: {sequence number: (reason, description)}"
        )
    checked = {}
    for number, words in dead_letters.items():
        check_whole("a sequence number", number, 0, 2**63 - 1)
        if not isinstance(words, (tuple, list)) or len(words) != 2:
            raise InvalidArgument(f"dead_letters[{number}] must be (reason, description)")
        for name, text in zip(("reason", "description"), words, strict=True):
            if text is not None:
                check_text(name, text, REASON_LENGTH_MAX)
        checked[number] = (words[0], words[1])
    return checked


def _not_yet(held: HeldClaim, error: BaseException) -> Unknown:
    return Unknown(
        f"claim {held.number} is committed, and takes effect when all its partitions are "
        f"available: {error}"
    )
