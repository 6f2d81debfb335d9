"""Work: the part that one partition has in a multi-partition operation (core/staged.py).

If all partitions are in one store, each carries its part out immediately. Otherwise each stages it,
which holds the messages that will change, and publishes it once the operation was decided, or
unstages it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from onibus.core.block import NEVER
from onibus.core.commands import (
    CarryOut,
    FindRepeats,
    InspectStaged,
    Publish,
    ReadStaged,
    Repeats,
    Stage,
    StagedFacts,
    Stored,
    Unstage,
)
from onibus.core.errors import NotStaged
from onibus.core.lifecycle import UNLOCKED, Input, State
from onibus.core.path import enqueue
from onibus.core.path.dead_letter import dead_letter
from onibus.core.path.rename import rename_remembered
from onibus.core.path.send import kernel_of
from onibus.core.path.settle import give_back, modify, note_return
from onibus.core.records import BLOCKS, STAGED, WriteBatch
from onibus.core.staged import Change, Part, decode_part, encode_part, facts_of

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription

#: Verbs after which a message is gone.
_LEAVES = {"complete": Input.COMPLETE, "move": Input.MOVE}


def owner_of(work: int) -> str:
    """Return the owner that holds of a work have."""
    return f"work/{work}"


def is_work(owner: str) -> bool:
    """Return whether an owner of holds is a multi-partition operation."""
    return owner.startswith("work/")


def find_repeats(
    partition: Partition, command: FindRepeats, now: int, wall: int, out: WriteBatch
) -> Repeats:
    """Return which messages of a part repeat earlier ones; rename them, if the part says so."""
    part = command.part
    if not len(part.batch):
        return Repeats([])
    originals: list[int] = kernel_of(part.batch).find_duplicates(partition, part.batch, now)
    if part.rename and isinstance(part.batch, list) and originals.count(-1) != len(originals):
        renamed = rename_remembered(partition, part.batch, originals, now, part.rename)
        return Repeats([-1] * len(renamed), renamed)
    return Repeats(originals)


def _prepare(partition: Partition, part: Part, now: int) -> list[int]:
    """Return what each message repeats; the part has new ids for them, if it says so."""
    return part.take(find_repeats(partition, FindRepeats(part), now, now, WriteBatch()))


def carry_out(
    partition: Partition, command: CarryOut, now: int, wall: int, out: WriteBatch
) -> Stored:
    """Store the messages of a part, and settle those that it names."""
    originals = command.originals
    if originals is None:
        originals = _prepare(partition, command.part, now)
    if command.work is not None:
        out.delete(STAGED, (command.work, partition.id, 0))
    return _carry_out(partition, command.part, originals, now, wall, out)


def _carry_out(
    partition: Partition, part: Part, originals: list[int], now: int, wall: int, out: WriteBatch
) -> Stored:
    sent: Stored = []
    if isinstance(part.batch, list):
        if part.batch:
            sent = enqueue.send(
                partition, part.batch, originals, now, wall, out, part.only, part.plan
            )
    elif len(part.batch):
        kernel = kernel_of(part.batch)
        sent = kernel.send(partition, part.batch, originals, now, wall, out, part.plan)
    _change_all(partition, part.changes, now, out)
    return sent


def _change_all(partition: Partition, changes: Iterable[Change], now: int, out: WriteBatch) -> None:
    gone: dict[int, list[int]] = {}
    for change in changes:
        subscription = partition.subscriptions.get(change.subscription)
        if subscription is None:
            # It was deleted after this was staged, with everything in it.
            continue
        if change.verb in _LEAVES:
            subscription.change(change.ordinal, _LEAVES[change.verb], out)
            gone.setdefault(change.subscription, []).append(change.ordinal)
        else:
            _give_back(subscription, change, now, out)
    for number, ordinals in gone.items():
        partition.subscriptions[number].depart(ordinals, out)


def _give_back(subscription: Subscription, change: Change, now: int, out: WriteBatch) -> None:
    ordinal = change.ordinal
    modify(subscription, ordinal, change.properties)
    if change.verb == "dead-letter":
        note_return(subscription, ordinal, subscription.marks[ordinal], "dead-lettered", now)
        dead_letter(subscription, ordinal, change.reason, change.description, out)
    else:
        event = Input.DEFER if change.verb == "defer" else Input.ABANDON
        give_back(subscription, ordinal, event, now, out, change.delay_ms)


def stage(partition: Partition, command: Stage, now: int, wall: int, out: WriteBatch) -> list[int]:
    """Keep a part until it is decided; return the blocks that have its messages."""
    by_subscription: dict[int, list[int]] = {}
    for change in command.part.changes:
        by_subscription.setdefault(change.subscription, []).append(change.ordinal)
    for number, ordinals in by_subscription.items():
        _pin(partition.subscriptions[number], ordinals, owner_of(command.work))
    batch = command.part.batch
    if not isinstance(batch, list):
        kernel_of(batch).stage(partition, batch, out)
    out.put(STAGED, (command.work, partition.id, 0, encode_part(command.part, command.decider)))
    return [body.block for body in command.part.staged]


def publish(partition: Partition, command: Publish, now: int, wall: int, out: WriteBatch) -> Stored:
    """Carry out a staged part, once: its row goes with the same commit."""
    part = command.part
    if part is None:
        part = _read_staged(partition, command.work, command.piece)
    if part is None:
        raise NotStaged("this part of the operation was carried out before")
    originals = _prepare(partition, part, now)
    out.delete(STAGED, (command.work, partition.id, command.piece))
    return _carry_out(partition, part, originals, now, wall, out)


def unstage(partition: Partition, command: Unstage, now: int, wall: int, out: WriteBatch) -> None:
    """Discard a part that was not decided; release its messages without counting a delivery."""
    owner = owner_of(command.work)
    for subscription in partition.subscriptions.values():
        for hold in [one for one in subscription.owned.values() if one.owner == owner]:
            for ordinal in sorted(hold.ordinals):
                give_back(subscription, ordinal, Input.RELEASE, now, out)
    forget(command.work, partition.id, command.pieces, command.blocks, out)


def forget(
    work: int, partition: int, pieces: Iterable[int], blocks: Iterable[int], out: WriteBatch
) -> None:
    """Delete the rows of a part that will not be published."""
    for piece in pieces:
        out.delete(STAGED, (work, partition, piece))
    for block in blocks:
        out.delete(BLOCKS, (block,))


def read_staged(
    partition: Partition, command: ReadStaged, now: int, wall: int, out: WriteBatch
) -> Part | None:
    """Return a staged part; None if it was carried out."""
    return _read_staged(partition, command.work, command.piece)


def _read_staged(partition: Partition, work: int, piece: int) -> Part | None:
    pages = partition.log.pages
    content = pages.read_part(work, partition.id, piece)
    return None if content is None else decode_part(content, pages.read_staged)


def inspect_staged(
    partition: Partition, command: InspectStaged, now: int, wall: int, out: WriteBatch
) -> StagedFacts:
    """Return what decides a staged part, and where its messages are."""
    content = partition.log.pages.read_part(command.work, partition.id, command.piece)
    return StagedFacts("", []) if content is None else facts_of(content)


def _pin(subscription: Subscription, ordinals: list[int], owner: str) -> None:
    """Hold messages for an operation instead of for their receiver, without end."""
    by_session: dict[str | None, list[int]] = {}
    for ordinal in ordinals:
        session_id = None
        if (
            subscription.settings.requires_session
            and UNLOCKED[subscription.state(ordinal)] is State.ACTIVE
        ):
            session_id = subscription.session_name(ordinal)
        by_session.setdefault(session_id, []).append(ordinal)
    for session_id, chosen in by_session.items():
        for ordinal in chosen:
            subscription.take_out(ordinal)
        if session_id is not None:
            # No receiver gets later messages before the operation is decided.
            session = subscription.sessions.get(session_id)
            session.fly(chosen, strictly=True)
        subscription.lock(chosen, subscription.new_hold(NEVER, 0, session_id, owner))
