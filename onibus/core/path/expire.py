"""Expire: the changes that time brings.

Locks expire, delayed and scheduled messages come due, messages outlive their time to live. The
broker calls `pass_time` before every command and when `next_wake` is due, so no command sees a
partition that is behind its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.block import NEVER
from onibus.core.lifecycle import Input, State
from onibus.core.log import BlockPlace
from onibus.core.path.attempts import forget_attempt
from onibus.core.path.dead_letter import expire_message
from onibus.core.path.fan_out import SHARE_STEPS
from onibus.core.path.schedule import activate
from onibus.core.path.session import expire_session_lock
from onibus.core.path.settle import give_back
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription

#: Messages that come due in one slice, and the steps of rules (core/rules/subject.py) on them and
#: of giving each subscription its share.
DUE_A_SLICE = 100
DUE_STEPS = 100_000
#: Blocks searched for expired rows in one slice, and checks of messages: one per subscription.
BLOCKS_A_SLICE = 16
LOOKS_A_SLICE = 1_000
#: Messages whose locks end in one slice.
LOCKS_A_SLICE = 1_000
#: Messages checked in a subscription that has its own time to live.
AGED_A_SLICE = 1_000

#: States in which messages expire; locked messages do when they are released.
MORTAL = (State.ACTIVE, State.DELAYED, State.DEFERRED)


def pass_time(partition: Partition, now: int, wall: int, out: WriteBatch) -> bool:
    """Bring a partition up to `now`; return whether anything changed.

    If many things are due, a slice of them is done. `next_wake` then stays in the past until the
    rest is done too. No receiver gets a message that has expired, and a lock that has expired
    settles nothing (`Partition.overdue`).
    """
    if partition.next_wake() > now:
        return False
    left = LOCKS_A_SLICE
    for subscription in partition.due(now):
        while left > 0 and (key := subscription.timers.pop(now)) is not None:
            left -= _ring(subscription, key[0], key[1], now, left, out)
        _come_due(subscription, now, wall, out)
    partition.overdue = 0 if left > 0 else now
    _expire_rows(partition, now, out)
    partition.finish(now, out, by_itself=True)
    return True


def _expire_rows(partition: Partition, now: int, out: WriteBatch) -> None:
    """Expire a slice of the rows that are due."""
    left = LOOKS_A_SLICE
    for _ in range(BLOCKS_A_SLICE):
        place = partition.log.expired_block(now)
        if place is None:
            break
        left -= _expire_in(partition, place, now, left, out)
        if left <= 0:
            break


def _come_due(subscription: Subscription, now: int, wall: int, out: WriteBatch) -> None:
    """Return a slice of the delayed messages to the queue, and enqueue a slice of the scheduled.

    Delays are durations. Scheduled messages follow the wall clock, as far as it is proven.
    """
    marks = subscription.marks
    left = _due_in_slice(subscription)
    while left and (ordinal := marks.pop_due(now)) is not None:
        left -= 1
        if marks[ordinal].hold is None:
            subscription.change(ordinal, Input.DUE, out)
    scheduled = []
    moment = now + subscription.partition.offsets.moments
    while left and (ordinal := marks.pop_scheduled(moment)) is not None:
        left -= 1
        scheduled.append(ordinal)
    if scheduled:
        activate(subscription.partition, scheduled, now, wall, out)


def _due_in_slice(subscription: Subscription) -> int:
    """Return how many messages may come due in one slice: fewer, the more rules they meet."""
    if subscription.number or subscription.marks.next_scheduled() == NEVER:
        return DUE_A_SLICE
    others = subscription.partition.subscriptions.values()
    left = DUE_STEPS - SHARE_STEPS * len(others)
    steps = sum(rule.work.steps for one in others for rule in one.rules)
    return max(1, min(DUE_A_SLICE, left // max(steps, 1)))


def _ring(
    subscription: Subscription, kind: str, key: int | str, now: int, most: int, out: WriteBatch
) -> int:
    """Handle a deadline; return how many messages were released, about `most`."""
    if kind == "hold":
        assert isinstance(key, int)
        hold = subscription.holds[key]
        expired = sorted(o for o, until in hold.ordinals.items() if until <= now)
        if not subscription.settings.fifo:
            # A FIFO receive can be repeated as long as all of its messages are in flight.
            del expired[most:]
        for ordinal in expired:
            give_back(subscription, ordinal, Input.ABANDON, now, out)
        if hold.ordinals:
            subscription.watch_hold(hold)
        return len(expired)
    if kind == "session":
        assert isinstance(key, str)
        return expire_session_lock(subscription, subscription.sessions.get(key), now, most, out)
    if kind == "attempt":
        assert isinstance(key, str)
        forget_attempt(subscription, key, out)
    elif kind == "age":
        _expire_old(subscription, now, out)
    return 1


def _expire_in(
    partition: Partition, place: BlockPlace, now: int, most: int, out: WriteBatch
) -> int:
    """Expire due rows of one block; return how many checks of messages it took.

    A locked message expires when it is released.
    """
    index = partition.log.read(place).index
    # A search of all rows continues where the last slice ended.
    moment, start = place.expiring or (now, 0)
    chosen = index[(index["expires"] <= moment) & (index["ordinal"] >= start)]
    subscriptions = partition.subscriptions.values()
    some = chosen["ordinal"][: max(most // len(subscriptions), 1)].tolist()
    for subscription in subscriptions:
        for ordinal in some:
            if subscription.state(ordinal) in MORTAL:
                expire_message(subscription, ordinal, out)
    rest = chosen["expires"][len(some) :]
    place.expiring = (moment, some[-1] + 1) if len(rest) else None
    if not len(rest):
        rest = index["expires"][index["expires"] > moment]
    if place.live:
        partition.log.expire_again(place, int(rest.min()) if len(rest) else NEVER)
    return len(some) * len(subscriptions)


def _expire_old(subscription: Subscription, now: int, out: WriteBatch) -> None:
    """Expire a slice of the messages that outlived a subscription's own time to live."""
    log, gone = subscription.log, subscription.gone
    ordinal = gone.next_outside(subscription.aged_below)
    for _ in range(AGED_A_SLICE):
        if ordinal >= log.next_ordinal or subscription.expires(ordinal) > now:
            break
        if subscription.state(ordinal) in MORTAL:
            expire_message(subscription, ordinal, out)
        subscription.aged_below = ordinal + 1
        ordinal = gone.next_outside(ordinal + 1)
    subscription.watch_age(ordinal, now + 1)
