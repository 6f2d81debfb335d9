"""Work: a part of a change of several partitions, carried out in one of them (core/staged.py).

At once where all partitions are in one store. Otherwise `stage`, which pins the messages that will
change under a hold of the work's own, then `publish` once that was decided, or `unstage` if it
never will be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from onibus.core.block import NEVER
from onibus.core.lifecycle import UNLOCKED, Input, State
from onibus.core.message import Sent
from onibus.core.path.dead_letter import dead_letter
from onibus.core.path.enqueue import find_duplicates, send
from onibus.core.path.rename import rename_remembered
from onibus.core.path.settle import give_back, modify, note_return
from onibus.core.records import BLOCKS, STAGED, WriteBatch
from onibus.core.staged import Change, Part, encode_part

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.path.bulk import SentRows
    from onibus.core.subscription import Subscription

#: What became of a part's messages, one by one or in columns.
Result: TypeAlias = "list[Sent] | SentRows"

#: Verbs after which a message is gone.
_LEAVES = {"complete": Input.COMPLETE, "move": Input.MOVE}


def owner_of(work: int) -> str:
    """Return the owner that holds of a work have."""
    return f"work/{work}"


def is_work(owner: str) -> bool:
    """Tell whether that is the owner of a work's holds."""
    return owner.startswith("work/")


def prepare(partition: Partition, part: Part, now: int) -> list[int]:
    """Return what each message of a part repeats. Reads, and changes nothing but the part."""
    if not isinstance(part.batch, list):
        from onibus.core.path import bulk

        return bulk.find_duplicates(partition, part.batch, now)
    if not part.batch:
        return []
    originals = find_duplicates(partition, part.batch, now)
    if part.rename and originals.count(-1) != len(originals):
        part.batch = rename_remembered(partition, part.batch, originals, now, part.rename)
        originals = [-1] * len(part.batch)
    return originals


def carry_out(
    partition: Partition, part: Part, originals: list[int], now: int, wall: int, out: WriteBatch
) -> Result:
    """Do what a part says: store its messages, change those that are there."""
    sent: Result = []
    if not isinstance(part.batch, list):
        from onibus.core.path import bulk

        sent = bulk.send(partition, part.batch, originals, now, wall, out, part.plan)
    elif part.batch:
        sent = send(partition, part.batch, originals, now, wall, out, part.only, part.plan)
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


def stage(partition: Partition, work: int, part: Part, out: WriteBatch) -> None:
    """Keep a part until it is decided; what it will change cannot change otherwise until then."""
    by_subscription: dict[int, list[int]] = {}
    for change in part.changes:
        by_subscription.setdefault(change.subscription, []).append(change.ordinal)
    for number, ordinals in by_subscription.items():
        _pin(partition.subscriptions[number], ordinals, owner_of(work))
    if not isinstance(part.batch, list):
        from onibus.core.path import bulk

        bulk.stage(partition, part.batch, out)
    out.put(STAGED, (work, partition.id, 0, encode_part(part)))


def publish(
    partition: Partition, work: int, piece: int, part: Part, now: int, wall: int, out: WriteBatch
) -> Result:
    """Carry out a staged part, once: its row goes with the same commit."""
    originals = prepare(partition, part, now)
    out.delete(STAGED, (work, partition.id, piece))
    return carry_out(partition, part, originals, now, wall, out)


def unstage(
    partition: Partition,
    work: int,
    pieces: Sequence[int],
    blocks: Iterable[int],
    now: int,
    out: WriteBatch,
) -> None:
    """Forget a part that was not decided; what it pinned goes back, and no delivery is counted.

    `blocks` have its messages.
    """
    owner = owner_of(work)
    for subscription in partition.subscriptions.values():
        for hold in [one for one in subscription.holds.values() if one.owner == owner]:
            for ordinal in sorted(hold.ordinals):
                give_back(subscription, ordinal, Input.RELEASE, now, out)
    forget(work, partition.id, pieces, blocks, out)


def forget(
    work: int, partition: int, pieces: Iterable[int], blocks: Iterable[int], out: WriteBatch
) -> None:
    """Delete the rows of a part that will not be published."""
    for piece in pieces:
        out.delete(STAGED, (work, partition, piece))
    for block in blocks:
        out.delete(BLOCKS, (block,))


def _pin(subscription: Subscription, ordinals: list[int], owner: str) -> None:
    """Hold messages for a work instead of for their receiver, without end."""
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
            # Nobody gets what comes after them before it is known what becomes of them.
            session = subscription.sessions.get(session_id)
            session.fly(chosen, strictly=True)
        subscription.lock(chosen, subscription.new_hold(NEVER, 0, session_id, owner))
